//! Products and rows of every format on every instruction set.

use half::f16;

use super::*;
use crate::columns::ColumnsMut;
use crate::gemm::{PackedRows, PanelScratch, Store};
use crate::isa::Isa;
use crate::rows::Activation;
use crate::team::Team;

const FORMATS: [QuantFormat; 13] = [
    format(CodeWidth::Four, 32, 1, 8, false),
    format(CodeWidth::Four, 32, 1, 0, true),
    format(CodeWidth::Four, 32, 8, 0, true),
    format(CodeWidth::Six, 32, 1, 16, false),
    format(CodeWidth::Six, 32, 1, 0, true),
    format(CodeWidth::Six, 32, 8, 0, true),
    format(CodeWidth::Six, 16, 16, 32, false),
    format(CodeWidth::Eight, 32, 1, 128, false),
    format(CodeWidth::Eight, 32, 1, 0, true),
    format(CodeWidth::Eight, 32, 8, 0, true),
    format(CodeWidth::Eight, 32, 8, 128, false),
    format(CodeWidth::Eight, 16, 16, 128, false),
    format(CodeWidth::Eight, 16, 16, 0, true),
];

const fn format(width: CodeWidth, group: usize, groups: usize, zero: u8, has_minimums: bool) -> QuantFormat {
    QuantFormat { width, group, groups, zero, has_minimums }
}

struct Random(u32);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % end
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        self.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0
    }
}

fn row(random: &mut Random, format: QuantFormat, inputs: usize) -> QuantRow {
    let (groups, blocks) = (inputs / format.group, inputs / format.block());
    let (codes, lowest) = match format.width {
        CodeWidth::Four => (16, 0),
        CodeWidth::Six => (64, -63),
        CodeWidth::Eight => (256, -63),
    };
    let integers = if format.groups > 1 { groups } else { 0 };
    let minimums = if format.has_minimums { blocks } else { 0 };
    QuantRow {
        codes: (0..inputs).map(|_| random.below(codes) as u8).collect(),
        group_scales: (0..integers).map(|_| (random.below(127) as i8 - 63).max(lowest)).collect(),
        group_minimums: (0..integers * usize::from(format.has_minimums))
            .map(|_| random.below(64) as u8)
            .collect(),
        scales: (0..blocks).map(|_| f16::from_f32(random.float()).to_bits()).collect(),
        minimums: (0..minimums).map(|_| f16::from_f32(random.float()).to_bits()).collect(),
    }
}

fn matrix(isa: Isa, format: QuantFormat, outputs: usize, inputs: usize) -> QuantMatrix {
    let mut random = Random(7);
    let rows: Vec<QuantRow> = (0..outputs).map(|_| row(&mut random, format, inputs)).collect();
    QuantMatrix::pack((isa, &Team::new(3)), format, outputs, inputs, |output, to| {
        to.clone_from(&rows[output]);
    })
}

/// The weights, from the definition of the format.
fn weights(format: QuantFormat, outputs: usize, inputs: usize) -> Vec<Vec<f32>> {
    let mut random = Random(7);
    let of = |bits: u16| f16::from_bits(bits).to_f32();
    let weight = |row: &QuantRow, input: usize| {
        let (group, block) = (input / format.group, input / format.block());
        let code = f32::from(row.codes[input]);
        let by = row.group_scales.get(group).map_or(1.0, |scale| f32::from(*scale));
        let scale = of(row.scales[block]) * by;
        if format.has_minimums {
            let by = row.group_minimums.get(group).map_or(1.0, |minimum| f32::from(*minimum));
            scale * code - of(row.minimums[block]) * by
        } else {
            scale * (code - f32::from(format.zero))
        }
    };
    let rows = (0..outputs).map(|_| row(&mut random, format, inputs)).collect::<Vec<_>>();
    rows.iter().map(|row| (0..inputs).map(|input| weight(row, input)).collect()).collect()
}

