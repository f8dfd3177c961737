//! Two fused row operations on the CPU: bias and activation, and bias, residual and layer norm.

use candle_core::{CpuStorage, InplaceOp2, InplaceOp3, Layout, Result, bail};
use rayon::prelude::*;

use super::vector::{dispatch, gelu, gelu_tanh};
use crate::description::Activation;

/// Rows that one task takes: enough to forget the cost of handing it over.
const ROWS: usize = 16;
/// Partial sums kept side by side, so that a sum over a row is vector code.
const LANES: usize = 16;

/// The contiguous f32 numbers of a tensor.
pub(super) fn numbers<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage.as_slice::<f32>()?, layout.contiguous_offsets()) {
        (all, Some((start, end))) => Ok(&all[start..end]),
        (_, None) => bail!("a fused op was given a tensor that is not contiguous"),
    }
}

fn numbers_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(all), Some((start, end))) => Ok(&mut all[start..end]),
        _ => bail!("a fused op was given a tensor that is not contiguous f32"),
    }
}

/// `x = activation(x + bias)`, row by row.
pub(super) struct BiasActivation(pub(super) Activation);

impl InplaceOp2 for BiasActivation {
    fn name(&self) -> &'static str {
        "bias-activation"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<()> {
        let bias = numbers(bias, bias_layout)?;
        let x = numbers_mut(x, x_layout)?;
        x.par_chunks_mut(ROWS * bias.len()).for_each(|rows| match self.0 {
            Activation::Gelu => dispatch(|| each(rows, bias, gelu)),
            Activation::GeluTanh => dispatch(|| each(rows, bias, gelu_tanh)),
            Activation::Relu => dispatch(|| each(rows, bias, |x| x.max(0.0))),
        });
        Ok(())
    }
}

#[inline(always)]
fn each(rows: &mut [f32], bias: &[f32], activation: impl Fn(f32) -> f32) {
    for row in rows.chunks_exact_mut(bias.len()) {
        for (x, bias) in row.iter_mut().zip(bias) {
            *x = activation(*x + bias);
        }
    }
}

/// `x = norm(x + bias + residual) · weight + shift`, row by row; the second tensor is the residual, the
/// third holds bias, weight and shift one after the other.
pub(super) struct AddNorm {
    pub(super) epsilon: f32,
}

impl InplaceOp3 for AddNorm {
    fn name(&self) -> &'static str {
        "add-norm"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_layout: &Layout,
        residual: &CpuStorage,
        residual_layout: &Layout,
        parameters: &CpuStorage,
        parameters_layout: &Layout,
    ) -> Result<()> {
        let residual = numbers(residual, residual_layout)?;
        let parameters = numbers(parameters, parameters_layout)?;
        let x = numbers_mut(x, x_layout)?;
        let width = parameters.len() / 3;
        let chunks = x.par_chunks_mut(ROWS * width).zip(residual.par_chunks(ROWS * width));
        chunks.for_each(|(rows, residual)| {
            dispatch(|| {
                for (row, residual) in rows.chunks_exact_mut(width).zip(residual.chunks_exact(width)) {
                    add_norm(row, residual, parameters, self.epsilon);
                }
            });
        });
        Ok(())
    }
}

#[inline(always)]
fn add_norm(row: &mut [f32], residual: &[f32], parameters: &[f32], epsilon: f32) {
    let width = row.len();
    let (bias, rest) = parameters.split_at(width);
    let (weight, shift) = rest.split_at(width);
    for ((x, residual), bias) in row.iter_mut().zip(residual).zip(bias) {
        *x += residual + bias;
    }
    let mean = sum(row, |x| x) / width as f32;
    let variance = sum(row, |x| (x - mean) * (x - mean)) / width as f32;
    let scale = 1.0 / (variance + epsilon).sqrt();
    for ((x, weight), shift) in row.iter_mut().zip(weight).zip(shift) {
        *x = (*x - mean) * scale * weight + shift;
    }
}

/// The sum of `f` over `row`, in several partial sums.
#[inline(always)]
pub(super) fn sum(row: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += f(*x);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|x| f(*x)).sum::<f32>()
}

/// The largest number of `row`.
#[inline(always)]
pub(super) fn largest(row: &[f32]) -> f32 {
    let mut tops = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (top, &x) in tops.iter_mut().zip(chunk) {
            *top = if x > *top { x } else { *top };
        }
    }
    tops.iter().chain(rest).fold(f32::NEG_INFINITY, |top, &x| if x > top { x } else { top })
}
