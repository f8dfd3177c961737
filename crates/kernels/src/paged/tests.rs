//! Attention over scattered blocks, against plain f64 code.

use super::*;

/// Values between -1 and 1.
fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Elements of a cache.
fn cached<T: CacheElement>(count: usize, seed: u32) -> Vec<T> {
    values(count, seed).into_iter().map(T::narrow).collect()
}

/// Attention in f64 over keys and values of the attended positions.
fn plain(queries: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>], scale: f32, cap: Option<f32>) -> Vec<f64> {
    let head_dim = keys[0].len();
    let mut output = Vec::new();
    for query in queries.chunks(head_dim) {
        let score = |key: &Vec<f32>| {
            let products = query.iter().zip(key).map(|(x, y)| f64::from(*x) * f64::from(*y));
            let score = products.sum::<f64>() * f64::from(scale);
            cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
        };
        let weights: Vec<f64> = keys.iter().map(|key| score(key).exp()).collect();
        let total: f64 = weights.iter().sum();
        output.extend((0..head_dim).map(|d| {
            let weighted = weights.iter().zip(values).map(|(weight, value)| weight * f64::from(value[d]));
            weighted.sum::<f64>() / total
        }));
    }
    output
}

/// Compares attention of queries with plain code, and with each token alone, bit for bit. `strides` are apart.
fn check<T: CacheElement>(
    isa: Isa,
    attention: PagedAttention<'_, T>,
    positions: &[Range<usize>],
    width: usize,
    tolerance: f64,
) {
    let strides = [width + 5, width + 3];
    // Queries that are exact in bf16: tiles round them.
    let queries: Vec<f32> =
        cached::<u16>(positions.len() * strides[0], 3).into_iter().map(CacheElement::widen).collect();
    let PagedAttention { layout, blocks, kv_head, scale, softcap, .. } = attention;
    let mut scratch = PagedScratch::default();
    let mut output = vec![f32::NAN; positions.len() * strides[1]];
    let all = PagedQueries { positions, width, strides, values: &queries };
    attention.attend(isa, all, &mut scratch, &mut output);
    for (token, range) in positions.iter().enumerate() {
        let own = &queries[token * strides[0]..][..width];
        let got = &output[token * strides[1]..][..width];
        let key = |at: usize| layout.key(blocks, at, kv_head).map(|at| attention.keys[at].widen()).collect();
        let value = |at: usize| {
            attention.values[layout.value(blocks, at, kv_head)].iter().map(|x| x.widen()).collect()
        };
        let own_keys: Vec<Vec<f32>> = range.clone().map(key).collect();
        let own_values: Vec<Vec<f32>> = range.clone().map(value).collect();
        let wanted = plain(own, &own_keys, &own_values, scale, softcap);
        for (got, wanted) in got.iter().zip(&wanted) {
            let off = (f64::from(*got) - wanted).abs();
            assert!(off < tolerance, "{isa} {} {range:?}: {off}", layout.head_dim);
        }
        let mut alone = vec![f32::NAN; width];
        let positions = std::slice::from_ref(range);
        let one = PagedQueries { positions, width, strides: [width; 2], values: own };
        attention.attend(isa, one, &mut scratch, &mut alone);
        assert_eq!(got, alone, "{isa} {} {range:?}", layout.head_dim);
    }
}

/// Checks tokens at several cases of a sequence with these blocks.
fn check_cases<T: CacheElement>(isa: Isa, blocks: &[u32], cases: &[(usize, usize)], tolerance: f64) {
    let count = blocks.iter().max().map_or(0, |last| *last as usize + 1);
    for (head_dim, group, tokens) in [(64, 3, 1), (20, 1, 5), (8, 8, 2), (80, 2, 11), (128, 1, 40)] {
        let layout = BlockLayout { kv_heads: 2, head_dim };
        let (keys, values) =
            (cached::<T>(count * layout.values(), 1), cached::<T>(count * layout.values(), 2));
        for &(last, window) in cases {
            let last = last.max(tokens - 1);
            let range = |position: usize| (position + 1).saturating_sub(window)..position + 1;
            let positions: Vec<_> = (last + 1 - tokens..=last).map(range).collect();
            for (softcap, kv_head) in [(None, 0), (Some(0.5), 1)] {
                let attention = PagedAttention {
                    keys: &keys,
                    values: &values,
                    layout,
                    blocks,
                    kv_head,
                    scale: 0.3,
                    softcap,
                };
                check(isa, attention, &positions, group * head_dim, tolerance);
            }
        }
    }
}

#[test]
fn every_instruction_set_attends_to_the_positions_in_scattered_blocks() {
    for isa in Isa::available() {
        check_cases::<f32>(isa, &[5, 0, 3, 6], &[(0, 64), (31, 64), (47, 18), (62, 64), (40, 1)], 1e-5);
    }
}

#[test]
fn keys_in_bf16_are_attended_to_over_several_passes() {
    let blocks: Vec<u32> = (0..24).map(|block| (block * 7 + 3) % 24).collect();
    let cases = [(0, 999), (127, 999), (128, 999), (383, 999), (300, 140), (260, 5), (256, 1)];
    for isa in Isa::available() {
        // Tiles round probabilities to bf16.
        let tolerance = if Bf16::on_tiles(isa).is_some() { 4e-3 } else { 1e-5 };
        check_cases::<u16>(isa, &blocks, &cases, tolerance);
    }
}

#[test]
fn values_that_no_query_attends_to_may_be_nan_and_those_of_a_query_are_reported() {
    let layout = BlockLayout { kv_heads: 1, head_dim: 32 };
    for isa in Isa::available() {
        let (mut keys, mut values) =
            (cached::<u16>(4 * layout.values(), 1), cached::<u16>(4 * layout.values(), 2));
        let blocks = [2, 1, 0];
        for at in layout.key(&blocks, 33, 0) {
            keys[at] = u16::narrow(f32::NAN);
        }
        values[layout.value(&blocks, 33, 0)].fill(u16::narrow(f32::NAN));
        for (last, is_nan) in [(32, false), (33, true)] {
            let (keys, values) = (&keys[..], &values[..]);
            let attention = PagedAttention {
                keys,
                values,
                layout,
                blocks: &blocks,
                kv_head: 0,
                scale: 0.2,
                softcap: None,
            };
            let mut output = vec![0.0; 32];
            let seen = 0..last + 1;
            let positions = std::slice::from_ref(&seen);
            let queries = PagedQueries { positions, width: 32, strides: [32; 2], values: &[0.5; 32] };
            attention.attend(isa, queries, &mut PagedScratch::default(), &mut output);
            assert!(output.iter().all(|x| x.is_nan() == is_nan), "{isa} {last}: {output:?}");
        }
    }
}
