//! Blocks of a paged KV cache in eight bits: GGML's `Q8_0`, a scale in f16 per 32 values of a head.

use half::f16;
use pulp::{Simd, WithSimd};

use crate::isa::Isa;
use crate::kv_blocks::{BLOCK_SIZE, BlockLayout, CacheElement};

/// Values with one scale.
const GROUP: usize = 32;

/// Cached keys and values of one layer.
#[derive(Clone, Debug, Default)]
pub struct Q8Cache {
    keys: Codes,
    values: Codes,
}

/// Codes in the places of [`BlockLayout`]. The scales of a head in a block are `[groups, 16]` for keys and `[16, groups]` for
/// values.
#[derive(Clone, Debug, Default)]
struct Codes {
    codes: Vec<i8>,
    scales: Vec<f16>,
}

/// Number of scales of a value.
#[inline(always)]
fn groups(layout: BlockLayout) -> usize {
    layout.head_dim.div_ceil(GROUP)
}

/// Number of scales of a block.
fn scales(layout: BlockLayout) -> usize {
    layout.kv_heads * BLOCK_SIZE * groups(layout)
}

/// The place of the first scale of a KV head in `block`.
#[inline(always)]
fn first_scale(layout: BlockLayout, block: u32, kv_head: usize) -> usize {
    (block as usize * layout.kv_heads + kv_head) * BLOCK_SIZE * groups(layout)
}

impl Q8Cache {
    /// Bytes of a block.
    pub fn block_bytes(layout: BlockLayout) -> usize {
        2 * (layout.values() + scales(layout) * size_of::<f16>())
    }

    /// A cache of `blocks` blocks, if there is memory for it.
    pub fn with_blocks(layout: BlockLayout, blocks: usize) -> Option<Q8Cache> {
        let [codes, scales] = [layout.values(), scales(layout)].map(|count| blocks.saturating_mul(count));
        let allocate = || {
            let fits = Vec::<i8>::new().try_reserve_exact(codes).is_ok()
                && Vec::<f16>::new().try_reserve_exact(scales).is_ok();
            fits.then(|| Codes { codes: vec![0; codes], scales: vec![f16::ZERO; scales] })
        };
        Some(Q8Cache { keys: allocate()?, values: allocate()? })
    }

    /// Number of blocks.
    pub fn blocks(&self, layout: BlockLayout) -> usize {
        self.keys.codes.len() / layout.values()
    }

    /// Copies a whole block.
    pub fn copy(&mut self, layout: BlockLayout, [from, to]: [u32; 2]) {
        let (codes, scales) = (layout.values(), scales(layout));
        let [from, to] = [from, to].map(|block| block as usize);
        for part in [&mut self.keys, &mut self.values] {
            part.codes.copy_within(from * codes..(from + 1) * codes, to * codes);
            part.scales.copy_within(from * scales..(from + 1) * scales, to * scales);
        }
    }

    /// Stores the key and the value of one KV head of the token at `position` of a sequence with these blocks.
    pub fn store<T: CacheElement>(
        &mut self,
        layout: BlockLayout,
        (blocks, position): (&[u32], usize),
        kv_head: usize,
        [key, value]: [&[T]; 2],
    ) {
        let (groups, token) = (groups(layout), position % BLOCK_SIZE);
        let first = first_scale(layout, blocks[position / BLOCK_SIZE], kv_head);
        let mut dimensions = layout.key(blocks, position, kv_head);
        for (group, values) in key.chunks(GROUP).enumerate() {
            let scale = scale_of(values);
            self.keys.scales[first + group * BLOCK_SIZE + token] = scale;
            for (x, at) in values.iter().zip(dimensions.by_ref()) {
                self.keys.codes[at] = code(x.widen(), scale);
            }
        }
        let own = &mut self.values.codes[layout.value(blocks, position, kv_head)];
        for (group, (values, to)) in value.chunks(GROUP).zip(own.chunks_mut(GROUP)).enumerate() {
            let scale = scale_of(values);
            self.values.scales[first + token * groups + group] = scale;
            to.iter_mut().zip(values).for_each(|(to, x)| *to = code(x.widen(), scale));
        }
    }

    /// Appends the keys and values of one KV head in `blocks` to `keys` and `values`, in the layout of a single head.
    pub fn widen<T: CacheElement>(
        &self,
        isa: Isa,
        layout: BlockLayout,
        (blocks, kv_head): (&[u32], usize),
        [keys, values]: [&mut Vec<T>; 2],
    ) {
        isa.dispatch(Widen { cache: self, layout, blocks, kv_head, keys, values });
    }
}