/// Products with rows of 16 bits, with those rows of 8 bits that the matrix takes, and with rows of f32 where they are faster.
fn products(matrix: &QuantMatrix, values: &[f32], count: usize) -> Vec<Vec<f32>> {
    let (isa, inputs, panels) = (matrix.isa, matrix.inputs(), 0..matrix.panels());
    let bias = vec![0.0; matrix.outputs()];
    let taken = [16, 8, 32].into_iter().filter(|width| *width < 32 || QuantMatrix::takes_floats(isa));
    let product = |width| {
        let mut products = vec![f32::NAN; count * matrix.outputs()];
        let to = ColumnsMut::new(&mut products, matrix.outputs());
        let to = &mut Store { bias: &bias, activation: Activation::Identity, to };
        match (width, matrix.takes_byte_blocks()) {
            (16, _) => {
                let rows = QuantizedRows::quantize(isa, values, inputs, count, inputs);
                matrix.multiply(&rows, panels.clone(), 0, to);
            }
            (8, false) => {
                let rows = ByteRows::quantize(isa, values, inputs, count, inputs);
                matrix.multiply_bytes(&rows, panels.clone(), 0, to);
            }
            (8, true) => {
                let rows = ByteBlocks::quantize(isa, values, inputs, count, inputs);
                matrix.multiply_byte_blocks(&rows, panels.clone(), 0, to);
            }
            _ => {
                let mut rows = PackedRows::default();
                rows.pack((isa, &Team::single()), (values, inputs, count), inputs);
                matrix.multiply_floats(&rows, panels.clone(), 0, &mut PanelScratch::default(), to);
            }
        }
        products
    };
    taken.map(product).collect()
}

#[test]
fn rows_of_a_matrix_are_its_weights_bit_for_bit() {
    // The threads of a team pack 128 outputs at a time.
    for (format, outputs) in FORMATS.into_iter().flat_map(|format| [(format, 37), (format, 300)]) {
        let matrix = matrix(Isa::best(), format, outputs, 512);
        for (output, wanted) in weights(format, outputs, 512).iter().enumerate() {
            let mut got = vec![f32::NAN; 512];
            matrix.row(output, &mut got);
            assert_eq!(got, *wanted, "{format:?} {output}");
        }
    }
}

