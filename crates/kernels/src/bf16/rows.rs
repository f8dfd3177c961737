//! Conversion of rows between f32 and panels of bf16. A row has one or more heads, each in whole panels.

use super::panels::{Panels, STEP};
use super::tiles::Bf16;
use super::vectors::{load, round, store, widen};

/// Rounds heads of `head_dim` values to bf16, into a row of `to`. Each is padded with zeros.
pub fn narrow_heads(_: Bf16, from: &[f32], head_dim: usize, to: &mut Panels<u16>, row: usize) {
    // SAFETY: a `Bf16` guarantees the vectors.
    unsafe { narrow_all(from, head_dim, to, row) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn narrow_all(from: &[f32], head_dim: usize, to: &mut Panels<u16>, row: usize) {
    for (head, values) in from.chunks_exact(head_dim).enumerate() {
        let first = head * head_dim.div_ceil(STEP);
        let (whole, rest) = values.as_chunks();
        for (values, panel) in whole.iter().zip(first..) {
            round(load(values), to.row_mut(panel, row));
        }
        if !rest.is_empty() {
            let mut padded = [0.0; STEP];
            padded[..rest.len()].copy_from_slice(rest);
            round(load(&padded), to.row_mut(first + whole.len(), row));
        }
    }
}

/// Converts the first heads of a row of `from` to f32, `head_dim` values each.
pub fn widen_heads(_: Bf16, from: &Panels<u16>, row: usize, head_dim: usize, to: &mut [f32]) {
    // SAFETY: a `Bf16` guarantees the vectors.
    unsafe { widen_all(from, row, head_dim, to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn widen_all(from: &Panels<u16>, row: usize, head_dim: usize, to: &mut [f32]) {
    for (head, values) in to.chunks_exact_mut(head_dim).enumerate() {
        let first = head * head_dim.div_ceil(STEP);
        let (whole, rest) = values.as_chunks_mut();
        let last = first + whole.len();
        for (values, panel) in whole.iter_mut().zip(first..) {
            store(widen(from.row(panel, row)), values);
        }
        if !rest.is_empty() {
            let mut padded = [0.0; STEP];
            store(widen(from.row(last, row)), &mut padded);
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}
