//! Building blocks of a layer on Candle: products, norms with residuals, activations, each fused and portable.

use candle_core::{DType, Result, Tensor};
use candle_nn::ops;
use sconce_kernels::rows::NormStatistics;

use super::fused::{AddNorm, BiasActivation, Gate, RowNorm};
use super::load::{LoadError, Loader};
use super::matrix::Matrix;
use crate::assembly;
use crate::description::{Activation, Description, NormPlacement};
use crate::head_layout;

/// How row operations and attention are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardPath {
    /// sconce's fused row ops and packed attention, on the CPU.
    Fused,
    /// Candle's own ops and padded attention, on any device.
    Portable,
}

/// A matrix. The bias is f32, and the next operation adds it.
pub(super) struct Linear {
    pub(super) weight: Matrix,
    pub(super) bias: Tensor,
}

impl Linear {
    pub(super) fn load(
        from: &Loader<'_>,
        linear: assembly::Linear,
    ) -> std::result::Result<Linear, LoadError> {
        let weight = from.matrix(linear.weight, linear.inputs)?;
        Ok(Linear { weight, bias: from.vector(linear.bias)? })
    }

    /// `x · weight`, without the bias: f32 in, f32 out.
    pub(super) fn product(&self, x: &Tensor) -> Result<Tensor> {
        self.weight.product(x)
    }
}

/// `norm(x + bias + residual)`, always in f32.
pub(super) struct Norm {
    bias: Tensor,
    weight: Tensor,
    shift: Tensor,
    joined: Tensor,
    statistics: NormStatistics,
    epsilon: f32,
}

impl Norm {
    /// Loads a norm with the bias of the preceding product.
    pub(super) fn load(
        from: &Loader<'_>,
        d: &Description,
        norm: assembly::Norm,
        bias: Option<&Tensor>,
    ) -> std::result::Result<Norm, LoadError> {
        let norm = head_layout::norm(d, norm);
        let bias = match bias {
            Some(bias) => bias.clone(),
            None => Tensor::zeros(norm.weight.len(), DType::F32, from.device())?,
        };
        let (statistics, epsilon) = (norm.statistics, norm.epsilon);
        let (weight, shift) = (from.vector(norm.weight)?, from.vector(norm.shift)?);
        let joined = Tensor::cat(&[&bias, &weight, &shift], 0)?;
        Ok(Norm { bias, weight, shift, joined, statistics, epsilon })
    }

    /// `norm(x + bias + residual)`.
    pub(super) fn of_sum(&self, path: ForwardPath, x: Tensor, residual: &Tensor) -> Result<Tensor> {
        match path {
            ForwardPath::Fused => {
                x.inplace_op3(
                    residual,
                    &self.joined,
                    &AddNorm { norm: Some((self.statistics, self.epsilon)) },
                )?;
                Ok(x)
            }
            ForwardPath::Portable => self.plain(&(x.broadcast_add(&self.bias)? + residual)?),
        }
    }

    /// `norm(x + bias)`, in place.
    pub(super) fn of_own(&self, path: ForwardPath, x: Tensor) -> Result<Tensor> {
        match path {
            ForwardPath::Fused => {
                x.inplace_op2(&self.joined, &RowNorm { statistics: self.statistics, epsilon: self.epsilon })?;
                Ok(x)
            }
            ForwardPath::Portable => self.plain(&x.broadcast_add(&self.bias)?),
        }
    }

    /// `norm(x + bias)`, without modifying `x`.
    pub(super) fn of(&self, path: ForwardPath, x: &Tensor) -> Result<Tensor> {
        match path {
            ForwardPath::Fused => self.of_own(path, x.copy()?),
            ForwardPath::Portable => self.of_own(path, x.clone()),
        }
    }

    /// `norm(x)` over the last dimension, with Candle's own ops.
    pub(super) fn plain(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.contiguous()?;
        match self.statistics {
            NormStatistics::MeanVariance => ops::layer_norm(&x, &self.weight, &self.shift, self.epsilon),
            NormStatistics::MeanSquare => ops::rms_norm(&x, &self.weight, self.epsilon),
        }
    }
}

/// What follows a block of a layer.
pub(super) enum AfterBlock {
    /// Post-norm: the norm of the sum with the residual.
    NormOfSum(Norm),
    /// Pre-norm: the sum with the residual; the tensor is the bias.
    Sum(Tensor),
    /// The residual plus the norm of the block's output.
    SumOfNorm(Norm),
}

impl AfterBlock {
    pub(super) fn load(
        from: &Loader<'_>,
        d: &Description,
        norm: Option<assembly::Norm>,
        bias: &Tensor,
    ) -> std::result::Result<AfterBlock, LoadError> {
        let Some(norm) = norm else { return Ok(AfterBlock::Sum(bias.clone())) };
        let norm = Norm::load(from, d, norm, Some(bias))?;
        Ok(match d.placement {
            NormPlacement::Post => AfterBlock::NormOfSum(norm),
            NormPlacement::Pre | NormPlacement::Both => AfterBlock::SumOfNorm(norm),
        })
    }

    pub(super) fn apply(&self, path: ForwardPath, x: Tensor, residual: &Tensor) -> Result<Tensor> {
        match (self, path) {
            (AfterBlock::NormOfSum(norm), _) => norm.of_sum(path, x, residual),
            (AfterBlock::Sum(bias), ForwardPath::Fused) => {
                x.inplace_op3(residual, bias, &AddNorm { norm: None })?;
                Ok(x)
            }
            (AfterBlock::Sum(bias), ForwardPath::Portable) => x.broadcast_add(bias)? + residual,
            (AfterBlock::SumOfNorm(norm), _) => norm.of_own(path, x)? + residual,
        }
    }
}

/// `activation(x + bias)`, or `activation(gate) · up` in a gated block.
pub(super) fn activate(path: ForwardPath, d: &Description, x: Tensor, bias: &Tensor) -> Result<Tensor> {
    let activation = d.activation.kernel();
    match path {
        ForwardPath::Fused if d.gated => x.apply_op2_no_bwd(bias, &Gate(activation)),
        ForwardPath::Fused => {
            x.inplace_op2(bias, &BiasActivation(activation))?;
            Ok(x)
        }
        ForwardPath::Portable => {
            let x = x.broadcast_add(bias)?;
            if !d.gated {
                return portable(d.activation, &x);
            }
            let half = |which: usize| x.narrow(1, which * d.intermediate, d.intermediate)?.contiguous();
            portable(d.activation, &half(0)?)? * half(1)?
        }
    }
}

fn portable(activation: Activation, x: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Gelu => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::Relu => x.relu(),
        Activation::Silu => x.silu(),
        Activation::QuickGelu => x * ops::sigmoid(&(x * 1.702)?)?,
    }
}
