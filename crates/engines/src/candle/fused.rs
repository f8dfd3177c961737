//! Two fused row operations on the CPU: bias and activation, and bias, residual and layer norm.

use candle_core::{CpuStorage, InplaceOp2, InplaceOp3, Layout, Result, bail};
use rayon::prelude::*;

use sconce_kernels::isa::Isa;
use sconce_kernels::rows::{Activation, bias_activation, normalize};

/// Rows that one task takes: enough to forget the cost of handing it over.
const ROWS: usize = 16;

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
        let isa = Isa::best();
        x.par_chunks_mut(ROWS * bias.len()).for_each(|rows| isa.run(|| bias_activation(rows, bias, self.0)));
        Ok(())
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
        let isa = Isa::best();
        let chunks = x.par_chunks_mut(ROWS * width).zip(residual.par_chunks(ROWS * width));
        chunks.for_each(|(rows, residual)| {
            isa.run(|| {
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
    let (bias, rest) = parameters.split_at(row.len());
    let (weight, shift) = rest.split_at(row.len());
    for ((x, residual), bias) in row.iter_mut().zip(residual).zip(bias) {
        *x += residual + bias;
    }
    normalize(row, weight, shift, epsilon);
}
