//! Fused row operations on the CPU, between matrix products.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, InplaceOp2, InplaceOp3, Layout, Result, Shape, bail};
use rayon::prelude::*;

use sconce_kernels::isa::{Isa, Vectorized};
use sconce_kernels::rope::RopeTable;
use sconce_kernels::rows::{Activation, Norm, NormStatistics, bias_activation, gate, normalize};

use crate::head_layout::HeadLayout;

/// Rows per task: enough to amortize its overhead.
const ROWS: usize = 16;

/// The contiguous f32 values of a tensor.
pub(super) fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage.as_slice::<f32>()?, layout.contiguous_offsets()) {
        (all, Some((start, end))) => Ok(&all[start..end]),
        (_, None) => bail!("a fused op was given a tensor that is not contiguous"),
    }
}

fn values_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
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
        let bias = values(bias, bias_layout)?;
        let x = values_mut(x, x_layout)?;
        let isa = Isa::best();
        x.par_chunks_mut(ROWS * bias.len()).for_each(|rows| bias_activation(isa, rows, bias, self.0));
        Ok(())
    }
}

/// `activation(gate) · up` of rows of gate and up values; the second tensor is their bias.
pub(super) struct Gate(pub(super) Activation);

impl CustomOp2 for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let bias = values(bias, bias_layout)?;
        let x = values(x, x_layout)?;
        let half = bias.len() / 2;
        let count = x.len() / bias.len();
        let mut output = vec![0.0; count * half];
        let isa = Isa::best();
        let chunks = output.par_chunks_mut(ROWS * half).zip(x.par_chunks(ROWS * bias.len()));
        chunks.for_each_init(Vec::new, |scratch, (to, rows)| {
            scratch.clear();
            scratch.extend_from_slice(rows);
            gate(isa, scratch, bias, self.0, to);
        });
        Ok((CpuStorage::F32(output), Shape::from((count, half))))
    }
}

/// `x = x + bias + residual`, normalized if there is a norm. The second tensor is the residual; the third holds bias,
/// weight and shift, or the bias alone.
pub(super) struct AddNorm {
    pub(super) norm: Option<(NormStatistics, f32)>,
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
        let residual = values(residual, residual_layout)?;
        let parameters = values(parameters, parameters_layout)?;
        let x = values_mut(x, x_layout)?;
        let width = if self.norm.is_some() { parameters.len() / 3 } else { parameters.len() };
        let isa = Isa::best();
        let chunks = x.par_chunks_mut(ROWS * width).zip(residual.par_chunks(ROWS * width));
        chunks.for_each(|(rows, residual)| isa.run(AddNorms(rows, residual, parameters, self.norm, width)));
        Ok(())
    }
}

struct AddNorms<'a>(&'a mut [f32], &'a [f32], &'a [f32], Option<(NormStatistics, f32)>, usize);

impl Vectorized for AddNorms<'_> {
    #[inline(always)]
    fn run(self) {
        let AddNorms(rows, residual, parameters, norm, width) = self;
        let (bias, rest) = parameters.split_at(width);
        for (row, residual) in rows.chunks_exact_mut(width).zip(residual.chunks_exact(width)) {
            for ((x, residual), bias) in row.iter_mut().zip(residual).zip(bias) {
                *x += residual + bias;
            }
            if let Some((statistics, epsilon)) = norm {
                let (weight, shift) = rest.split_at(width);
                normalize(row, statistics, weight, shift, epsilon);
            }
        }
    }
}

/// `x = norm(x + bias)` per row; the second tensor holds bias, weight and shift.
pub(super) struct RowNorm {
    pub(super) statistics: NormStatistics,
    pub(super) epsilon: f32,
}

impl InplaceOp2 for RowNorm {
    fn name(&self) -> &'static str {
        "row-norm"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_layout: &Layout,
        parameters: &CpuStorage,
        parameters_layout: &Layout,
    ) -> Result<()> {
        let parameters = values(parameters, parameters_layout)?;
        let x = values_mut(x, x_layout)?;
        let isa = Isa::best();
        x.par_chunks_mut(ROWS * parameters.len() / 3)
            .for_each(|rows| isa.run(RowNorms(self, rows, parameters)));
        Ok(())
    }
}

struct RowNorms<'a>(&'a RowNorm, &'a mut [f32], &'a [f32]);

impl Vectorized for RowNorms<'_> {
    #[inline(always)]
    fn run(self) {
        let RowNorms(norm, rows, parameters) = self;
        let width = parameters.len() / 3;
        let (bias, rest) = parameters.split_at(width);
        let (weight, shift) = rest.split_at(width);
        for row in rows.chunks_exact_mut(width) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            normalize(row, norm.statistics, weight, shift, norm.epsilon);
        }
    }
}

/// Adds the bias, and applies QK norms and rotary embedding; the second tensor is the bias.
pub(super) struct QkNormRope<'a> {
    pub(super) heads: HeadLayout,
    pub(super) norms: Option<&'a [Norm; 2]>,
    pub(super) rope_table: Option<Arc<RopeTable>>,
    /// The position of each row.
    pub(super) positions: Arc<[usize]>,
}

impl InplaceOp2 for QkNormRope<'_> {
    fn name(&self) -> &'static str {
        "prepare-heads"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<()> {
        let bias = values(bias, bias_layout)?;
        let x = values_mut(x, x_layout)?;
        let isa = Isa::best();
        x.par_chunks_mut(bias.len()).zip(self.positions.par_iter()).for_each(|(row, &position)| {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            self.heads.qk_norm_rope(isa, row, position, self.norms, self.rope_table.as_deref());
        });
        Ok(())
    }
}
