//! Quantized products of every format against those of the dequantized values.

use super::*;
use crate::weights::uniform;

const INPUTS: usize = 512;

fn random(stored: StoredType, outputs: usize, state: &mut u64) -> StoredTensor {
    let length = stored.bytes_of(outputs * INPUTS).expect("whole blocks");
    // Bytes below 0x7c are never the exponent of an infinite scale.
    let bytes = (0..length).map(|_| (uniform(state).abs() * 120.0) as u8).collect();
    StoredTensor { stored, shape: vec![outputs, INPUTS], bytes }
}

fn rows(count: usize, state: &mut u64) -> Vec<f32> {
    (0..count * INPUTS).map(|_| uniform(state)).collect()
}

fn product(matrix: &Matrix, x: &[f32]) -> Vec<f32> {
    let x = Tensor::from_vec(x.to_vec(), ((), INPUTS), &Device::Cpu).expect("rows");
    matrix.product(&x).expect("a product").flatten_all().expect("rows").to_vec1().expect("f32")
}

/// Checks products of `x` with `matrix`, whose values are `values`. On the CPU, Candle rounds the activations of a block to
/// 8 bits, by at most 1/254 of the largest. A sum of products is off by at most that, times the sum of the weights.
/// Minimums are multiplied by sums in f16, which adds less than as much again.
fn check(name: &str, matrix: &Matrix, values: &[f32], x: &[f32]) {
    let got = product(matrix, x);
    let outputs = values.len() / INPUTS;
    assert_eq!(got.len(), x.len() / INPUTS * outputs);
    let (mut worst, mut error, mut size) = (0.0f64, 0.0, 0.0);
    for (x, got) in x.chunks_exact(INPUTS).zip(got.chunks_exact(outputs)) {
        for (weights, got) in values.chunks_exact(INPUTS).zip(got) {
            let terms = weights.iter().zip(x).map(|(w, x)| (f64::from(*w), f64::from(*x)));
            let want: f64 = terms.clone().map(|(w, x)| w * x).sum();
            let sizes: f64 = weights.iter().map(|w| f64::from(w.abs())).sum();
            let apart = (f64::from(*got) - want).abs();
            worst = worst.max(apart / (sizes / 127.0));
            error += apart * apart;
            size += want * want;
        }
    }
    assert!(worst < 1.0, "{name}: {worst} of the bound");
    // Errors of single activations cancel out.
    assert!(error < 1e-3 * size, "{name}: {}", error / size);
}

#[test]
fn products_of_every_format_are_those_of_its_values() {
    let mut state = 5;
    for stored in StoredType::ALL.into_iter().filter(|stored| stored.is_quantized()) {
        let tensor = random(stored, 20, &mut state);
        let values = tensor.dequantize();
        let matrix = Matrix::stacked(vec![tensor], &Device::Cpu, DType::F32).expect("a matrix");
        assert_eq!(matrix.is_quantized(), ggml_dtype(stored).is_some(), "{stored}");
        for count in [1, 3, 40] {
            check(&format!("{stored} {count}"), &matrix, &values, &rows(count, &mut state));
        }
    }
}

#[test]
fn parts_in_several_formats_follow_each_other() {
    let mut state = 8;
    let formats = [StoredType::Q4_K, StoredType::Q4_K, StoredType::IQ4_XS, StoredType::Q6_K];
    let parts: Vec<StoredTensor> = formats
        .iter()
        .zip([16, 4, 5, 8])
        .map(|(stored, outputs)| random(*stored, outputs, &mut state))
        .collect();
    let values: Vec<f32> = parts.iter().flat_map(StoredTensor::dequantize).collect();
    let matrix = Matrix::stacked(parts, &Device::Cpu, DType::F32).expect("a matrix");
    assert_eq!(matrix.0.len(), 3, "equal formats are one part");
    // Scales of the formats differ, so each part is checked on its own.
    let x = rows(3, &mut state);
    let got = product(&matrix, &x);
    let (mut first, outputs) = (0, values.len() / INPUTS);
    for (part, count) in matrix.0.into_iter().zip([20, 5, 8]) {
        let own = &values[first * INPUTS..][..count * INPUTS];
        let part = Matrix(vec![part]);
        check("a part", &part, own, &x);
        let of_part = product(&part, &x);
        for (got, of_part) in got.chunks_exact(outputs).zip(of_part.chunks_exact(count)) {
            assert_eq!(got[first..first + count], *of_part);
        }
        first += count;
    }
}

#[test]
fn a_view_of_rows_is_multiplied_from_its_start() {
    let mut state = 13;
    let tensor = random(StoredType::Q8_0, 8, &mut state);
    let matrix = Matrix::stacked(vec![tensor], &Device::Cpu, DType::F32).expect("a matrix");
    let x = rows(4, &mut state);
    let view = Tensor::from_vec(x.clone(), ((), INPUTS), &Device::Cpu).expect("rows").narrow(0, 1, 2);
    let got = matrix.product(&view.expect("a view")).expect("a product");
    let got: Vec<f32> = got.flatten_all().expect("rows").to_vec1().expect("f32");
    assert_eq!(got, product(&matrix, &x[INPUTS..3 * INPUTS]));
}

#[test]
fn looked_up_rows_are_those_of_the_values_times_the_factor() {
    let mut state = 3;
    for stored in StoredType::ALL {
        let tensor = random(stored, 9, &mut state);
        let values = tensor.dequantize();
        let Some(rows) = quantized(&tensor, &Device::Cpu).expect("a tensor") else { continue };
        let table = Table::Quantized(Arc::new(rows), 2.0);
        let got = table.rows(&Tensor::new(&[8u32, 0, 3], &Device::Cpu).expect("ids")).expect("rows");
        for (got, id) in got.to_vec2::<f32>().expect("rows").iter().zip([8, 0, 3]) {
            let want = values[id * INPUTS..][..INPUTS].iter().map(|value| 2.0 * value);
            assert!(got.iter().copied().eq(want), "{stored}");
        }
        assert!(table.tied().is_some_and(|matrix| matrix.is_quantized()));
    }
}
