//! Every kernel against plain code, over odd shapes, with every available instruction set.

use proptest::prelude::*;
use sconce_kernels::attention::{
    AttentionHead, AttentionMask, AttentionScratch, DisentangledScores, QkvColumns, RelativeBias, ScoreBias,
};
use sconce_kernels::bf16::narrow;
use sconce_kernels::columns::ColumnsMut;
use sconce_kernels::gemm::{
    GemmScratch, PackedMatrix, PackedMatrixBf16, PackedRows, PanelMatrix, PanelScratch, SplitEpilogue, Store,
    StoredWeight,
};
use sconce_kernels::isa::Isa;
use sconce_kernels::rope::RopeTable;
use sconce_kernels::rows::{Activation, Norm, NormStatistics, gate};
use sconce_kernels::team::Team;

fn random_values(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn near(got: &[f32], want: &[f32], allowed: f32) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), want.len());
    for (place, (got, want)) in got.iter().zip(want).enumerate() {
        prop_assert!((got - want).abs() <= allowed, "at {}: {} for {}", place, got, want);
    }
    Ok(())
}

fn plain_product(a: &[f32], w: &[f32], rows: usize, outputs: usize, inputs: usize) -> Vec<f32> {
    let dot = |m: usize, n: usize| {
        (0..inputs).map(|k| f64::from(a[m * inputs + k]) * f64::from(w[n * inputs + k])).sum::<f64>()
    };
    (0..rows * outputs).map(|i| dot(i / outputs, i % outputs) as f32).collect()
}

/// The product of `count` rows with all outputs of a matrix.
fn whole_product<T: StoredWeight>(matrix: &PanelMatrix<T>, a: &[f32], count: usize) -> Vec<f32> {
    let mut product = vec![f32::NAN; count * matrix.outputs()];
    let bias = vec![0.0; matrix.outputs()];
    let to = ColumnsMut::new(&mut product, matrix.outputs());
    let to = &mut Store { bias: &bias, activation: Activation::Identity, to };
    matrix.multiply(a, matrix.inputs(), count, &mut GemmScratch::default(), to);
    product
}

/// Attention by its definition, in f64.
fn plain_attention(head: &AttentionHead<'_>) -> Vec<f32> {
    let AttentionHead { rows, length, at, bias, scale, softcap, mask, score_bias } = *head;
    let number = |row: usize, which: usize, d: usize| {
        let place = at.offsets[which] + d;
        f64::from(rows[row * at.stride + place]) + bias.map_or(0.0, |bias| f64::from(bias[place]))
    };
    let more = |q: usize, k: usize| match score_bias {
        ScoreBias::None => 0.0,
        ScoreBias::Relative(distances) => f64::from(distances.row(q)[k]),
        ScoreBias::Disentangled(d) => {
            let bucket = d.bucket_of[d.bucket_of.len() / 2 + q - k] as usize;
            f64::from(d.queries[q * d.buckets + bucket]) + f64::from(d.keys[k * d.buckets + bucket])
        }
    };
    let mut out = vec![0.0; length * at.head_dim];
    for q in 0..length {
        let score = |k: usize| {
            let apart = (q.abs_diff(k), k < q);
            if k >= mask.visible || if apart.1 { apart.0 > mask.before } else { apart.0 > mask.after } {
                return f64::NEG_INFINITY;
            }
            let dot: f64 = (0..at.head_dim).map(|d| number(q, 0, d) * number(k, 1, d)).sum();
            let capped = |score: f64| softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh());
            capped(dot * f64::from(scale)) + more(q, k)
        };
        let scores: Vec<f64> = (0..length).map(score).collect();
        let top = scores.iter().copied().max_by(f64::total_cmp).expect("a score");
        let probabilities: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let sum: f64 = probabilities.iter().sum();
        for d in 0..at.head_dim {
            out[q * at.head_dim + d] =
                ((0..length).map(|k| probabilities[k] * number(k, 2, d)).sum::<f64>() / sum) as f32;
        }
    }
    out
}