#[test]
fn products_on_every_instruction_set_are_those_of_the_weights() {
    let (outputs, inputs) = (37, 512);
    let mut random = Random(3);
    // Integers up to 127 with 127 in every group are quantized exactly.
    let values: Vec<f32> = (0..33 * inputs)
        .map(|at| if at % 32 == 5 { 127.0 } else { random.below(255) as f32 - 127.0 })
        .collect();
    for format in FORMATS {
        let weights = weights(format, outputs, inputs);
        for isa in Isa::available() {
            let matrix = matrix(isa, format, outputs, inputs);
            for count in [1, 2, 3, 7, 8, 19, 33] {
                let all = products(&matrix, &values, count);
                let rows = values.chunks_exact(inputs).take(count).enumerate();
                for (got, (row, values)) in all.iter().flat_map(|got| rows.clone().map(move |row| (got, row)))
                {
                    for (output, weights) in weights.iter().enumerate() {
                        let terms = values.iter().zip(weights).map(|(x, y)| f64::from(*x) * f64::from(*y));
                        let size: f64 = terms.clone().map(f64::abs).sum();
                        let wanted: f64 = terms.sum();
                        let off = (f64::from(got[row * outputs + output]) - wanted).abs();
                        assert!(off < 1e-6 * size, "{isa} {format:?} {row} {output}: {off} of {size}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_alone_equals_the_same_row_in_a_batch_bit_for_bit() {
    let inputs = 256;
    let mut random = Random(11);
    let values: Vec<f32> = (0..21 * inputs).map(|_| random.float()).collect();
    for format in FORMATS {
        for isa in Isa::available() {
            let matrix = matrix(isa, format, 20, inputs);
            let all = products(&matrix, &values, 21);
            for row in 0..21 {
                let alone = products(&matrix, &values[row * inputs..], 1);
                let together = all.iter().map(|all| all[row * 20..][..20].to_vec()).collect::<Vec<_>>();
                assert_eq!(alone, together, "{isa} {format:?} {row}");
            }
        }
    }
}

#[test]
fn products_of_any_number_of_rows_are_those_of_the_weights_and_of_each_row_alone() {
    for format in FORMATS {
        for (outputs, inputs) in [(1, format.block()), (17, 3 * format.block()), (40, 1280)] {
            let mut random = Random(13);
            let values: Vec<f32> = (0..130 * inputs).map(|_| random.float()).collect();
            let weights = weights(format, outputs, inputs);
            for isa in Isa::available() {
                let matrix = matrix(isa, format, outputs, inputs);
                let of = |first: usize, count: usize| products(&matrix, &values[first * inputs..], count);
                let mut alone = [const { Vec::new() }; 3];
                for (row, values) in values.chunks_exact(inputs).enumerate() {
                    // A code of eight bits is off by at most half of a 127th of the largest value.
                    let bounds = [1e-4, 1e-2, 1e-6];
                    for ((got, most), alone) in of(row, 1).into_iter().zip(bounds).zip(&mut alone) {
                        for (got, weights) in got.iter().zip(&weights) {
                            let terms =
                                values.iter().zip(weights).map(|(x, y)| f64::from(*x) * f64::from(*y));
                            let size: f64 = terms.clone().map(f64::abs).sum();
                            let off = (f64::from(*got) - terms.sum::<f64>()).abs();
                            assert!(off < most * size, "{isa} {format:?} {row}: {off} of {size}");
                        }
                        alone.extend(got);
                    }
                }
                for count in [2, 9, 15, 16, 17, 31, 32, 48, 63, 130] {
                    let all = of(0, count);
                    let alone = alone.iter().take(all.len()).map(|alone| &alone[..count * outputs]);
                    assert_eq!(all, alone.collect::<Vec<_>>(), "{isa} {format:?} {count} rows");
                }
            }
        }
    }
}

#[test]
fn vectors_of_all_widths_have_the_same_products_bit_for_bit() {
    let mut random = Random(17);
    let values: Vec<f32> = (0..37 * 512).map(|_| random.float()).collect();
    let isas = [Isa::Avx512, Isa::Avx512Bf16].map(|isa| isa.is_available().then_some(isa));
    for format in FORMATS {
        let all = isas.iter().flatten().map(|&isa| products(&matrix(isa, format, 37, 512), &values, 37));
        let all: Vec<_> = all.collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{format:?}");
    }
}

#[test]
fn quantized_rows_are_within_half_a_step() {
    let mut random = Random(5);
    let values: Vec<f32> = (0..64).map(|_| random.float() * 3.0).collect();
    // The identity shows the rows themselves.
    let format = format(CodeWidth::Eight, 32, 1, 128, false);
    let identity = |isa| {
        QuantMatrix::pack((isa, &Team::single()), format, 64, 64, |output, to| {
            to.codes = (0..64).map(|input| 128 + u8::from(input == output)).collect();
            to.scales = vec![f16::ONE.to_bits(); 2];
        })
    };
    for isa in Isa::available() {
        let products = products(&identity(isa), &values, 1);
        let (words, bytes) = (&products[0], &products[1]);
        let largest =
            |values: &[f32]| values.iter().map(|x| x.abs()).max_by(f32::total_cmp).expect("some values");
        for (got, x) in words.iter().zip(&values) {
            assert!((got - x).abs() <= largest(&values) / 65_000.0, "{isa}: {got} for {x}");
        }
        // Of each block, the largest has the code 127.
        let block = if identity(isa).takes_byte_blocks() { 256 } else { 32 };
        for (got, values) in bytes.chunks(block).zip(values.chunks(block)) {
            for (got, x) in got.iter().zip(values) {
                assert!((got - x).abs() <= largest(values) / 253.9, "{isa}: {got} for {x}");
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_stay_visible() {
    for isa in Isa::available() {
        for invalid in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 2 * 256];
            values[256 + 100] = invalid;
            for format in FORMATS {
                let matrix = matrix(isa, format, 16, 256);
                for (got, is_float) in products(&matrix, &values, 2).iter().zip([false, false, true]) {
                    assert!(got[..16].iter().all(|x| x.is_finite()), "{isa} {format:?}");
                    let is_visible = |x: &f32| if is_float { !x.is_finite() } else { x.is_nan() };
                    assert!(got[16..].iter().all(is_visible), "{isa} {format:?}");
                }
            }
        }
    }
}

#[test]
fn rows_of_zeros_give_zeros() {
    for isa in Isa::available() {
        for format in FORMATS {
            let products = products(&matrix(isa, format, 5, 256), &[0.0; 256], 1);
            assert!(products.iter().flatten().all(|x| *x == 0.0));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod widened {
    use super::*;
    use crate::bf16::{Bf16, EpilogueBf16, InputBf16, Panels, narrow};
    use crate::buffer::Buffer;

    const INPUTS: usize = 512;

    /// The product of the first `rows` rows of `a` with a matrix, in panels from `first` on.
    fn product(unit: Bf16, matrix: &QuantMatrix, a: &[Vec<f32>], rows: usize, first: usize) -> Vec<Vec<f32>> {
        let width = first * 32 + matrix.outputs();
        let (mut input, mut output) = (Panels::default(), Panels::default());
        input.shape(rows, INPUTS);
        output.shape(rows, width);
        for (row, values) in a.iter().enumerate().take(rows) {
            input.set(row, &values.iter().map(|x| narrow(*x)).collect::<Vec<u16>>());
            output.set(row, &vec![0.0; width]);
        }
        let (bias, mut widened) = (vec![0.0; width], Buffer::default());
        let mut epilogue = EpilogueBf16::Add { bias: &bias, to: output.all() };
        let panels = 0..matrix.outputs() / 32;
        unit.with_tiles(|tiles| {
            let input = InputBf16 { tiles, a: &input, rows };
            matrix.multiply_bf16(input, panels, first, &mut epilogue, &mut widened);
        });
        let mut result = vec![vec![0.0; width]; rows];
        (0..rows).for_each(|row| output.get(row, &mut result[row]));
        result.into_iter().map(|row| row[first * 32..].to_vec()).collect()
    }

    #[test]
    fn bf16_rows_times_widened_weights_match_the_definition() {
        let mut random = Random(3);
        let a: Vec<Vec<f32>> = (0..70).map(|_| (0..INPUTS).map(|_| random.float()).collect()).collect();
        for isa in [Isa::Amx, Isa::Avx512Bf16] {
            let Some(unit) = Bf16::of(isa) else { continue };
            for format in FORMATS {
                let matrix = matrix(isa, format, 96, INPUTS);
                let weights = weights(format, 96, INPUTS);
                let products = product(unit, &matrix, &a, 70, 0);
                for (row, products) in a.iter().zip(&products) {
                    for (weights, product) in weights.iter().zip(products) {
                        let terms = row.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
                        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                        // Both factors are rounded to eight bits.
                        let error = (f64::from(*product) - sum).abs();
                        assert!(error <= size / 128.0, "{isa} {format:?}: {product} instead of {sum}");
                    }
                }
                for (rows, first) in [(1, 0), (17, 1), (33, 2)] {
                    let part = product(unit, &matrix, &a, rows, first);
                    assert_eq!(
                        part,
                        products[..rows],
                        "{isa} {format:?}: {rows} rows, {first} panels before"
                    );
                }
            }
        }
    }
}