struct Widen<'a, T> {
    cache: &'a Q8Cache,
    layout: BlockLayout,
    blocks: &'a [u32],
    kv_head: usize,
    keys: &'a mut Vec<T>,
    values: &'a mut Vec<T>,
}

impl<T: CacheElement> WithSimd for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Widen { cache, layout, blocks, kv_head, keys, values } = self;
        let size = BLOCK_SIZE * layout.head_dim;
        let start = keys.len();
        keys.resize(start + blocks.len() * size, T::default());
        values.resize(start + blocks.len() * size, T::default());
        let blocks = blocks
            .iter()
            .zip(keys[start..].chunks_exact_mut(size))
            .zip(values[start..].chunks_exact_mut(size));
        for ((&block, keys), values) in blocks {
            let place = layout.head(block, kv_head);
            let first = first_scale(layout, block, kv_head);
            let scales = &cache.keys.scales[first..][..BLOCK_SIZE * groups(layout)];
            let codes = cache.keys.codes[place.clone()].chunks(GROUP * BLOCK_SIZE);
            for ((to, codes), scales) in
                keys.chunks_mut(GROUP * BLOCK_SIZE).zip(codes).zip(scales.as_chunks::<BLOCK_SIZE>().0)
            {
                let scales = scales.map(f16::to_f32);
                for (to, codes) in to.as_chunks_mut::<BLOCK_SIZE>().0.iter_mut().zip(codes.as_chunks().0) {
                    widen_by(to, codes, &scales);
                }
            }
            let scales = &cache.values.scales[first..][..BLOCK_SIZE * groups(layout)];
            let codes = cache.values.codes[place].chunks_exact(layout.head_dim);
            let tokens = values.chunks_exact_mut(layout.head_dim).zip(codes);
            for ((to, codes), scales) in tokens.zip(scales.chunks_exact(groups(layout))) {
                for ((to, codes), scale) in to.chunks_mut(GROUP).zip(codes.chunks(GROUP)).zip(scales) {
                    let scale = scale.to_f32();
                    to.iter_mut().zip(codes).for_each(|(to, code)| *to = T::narrow(f32::from(*code) * scale));
                }
            }
        }
    }
}

/// The values of one dimension of 16 tokens, each with its scale.
#[inline(always)]
fn widen_by<T: CacheElement>(to: &mut [T; BLOCK_SIZE], codes: &[i8; BLOCK_SIZE], scales: &[f32; BLOCK_SIZE]) {
    for ((to, code), scale) in to.iter_mut().zip(codes).zip(scales) {
        *to = T::narrow(f32::from(*code) * scale);
    }
}

/// The scale of some values: the largest is 127 times it. NaN if one of them is not finite, so that all stay visible as such.
fn scale_of<T: CacheElement>(values: &[T]) -> f16 {
    // Without the sign, the bits of numbers are in their order; those of infinity and NaN follow.
    let bits = values.iter().fold(0, |bits, x| bits.max(x.widen().abs().to_bits()));
    let largest = f32::from_bits(bits);
    if !largest.is_finite() {
        return f16::NAN;
    }
    // Values beyond the range of f16 are cut to it.
    f16::from_f32((largest / 127.0).min(f16::MAX.to_f32()))
}