/// Masks: full, causal, windowed, and causal with a window.
fn masks() -> impl Strategy<Value = AttentionMask> {
    let side = || prop_oneof![Just(usize::MAX), Just(0), 1usize..40];
    // With a limit on visible keys, every query needs one of them within its window.
    let some = (side(), 1usize..150).prop_map(|(after, seen)| AttentionMask {
        after,
        visible: seen,
        ..AttentionMask::ALL
    });
    let all =
        (side(), side()).prop_map(|(before, after)| AttentionMask { before, after, ..AttentionMask::ALL });
    prop_oneof![all, some]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn products_in_f32_are_right(rows in 1usize..70, outputs in 1usize..100, inputs in 1usize..430, seed: u64) {
        let (a, w) = (random_values(seed, rows * inputs), random_values(!seed, outputs * inputs));
        let want = plain_product(&a, &w, rows, outputs, inputs);
        for isa in Isa::available() {
            let matrix = PackedMatrix::pack(isa, &w, outputs, inputs);
            let mut got = vec![f32::NAN; rows * outputs];
            matrix.multiply(&a, inputs, rows, &mut GemmScratch::default(), &mut |row: usize, column: usize, values: &mut [f32]| {
                got[row * outputs + column..][..values.len()].copy_from_slice(values);
            });
            near(&got, &want, 1e-4)?;
            let (mut again, bias, panels) = (vec![f32::NAN; rows * outputs], vec![0.0; outputs], matrix.panels());
            let to = Store { bias: &bias, activation: Activation::Identity, to: ColumnsMut::new(&mut again, outputs) };
            let (left, right) = to.split_columns((panels / 2 * matrix.panel_width()).min(outputs));
            // Packed memory is reused, and threads pack parts of it.
            let (team, mut packed) = (Team::new(2), PackedRows::default());
            packed.pack((isa, &team), (&w, inputs, outputs), inputs);
            packed.pack((isa, &team), (&a, inputs, rows), inputs);
            for (share, mut to) in [(panels / 2..panels, right), (0..panels / 2, left)] {
                matrix.multiply_panels(&packed, share, 0, &mut PanelScratch::default(), &mut to);
            }
            prop_assert_eq!(&again, &got);
            // Weights of bf16 are widened exactly, and a row does not depend on the others.
            let rounded: Vec<f32> = w.iter().map(|x| f32::from_bits(u32::from(narrow(*x)) << 16)).collect();
            let wide = PackedMatrix::pack(isa, &rounded, outputs, inputs);
            let matrix = PackedMatrixBf16::pack(isa, &w, outputs, inputs);
            let mut row = vec![f32::NAN; inputs];
            for (output, want) in rounded.chunks_exact(inputs).enumerate() {
                matrix.row(output, &mut row);
                prop_assert_eq!(&row[..], want);
            }
            for (first, count) in [(0, rows), (rows - 1, 1), (rows / 2, 2.min(rows - rows / 2))] {
                let a = &a[first * inputs..];
                let short = whole_product(&matrix, a, count);
                prop_assert_eq!(&short, &whole_product(&wide, a, count));
                prop_assert_eq!(&short[..outputs], &whole_product(&matrix, a, 1)[..]);
            }
        }
    }

    #[test]
    fn attention_in_f32_is_right(
        length in 1usize..80, keys in 1usize..3, shared in 1usize..4, head in 1usize..70, mask in masks(),
        kind in 0..3, seed: u64, biased: bool, capped: bool,
    ) {
        let heads = keys * shared;
        let stride = (heads + 2 * keys) * head;
        let rows = random_values(seed, length * stride);
        let bias = random_values(seed ^ 1, stride);
        let table = random_values(seed ^ 2, 2 * 90 - 1);
        let (buckets, of_queries, of_keys) = (7, random_values(seed ^ 5, length * 7), random_values(seed ^ 6, length * 7));
        let bucket_of: Vec<u32> = (0..2 * 90 - 1).map(|distance| distance % 7).collect();
        let score_bias = match kind {
            0 => ScoreBias::None,
            1 => ScoreBias::Relative(RelativeBias { values: &table, positions: 90 }),
            _ => ScoreBias::Disentangled(DisentangledScores { queries: &of_queries, keys: &of_keys, buckets, bucket_of: &bucket_of }),
        };
        let last = [(heads - 1) * head, (heads + keys - 1) * head, (heads + 2 * keys - 1) * head];
        let at = QkvColumns { stride, head_dim: head, offsets: last };
        let bias = biased.then_some(bias.as_slice());
        let task = AttentionHead { rows: &rows, length, at, bias, scale: 0.3, softcap: capped.then_some(0.7), mask, score_bias };
        let want = plain_attention(&task);
        for isa in Isa::available() {
            let mut got = vec![f32::NAN; length * head];
            task.attend(isa, &mut AttentionScratch::default(), &mut got, head);
            near(&got, &want, 1e-4)?;
        }
    }

    #[test]
    fn rotation_is_right(heads in 1usize..4, pairs in 1usize..40, rest in 0usize..9, interleaved: bool, seed: u64) {
        let head = 2 * pairs + rest;
        let rope_table = random_values(seed ^ 1, 3 * pairs);
        let turns = RopeTable {
            cosines: rope_table.iter().map(|a| a.cos()).collect(),
            sines: rope_table.iter().map(|a| a.sin()).collect(),
            pairs,
            interleaved,
        };
        let x = random_values(seed, heads * head);
        let mut want: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        for (n, numbers) in x.chunks(head).enumerate() {
            for pair in 0..pairs {
                let (a, b) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
                let (sine, cosine) = f64::from(rope_table[2 * pairs + pair]).sin_cos();
                let (first, second) = (f64::from(numbers[a]), f64::from(numbers[b]));
                want[n * head + a] = first * cosine - second * sine;
                want[n * head + b] = first * sine + second * cosine;
            }
        }
        let want: Vec<f32> = want.into_iter().map(|x| x as f32).collect();
        for isa in Isa::available() {
            let mut got = x.clone();
            turns.rotate(isa, &mut got, head, 2);
            near(&got, &want, 1e-6)?;
        }
    }

    #[test]
    fn gates_are_right(rows in 1usize..5, half in 1usize..60, which in 0usize..5, seed: u64) {
        let activations =
            [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Silu, Activation::QuickGelu];
        let plain = |x: f64| match activations[which] {
            Activation::Relu => x.max(0.0),
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
            // The two GELU variants differ by less than the tolerance; each has its own test.
            Activation::Gelu | Activation::GeluTanh | Activation::Identity => {
                0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh())
            }
        };
        let (x, bias) = (random_values(seed, rows * 2 * half), random_values(seed ^ 1, 2 * half));
        let want: Vec<f32> = (0..rows * half).map(|place| {
            let (row, column) = (place / half, place % half);
            let at = |column: usize| f64::from(x[row * 2 * half + column]) + f64::from(bias[column]);
            (plain(at(column)) * at(half + column)) as f32
        }).collect();
        for isa in Isa::available() {
            let (mut rows, mut got) = (x.clone(), vec![f32::NAN; want.len()]);
            gate(isa, &mut rows, &bias, activations[which], &mut got);
            near(&got, &want, 2e-3)?;
        }
    }

    #[test]
    fn norms_are_right(rows in 1usize..5, width in 1usize..200, root: bool, seed: u64) {
        let statistics = if root { NormStatistics::MeanSquare } else { NormStatistics::MeanVariance };
        let norm = Norm { statistics, weight: random_values(seed ^ 3, width), shift: random_values(seed ^ 4, width), epsilon: 1e-5 };
        let x = random_values(seed, rows * width);
        let mut want = Vec::new();
        for row in x.chunks(width) {
            let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
            let mean = if root { 0.0 } else { mean };
            let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / width as f64;
            let scale = 1.0 / (variance + 1e-5).sqrt();
            for (i, &x) in row.iter().enumerate() {
                want.push(((f64::from(x) - mean) * scale * f64::from(norm.weight[i]) + f64::from(norm.shift[i])) as f32);
            }
        }
        for isa in Isa::available() {
            let mut got = x.clone();
            norm.apply(isa, &mut got, width);
            near(&got, &want, 2e-4)?;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod bf16 {
    use super::{
        AttentionHead, QkvColumns, RelativeBias, ScoreBias, masks, near, plain_attention, plain_product,
        random_values,
    };
    use proptest::prelude::*;
    use sconce_kernels::bf16::{
        AttentionHeadBf16, AttentionScratchBf16, Bf16, EpilogueBf16, InputBf16, MatrixBf16, Panels, add_rows,
        gate_rows, norm_rows,
    };
    use sconce_kernels::isa::Isa;
    use sconce_kernels::rows::{Activation, Norm, NormStatistics, gate};

    /// Every bf16 unit of this processor.
    fn units() -> impl Iterator<Item = Bf16> {
        Isa::available().into_iter().filter_map(Bf16::of)
    }

    fn bf16(x: f32) -> u16 {
        let bits = x.to_bits();
        ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
    }

    fn short(values: &[f32]) -> Vec<f32> {
        values.iter().map(|&x| f32::from_bits(u32::from(bf16(x)) << 16)).collect()
    }

    /// `values`, rows of `width`, as panels, followed by NaN.
    fn laid(values: &[f32], width: usize) -> Panels<u16> {
        let mut panels = Panels::default();
        let rows = values.len() / width;
        panels.shape(rows, width);
        for row in 0..rows + 32 {
            panels.set(row, &vec![0x7fc0; width]);
        }
        for (row, values) in values.chunks(width).enumerate() {
            panels.set(row, &values.iter().copied().map(bf16).collect::<Vec<_>>());
        }
        panels
    }

    fn read(panels: &Panels<u16>, rows: usize, width: usize) -> Vec<f32> {
        let mut row = vec![0; width];
        let rows = (0..rows).flat_map(|at| {
            panels.get(at, &mut row);
            row.iter().map(|&x| f32::from_bits(u32::from(x) << 16)).collect::<Vec<_>>()
        });
        rows.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn products_on_tiles_are_right(rows in 1usize..100, outputs in 1usize..100, inputs in 1usize..200, seed: u64) {
            for unit in units() {
                let (a, w) = (short(&random_values(seed, rows * inputs)), short(&random_values(!seed, outputs * inputs)));
                let bias = random_values(seed ^ 5, outputs);
                let want: Vec<f32> = plain_product(&a, &w, rows, outputs, inputs)
                    .iter().enumerate().map(|(place, x)| x + bias[place % outputs]).collect();
                let matrix = MatrixBf16::pack(unit, &w, outputs, inputs);
                let mut row = vec![f32::NAN; inputs];
                for (output, want) in w.chunks_exact(inputs).enumerate() {
                    matrix.row(output, &mut row);
                    prop_assert_eq!(&row[..], want);
                }
                let a = laid(&a, inputs);
                let mut padded = bias;
                padded.resize(matrix.outputs(), 0.0);
                let mut sums = Panels::default();
                sums.shape(rows, outputs);
                (0..rows).for_each(|row| sums.set(row, &vec![1.0; outputs]));
                let mut got = vec![0.0; rows * outputs];
                unit.with_tiles(|tiles| {
                    let finish = EpilogueBf16::Add { bias: &padded, to: sums.all() };
                    let half = matrix.panels() / 2;
                    let (left, right) = finish.split(half);
                    let input = InputBf16 { tiles, a: &a, rows };
                    matrix.multiply(input, half..matrix.panels(), right);
                    matrix.multiply(input, 0..half, left);
                });
                got.chunks_mut(outputs).enumerate().for_each(|(row, to)| sums.get(row, to));
                near(&got, &want.iter().map(|x| x + 1.0).collect::<Vec<_>>(), 1e-3)?;
                let all = [
                    Activation::Identity, Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu,
                    Activation::QuickGelu,
                ];
                for activation in all {
                    let mut stored = Panels::default();
                    stored.shape(rows, outputs);
                    let to = EpilogueBf16::Store { bias: &padded, activation, to: stored.all() };
                    unit.with_tiles(|tiles| {
                        matrix.multiply(InputBf16 { tiles, a: &a, rows }, 0..matrix.panels(), to);
                    });
                    let mut want = want.clone();
                    match activation {
                        Activation::Identity => {}
                        Activation::Relu => want.iter_mut().for_each(|x| *x = x.max(0.0)),
                        Activation::Gelu => want.iter_mut().for_each(|x| *x = sconce_kernels::math::gelu(*x)),
                        Activation::GeluTanh => want.iter_mut().for_each(|x| *x = sconce_kernels::math::gelu_tanh(*x)),
                        Activation::Silu => want.iter_mut().for_each(|x| *x = sconce_kernels::math::silu(*x)),
                        Activation::QuickGelu => want.iter_mut().for_each(|x| *x = sconce_kernels::math::quick_gelu(*x)),
                    }
                    near(&read(&stored, rows, outputs), &want, 0.1)?;
                }
            }
        }

        #[test]
        fn attention_on_tiles_is_right(
            before in 0usize..40, length in 1usize..150, heads in 1usize..3, head in 1usize..70, biased: bool,
            mask in masks(), seed: u64, capped: bool,
        ) {
            for unit in units() {
                let panels = head.div_ceil(32);
                let wide = panels * 32;
                let hidden = heads * wide;
                // Values beyond the head dimension are zero.
                let mut rows = short(&random_values(seed, length * 3 * hidden));
                rows.iter_mut().enumerate().filter(|(place, _)| place % wide >= head).for_each(|(_, x)| *x = 0.0);
                let table = random_values(seed ^ 2, 2 * 160 - 1);
                let distances = biased.then_some(RelativeBias { values: &table, positions: 160 });
                let first = (heads - 1) * wide;
                let at = QkvColumns { stride: 3 * hidden, head_dim: head, offsets: [first, hidden + first, 2 * hidden + first] };
                let score_bias = distances.map_or(ScoreBias::None, ScoreBias::Relative);
                let scale = 1.0 / (head as f32).sqrt();
                let softcap = capped.then_some(0.7);
                let want = plain_attention(&AttentionHead { rows: &rows, length, at, bias: None, scale, softcap, mask, score_bias });
                let all: Vec<f32> = random_values(seed ^ 9, before * 3 * hidden).into_iter().chain(rows).collect();
                let rows = laid(&all, 3 * hidden);
                let query = (heads - 1) * panels;
                let task = AttentionHeadBf16 {
                    rows: &rows, start: before, length, panels, query,
                    key: heads * panels + query, value: 2 * heads * panels + query,
                    scale, softcap, mask, relative_bias: distances,
                };
                let mut output = Panels::default();
                output.shape(before + length, wide);
                unit.with_tiles(|tiles| task.attend(tiles, &mut AttentionScratchBf16::default(), &mut output, 0));
                let got: Vec<f32> = read(&output, before + length, wide)[before * wide..]
                    .chunks(wide).flat_map(|row| row[..head].to_vec()).collect();
                near(&got, &want, 0.02)?;
            }
        }

        #[test]
        fn norms_over_panels_are_right(rows in 1usize..40, width in 1usize..200, root: bool, keeps: bool, seed: u64) {
            for unit in units() {
                let statistics = if root { NormStatistics::MeanSquare } else { NormStatistics::MeanVariance };
                let (weight, shift) = (random_values(seed ^ 3, width), random_values(seed ^ 4, width));
                let norm = Norm { statistics, weight, shift, epsilon: 1e-5 };
                let unchanged = random_values(seed, rows * width);
                let mut want = random_values(seed, rows * width);
                let (mut x, mut rounded) = (Panels::default(), Panels::default());
                x.shape(rows, width);
                rounded.shape(rows, width);
                want.chunks(width).enumerate().for_each(|(row, values)| x.set(row, values));
                norm.apply(Isa::Plain, &mut want, width);
                norm_rows(unit, &norm, rows, &mut x, &mut rounded, keeps);
                let mut got = vec![0.0; rows * width];
                got.chunks_mut(width).enumerate().for_each(|(row, to)| x.get(row, to));
                near(&got, if keeps { &want } else { &unchanged }, 2e-4)?;
                near(&read(&rounded, rows, width), &short(&want), 0.02)?;
            }
        }

        #[test]
        fn gates_and_sums_over_panels_are_right(rows in 1usize..40, half in 1usize..100, seed: u64) {
            for unit in units() {
                let padded = half.next_multiple_of(32);
                let mut x = short(&random_values(seed, rows * 2 * padded));
                x.iter_mut().enumerate().filter(|(place, _)| place % padded >= half).for_each(|(_, x)| *x = 0.0);
                let wide = laid(&x, 2 * padded);
                let mut want = vec![0.0; rows * padded];
                gate(Isa::Plain, &mut x, &vec![0.0; 2 * padded], Activation::Silu, &mut want);
                let mut gated = Panels::default();
                gated.shape(rows, half);
                gate_rows(unit, rows, &wide, Activation::Silu, &mut gated);
                near(&read(&gated, rows, padded), &short(&want), 0.01)?;
                let (mut sum, mut more) = (Panels::default(), Panels::default());
                sum.shape(rows, half);
                more.shape(rows, half);
                let (a, b) = (random_values(seed ^ 1, rows * half), random_values(seed ^ 2, rows * half));
                a.chunks(half).enumerate().for_each(|(row, values)| sum.set(row, values));
                b.chunks(half).enumerate().for_each(|(row, values)| more.set(row, values));
                add_rows(unit, rows, &more, &mut sum);
                let mut got = vec![0.0; rows * half];
                got.chunks_mut(half).enumerate().for_each(|(row, to)| sum.get(row, to));
                near(&got, &a.iter().zip(&b).map(|(a, b)| a + b).collect::<Vec<_>>(), 1e-6)?;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6))]

        #[test]
        fn products_in_several_parts_are_right_and_a_row_is_the_same_alone(
            rows in 33usize..400, outputs in 1usize..500, inputs in 500usize..3200, seed: u64,
        ) {
            for unit in units() {
                let (a, w) = (short(&random_values(seed, rows * inputs)), short(&random_values(!seed, outputs * inputs)));
                let matrix = MatrixBf16::pack(unit, &w, outputs, inputs);
                let bias = vec![0.0; matrix.outputs()];
                let product = |a: &[f32]| {
                    let mut sums = Panels::default();
                    let count = a.len() / inputs;
                    sums.shape(count, outputs);
                    (0..count).for_each(|row| sums.set(row, &vec![0.0; outputs]));
                    let a = laid(a, inputs);
                    unit.with_tiles(|tiles| {
                        let to = EpilogueBf16::Add { bias: &bias, to: sums.all() };
                        matrix.multiply(InputBf16 { tiles, a: &a, rows: count }, 0..matrix.panels(), to);
                    });
                    let mut got = vec![0.0; count * outputs];
                    got.chunks_mut(outputs).enumerate().for_each(|(row, to)| sums.get(row, to));
                    got
                };
                let got = product(&a);
                for row in [0, rows / 2, rows - 1] {
                    let own = &a[row * inputs..][..inputs];
                    let own_got = &got[row * outputs..][..outputs];
                    near(own_got, &plain_product(own, &w, 1, outputs, inputs), 2e-3)?;
                    prop_assert_eq!(own_got, &product(own)[..]);
                }
            }
        }
    }
}

/// Compares the flags of the system with the instruction sets that the tests ran on.
#[test]
#[cfg(target_os = "linux")]
fn every_set_of_instructions_of_this_processor_is_run() {
    let available = Isa::available();
    println!(
        "kernel paths run: {}",
        available.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    );
    let said = std::fs::read_to_string("/proc/cpuinfo").expect("Linux tells of its processor");
    let flags: Vec<&str> =
        said.lines().find(|line| line.starts_with("flags")).unwrap_or("").split(' ').collect();
    let wide = ["avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"];
    for (isa, needs) in [
        (Isa::Avx2, &["avx2", "fma"][..]),
        (Isa::AvxVnni, &["avx2", "fma", "avx_vnni"]),
        (Isa::Avx512, &wide),
        (Isa::Avx512Bf16, &["avx512_bf16", "avx512vbmi"]),
        (Isa::Amx, &["amx_tile", "amx_bf16", "avx512_bf16", "avx512vbmi"]),
    ] {
        // An emulator shows the processor that it runs on.
        let has = cfg!(target_arch = "x86_64") && needs.iter().all(|flag| flags.contains(flag));
        assert!(!has || available.contains(&isa), "this processor has {isa}, and it was not run");
    }
}
