//! Every kernel against plain code, over odd shapes, with every set of instructions that this processor has.

use proptest::prelude::*;
use sconce_kernels::attention::{Columns, Distances, Head, Scratch};
use sconce_kernels::isa::Isa;
use sconce_kernels::product::Matrix;
use sconce_kernels::rows::Norm;

fn numbers(seed: u64, count: usize) -> Vec<f32> {
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

fn plain_attention(
    rows: &[f32],
    length: usize,
    at: Columns,
    bias: Option<&[f32]>,
    distances: Option<Distances<'_>>,
) -> Vec<f32> {
    let number = |row: usize, which: usize, d: usize| {
        let place = which * at.hidden + at.first + d;
        f64::from(rows[row * at.stride + place]) + bias.map_or(0.0, |bias| f64::from(bias[place]))
    };
    let mut out = vec![0.0; length * at.head];
    for q in 0..length {
        let score = |k: usize| {
            let dot: f64 = (0..at.head).map(|d| number(q, 0, d) * number(k, 1, d)).sum();
            dot / (at.head as f64).sqrt() + distances.map_or(0.0, |distances| f64::from(distances.of(q)[k]))
        };
        let scores: Vec<f64> = (0..length).map(score).collect();
        let top = scores.iter().copied().fold(f64::MIN, f64::max);
        let chances: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let sum: f64 = chances.iter().sum();
        for d in 0..at.head {
            out[q * at.head + d] =
                ((0..length).map(|k| chances[k] * number(k, 2, d)).sum::<f64>() / sum) as f32;
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn products_in_f32_are_right(rows in 1usize..70, outputs in 1usize..100, inputs in 1usize..130, seed: u64) {
        let (a, w) = (numbers(seed, rows * inputs), numbers(!seed, outputs * inputs));
        let want = plain_product(&a, &w, rows, outputs, inputs);
        for isa in Isa::available() {
            let matrix = Matrix::pack(isa, &w, outputs, inputs);
            let mut got = vec![f32::NAN; rows * outputs];
            matrix.multiply(&a, inputs, rows, &mut Vec::new(), &mut |row: usize, column: usize, values: &mut [f32]| {
                got[row * outputs + column..][..values.len()].copy_from_slice(values);
            });
            near(&got, &want, 1e-4)?;
        }
    }

    #[test]
    fn attention_in_f32_is_right(length in 1usize..80, heads in 1usize..4, head in 1usize..70, seed: u64, biased: bool) {
        let hidden = heads * head;
        let rows = numbers(seed, length * 3 * hidden);
        let bias = numbers(seed ^ 1, 3 * hidden);
        let table = numbers(seed ^ 2, 2 * 90 - 1);
        let bias = biased.then_some(bias.as_slice());
        let distances = biased.then_some(Distances { row: &table, positions: 90 });
        let at = Columns { stride: 3 * hidden, hidden, head, first: (heads - 1) * head };
        let want = plain_attention(&rows, length, at, bias, distances);
        for isa in Isa::available() {
            let mut got = vec![f32::NAN; length * head];
            let task = Head { rows: &rows, length, at, bias, distances };
            task.attend(isa, &mut Scratch::default(), &mut got, head);
            near(&got, &want, 1e-4)?;
        }
    }

    #[test]
    fn norms_are_right(rows in 1usize..5, width in 1usize..200, seed: u64) {
        let norm = Norm { weight: numbers(seed ^ 3, width), shift: numbers(seed ^ 4, width), epsilon: 1e-5 };
        let x = numbers(seed, rows * width);
        let mut want = Vec::new();
        for row in x.chunks(width) {
            let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
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
    use super::{Columns, Distances, near, numbers, plain_attention, plain_product};
    use proptest::prelude::*;
    use sconce_kernels::bf16::{Bf16, Finish, HeadBf16, MatrixBf16, Panels, ScratchBf16, norm_rows};
    use sconce_kernels::isa::Isa;
    use sconce_kernels::rows::{Activation, Norm};

    /// Everything that multiplies bf16 here.
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

    /// `values`, rows of `width`, as panels, with what is not a number behind them.
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
                let (a, w) = (short(&numbers(seed, rows * inputs)), short(&numbers(!seed, outputs * inputs)));
                let bias = numbers(seed ^ 5, outputs);
                let want: Vec<f32> = plain_product(&a, &w, rows, outputs, inputs)
                    .iter().enumerate().map(|(place, x)| x + bias[place % outputs]).collect();
                let matrix = MatrixBf16::pack(unit, &w, outputs, inputs);
                let a = laid(&a, inputs);
                let mut padded = bias;
                padded.resize(matrix.outputs(), 0.0);
                let mut sums = Panels::default();
                sums.shape(rows, outputs);
                (0..rows).for_each(|row| sums.set(row, &vec![1.0; outputs]));
                let mut got = vec![0.0; rows * outputs];
                unit.with_tiles(|tiles| {
                    let finish = Finish::Add { bias: &padded, to: sums.all() };
                    let half = matrix.panels() / 2;
                    let (left, right) = finish.split(half);
                    matrix.multiply(tiles, &a, rows, half..matrix.panels(), right);
                    matrix.multiply(tiles, &a, rows, 0..half, left);
                });
                got.chunks_mut(outputs).enumerate().for_each(|(row, to)| sums.get(row, to));
                near(&got, &want.iter().map(|x| x + 1.0).collect::<Vec<_>>(), 1e-3)?;
                for activation in [Activation::Identity, Activation::Relu, Activation::Gelu, Activation::GeluTanh] {
                    let mut stored = Panels::default();
                    stored.shape(rows, outputs);
                    let to = Finish::Store { bias: &padded, activation, to: stored.all() };
                    unit.with_tiles(|tiles| matrix.multiply(tiles, &a, rows, 0..matrix.panels(), to));
                    let mut want = want.clone();
                    match activation {
                        Activation::Identity => {}
                        Activation::Relu => want.iter_mut().for_each(|x| *x = x.max(0.0)),
                        Activation::Gelu => want.iter_mut().for_each(|x| *x = sconce_kernels::math::gelu(*x)),
                        Activation::GeluTanh => want.iter_mut().for_each(|x| *x = sconce_kernels::math::gelu_tanh(*x)),
                    }
                    near(&read(&stored, rows, outputs), &want, 0.1)?;
                }
            }
        }

        #[test]
        fn attention_on_tiles_is_right(
            before in 0usize..40, length in 1usize..150, heads in 1usize..3, head in 1usize..70, biased: bool, seed: u64
        ) {
            for unit in units() {
                let panels = head.div_ceil(32);
                let wide = panels * 32;
                let hidden = heads * wide;
                // Numbers behind a head's width are zero.
                let mut rows = short(&numbers(seed, length * 3 * hidden));
                rows.iter_mut().enumerate().filter(|(place, _)| place % wide >= head).for_each(|(_, x)| *x = 0.0);
                let table = numbers(seed ^ 2, 2 * 160 - 1);
                let distances = biased.then_some(Distances { row: &table, positions: 160 });
                let at = Columns { stride: 3 * hidden, hidden, head, first: (heads - 1) * wide };
                let want = plain_attention(&rows, length, at, None, distances);
                let all: Vec<f32> = numbers(seed ^ 9, before * 3 * hidden).into_iter().chain(rows).collect();
                let rows = laid(&all, 3 * hidden);
                let query = (heads - 1) * panels;
                let task = HeadBf16 {
                    rows: &rows, start: before, length, panels, query,
                    key: heads * panels + query, value: 2 * heads * panels + query,
                    scale: 1.0 / (head as f32).sqrt(), distances,
                };
                let mut output = Panels::default();
                output.shape(before + length, wide);
                unit.with_tiles(|tiles| task.attend(tiles, &mut ScratchBf16::default(), &mut output, 0));
                let got: Vec<f32> = read(&output, before + length, wide)[before * wide..]
                    .chunks(wide).flat_map(|row| row[..head].to_vec()).collect();
                near(&got, &want, 0.02)?;
            }
        }

        #[test]
        fn norms_over_panels_are_right(rows in 1usize..40, width in 1usize..200, seed: u64) {
            for unit in units() {
                let norm = Norm { weight: numbers(seed ^ 3, width), shift: numbers(seed ^ 4, width), epsilon: 1e-5 };
                let mut want = numbers(seed, rows * width);
                let (mut x, mut rounded) = (Panels::default(), Panels::default());
                x.shape(rows, width);
                rounded.shape(rows, width);
                want.chunks(width).enumerate().for_each(|(row, values)| x.set(row, values));
                norm.apply(Isa::Plain, &mut want, width);
                norm_rows(unit, &norm, rows, &mut x, &mut rounded);
                let mut got = vec![0.0; rows * width];
                got.chunks_mut(width).enumerate().for_each(|(row, to)| x.get(row, to));
                near(&got, &want, 2e-4)?;
                near(&read(&rounded, rows, width), &short(&want), 0.02)?;
            }
        }
    }
}

/// What the system says of the processor, against what the tests above ran: they run whatever `available` lists.
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
        (Isa::Avx512, &wide),
        (Isa::Avx512Bf16, &["avx512_bf16"]),
        (Isa::Amx, &["amx_tile", "amx_bf16", "avx512_bf16"]),
    ] {
        let has = needs.iter().all(|flag| flags.contains(flag));
        assert!(!has || available.contains(&isa), "this processor has {isa}, and it was not run");
    }
}