/// The code nearest to `value`; zero if the scale is NaN.
fn code(value: f32, scale: f16) -> i8 {
    let scale = scale.to_f32();
    if scale == 0.0 { 0 } else { (value / scale).round().clamp(-127.0, 127.0) as i8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of different sizes, with both signs.
    fn some_values(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|at| next() * (1 + at % 7) as f32).collect()
    }

    #[test]
    fn values_are_those_of_plain_code_for_every_head_and_width() {
        for (kv_heads, head_dim) in [(1, 32), (2, 64), (3, 80), (2, 128), (1, 8)] {
            let layout = BlockLayout { kv_heads, head_dim };
            let table = [4, 0, 2];
            let mut cache = Q8Cache::with_blocks(layout, 5).expect("there is memory");
            let token = |position: usize, kv_head: usize| {
                [0, 1].map(|part| some_values(head_dim, (position * 31 + kv_head * 7 + part) as u32))
            };
            let positions = 2 * BLOCK_SIZE + 3;
            for position in 0..positions {
                for kv_head in 0..kv_heads {
                    let [key, value] = token(position, kv_head);
                    cache.store(layout, (&table, position), kv_head, [&key, &value]);
                }
            }
            cache.copy(layout, [2, 1]);
            let alone = BlockLayout { kv_heads: 1, head_dim };
            for isa in Isa::available() {
                for kv_head in 0..kv_heads {
                    let (mut keys, mut values) = (Vec::<f32>::new(), Vec::<f32>::new());
                    cache.widen(isa, layout, (&[4, 0, 1], kv_head), [&mut keys, &mut values]);
                    for position in 0..positions {
                        let [key, value] = token(position, kv_head).map(|values| rounded(&values));
                        let got: Vec<f32> = alone.key(&[0, 1, 2], position, 0).map(|at| keys[at]).collect();
                        assert_eq!(got, key, "{isa:?}, {head_dim} wide, position {position}");
                        assert_eq!(values[alone.value(&[0, 1, 2], position, 0)], value);
                    }
                }
            }
        }
    }

    /// The largest absolute value.
    fn largest(values: &[f32]) -> f32 {
        values.iter().map(|x| x.abs()).max_by(f32::total_cmp).expect("there are values")
    }

    /// Rounded by plain code.
    fn rounded(values: &[f32]) -> Vec<f32> {
        let group = |values: &[f32]| {
            let scale = f16::from_f32(largest(values) / 127.0).to_f32();
            let code = |x: &f32| if scale == 0.0 { 0.0 } else { (x / scale).round().clamp(-127.0, 127.0) };
            values.iter().map(|x| code(x) * scale).collect::<Vec<_>>()
        };
        values.chunks(32).flat_map(group).collect()
    }

    #[test]
    fn the_error_is_at_most_half_a_step_and_extremes_stay_finite() {
        let layout = BlockLayout { kv_heads: 1, head_dim: 64 };
        let mut cache = Q8Cache::with_blocks(layout, 1).expect("there is memory");
        let mut widened = |key: &[f32]| {
            cache.store(layout, (&[0], 0), 0, [key, key]);
            let (mut keys, mut values) = (Vec::<f32>::new(), Vec::new());
            cache.widen(Isa::Plain, layout, (&[0], 0), [&mut keys, &mut values]);
            values[..64].to_vec()
        };
        let key = some_values(64, 9);
        for (group, got) in key.chunks(32).zip(widened(&key).chunks(32)) {
            let step = largest(group) / 127.0;
            let is_near = group.iter().zip(got).all(|(x, y)| (x - y).abs() <= 0.56 * step);
            assert!(is_near, "{got:?} for {group:?}");
        }
        assert_eq!(widened(&[0.0; 64]), [0.0; 64]);
        assert!(widened(&[1e-30; 64]).iter().all(|x| *x == 0.0));
        assert!(widened(&[3e38; 64]).iter().all(|x| x.is_finite() && *x > 8e6));
    }

    #[test]
    fn values_that_are_not_finite_make_their_group_nan_on_every_instruction_set() {
        let layout = BlockLayout { kv_heads: 1, head_dim: 64 };
        for isa in Isa::available() {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut cache = Q8Cache::with_blocks(layout, 1).expect("there is memory");
                let mut row = some_values(64, 3);
                row[40] = bad;
                cache.store(layout, (&[0], 0), 0, [&row, &row]);
                let (mut keys, mut values) = (Vec::<f32>::new(), Vec::new());
                cache.widen(isa, layout, (&[0], 0), [&mut keys, &mut values]);
                let key: Vec<f32> = layout.key(&[0], 0, 0).map(|at| keys[at]).collect();
                for got in [&key, &values[..64]] {
                    assert!(got[..32].iter().all(|x| x.is_finite()), "{isa:?}, {bad}: {got:?}");
                    assert!(got[32..].iter().all(|x| x.is_nan()), "{isa:?}, {bad}: {got:?}");
                }
            }
        }
    }

    #[test]
    fn a_block_takes_17_bytes_for_16_values() {
        let layout = BlockLayout { kv_heads: 8, head_dim: 128 };
        assert_eq!(Q8Cache::block_bytes(layout), 2 * layout.values() * 17 / 16);
        let cache = Q8Cache::with_blocks(layout, 3).expect("there is memory");
        assert_eq!(cache.blocks(layout), 3);
        assert!(Q8Cache::with_blocks(layout, usize::MAX / 2).is_none());
    }
}
