//! The packed forward: one interpreter for every description, on any device of Candle's.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use sconce_core::batch::Batch;

use super::fused::{AddNorm, BiasActivation};
use super::load::{LoadError, Loader};
use super::packed::PackedAttention;
use super::padded::PaddedAttention;
use crate::description::{Activation, Description};
use crate::families::{EMBEDDING_NORM, POSITIONS, RELATIVE_BIAS, TYPES, WORDS};
use crate::relative::Relative;
use crate::weights::prefix;

/// How rows are computed between the matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Our fused row ops and packed attention, on the CPU.
    Fused,
    /// Candle's own ops and padded attention, on any device.
    Portable,
}

/// A loaded encoder without its pooling.
pub(super) struct Transformer {
    description: Description,
    device: Device,
    path: Path,
    words: Tensor,
    positions: Tensor,
    types: Option<Tensor>,
    embedding_norm: Norm,
    layers: Vec<Layer>,
    relative: Option<Arc<Relative>>,
}

struct Layer {
    qkv: Linear,
    output: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    output_norm: Norm,
}

/// A matrix `[inputs, outputs]` in the placement's dtype, laid out as the product reads it; its bias stays f32 and
/// is added by whoever comes next.
struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    /// `x · weight`, without the bias: f32 in, f32 out.
    fn product(&self, x: &Tensor) -> Result<Tensor> {
        x.to_dtype(self.weight.dtype())?.matmul(&self.weight)?.to_dtype(DType::F32)
    }
}

/// `norm(x + bias + residual)`, in f32 whatever the placement's dtype.
struct Norm {
    bias: Tensor,
    weight: Tensor,
    shift: Tensor,
    joined: Tensor,
    epsilon: f32,
}

impl Norm {
    fn apply(&self, path: Path, x: Tensor, residual: &Tensor) -> Result<Tensor> {
        match path {
            Path::Fused => {
                x.inplace_op3(residual, &self.joined, &AddNorm { epsilon: self.epsilon })?;
                Ok(x)
            }
            Path::Portable => {
                let x = (x.broadcast_add(&self.bias)? + residual)?;
                candle_nn::ops::layer_norm(&x, &self.weight, &self.shift, self.epsilon)
            }
        }
    }
}

enum Attention {
    Packed(PackedAttention),
    Padded(PaddedAttention),
}

impl Transformer {
    pub(super) fn load(
        description: &Description,
        path: Path,
        from: &Loader<'_>,
    ) -> std::result::Result<Transformer, LoadError> {
        let d = description;
        let names = &d.family.names;
        let prefix = prefix(from.tensors(), names.prefixes, WORDS)?;
        let full = |name: &str| format!("{prefix}{name}");
        let linear = |name: &str, out: usize, inputs: usize| -> std::result::Result<Linear, LoadError> {
            let weight = from.transposed(&format!("{name}.weight"), out, inputs)?;
            Ok(Linear { weight, bias: from.numbers(&format!("{name}.bias"), &[out])? })
        };
        let norm = |name: &str, bias: &Tensor| -> std::result::Result<Norm, LoadError> {
            let (weight, shift) = from.norm(name, d.hidden)?;
            let joined = Tensor::cat(&[bias, &weight, &shift], 0)?;
            Ok(Norm { bias: bias.clone(), weight, shift, joined, epsilon: d.epsilon as f32 })
        };
        let mut layers = Vec::with_capacity(d.layers);
        for layer in 0..d.layers {
            let name = |pattern: &str| full(&pattern.replace("{}", &layer.to_string()));
            let parts = [names.query, names.key, names.value];
            let parts: Vec<_> = parts
                .iter()
                .map(|part| linear(&name(part), d.hidden, d.hidden))
                .collect::<std::result::Result<_, _>>()?;
            let weights: Vec<_> = parts.iter().map(|part| &part.weight).collect();
            let biases: Vec<_> = parts.iter().map(|part| &part.bias).collect();
            let qkv =
                Linear { weight: Tensor::cat(&weights, 1)?.contiguous()?, bias: Tensor::cat(&biases, 0)? };
            let output = linear(&name(names.output), d.hidden, d.hidden)?;
            let up = linear(&name(names.up), d.intermediate, d.hidden)?;
            let down = linear(&name(names.down), d.hidden, d.intermediate)?;
            let attention_norm = norm(&name(names.attention_norm), &output.bias)?;
            let output_norm = norm(&name(names.output_norm), &down.bias)?;
            layers.push(Layer { qkv, output, attention_norm, up, down, output_norm });
        }
        let none = Tensor::zeros(d.hidden, DType::F32, from.device())?;
        let relative = match d.relative {
            Some(bias) => {
                let weights = from.host(&full(RELATIVE_BIAS), &[bias.buckets, d.heads])?;
                Some(Arc::new(Relative::new(bias, &weights, d.heads, d.positions.rows)))
            }
            None => None,
        };
        Ok(Transformer {
            description: d.clone(),
            device: from.device().clone(),
            path,
            words: from.tensor(&full(WORDS), &[d.vocabulary, d.hidden])?,
            positions: from.tensor(&full(POSITIONS), &[d.positions.rows, d.hidden])?,
            types: if d.types > 0 { Some(from.tensor(&full(TYPES), &[d.types, d.hidden])?) } else { None },
            embedding_norm: norm(&full(EMBEDDING_NORM), &none)?,
            layers,
            relative,
        })
    }

    pub(super) fn description(&self) -> &Description {
        &self.description
    }

    /// The last hidden state of every token: `[tokens, hidden]`, f32.
    pub(super) fn hidden(&self, batch: &Batch) -> Result<Tensor> {
        let d = &self.description;
        let attention = self.attention(batch)?;
        let mut x = self.embed(batch)?;
        for layer in &self.layers {
            let qkv = layer.qkv.product(&x)?;
            let mixed = match &attention {
                Attention::Packed(op) => qkv.apply_op2_no_bwd(&layer.qkv.bias, op)?,
                Attention::Padded(padded) => {
                    let qkv = qkv.broadcast_add(&layer.qkv.bias)?;
                    let part = |which: usize| qkv.narrow(1, which * d.hidden, d.hidden);
                    let queries = (part(0)? * (1.0 / (d.head() as f64).sqrt()))?;
                    let dtype = layer.qkv.weight.dtype();
                    padded.attend(
                        &queries.to_dtype(dtype)?,
                        &part(1)?.to_dtype(dtype)?,
                        &part(2)?.to_dtype(dtype)?,
                    )?
                }
            };
            x = layer.attention_norm.apply(self.path, layer.output.product(&mixed)?, &x)?;
            let wide = self.activate(layer.up.product(&x)?, &layer.up.bias)?;
            x = layer.output_norm.apply(self.path, layer.down.product(&wide)?, &x)?;
        }
        Ok(x)
    }

    fn attention(&self, batch: &Batch) -> Result<Attention> {
        let (heads, head) = (self.description.heads, self.description.head());
        match self.path {
            Path::Fused => Ok(Attention::Packed(PackedAttention {
                sequences: batch.sequences.as_slice().into(),
                heads,
                head,
                relative: self.relative.clone(),
            })),
            Path::Portable => {
                let relative = self.relative.as_deref();
                PaddedAttention::new(&batch.sequences, heads, head, relative, &self.device)
                    .map(Attention::Padded)
            }
        }
    }

    fn embed(&self, batch: &Batch) -> Result<Tensor> {
        let rows = |table: &Tensor, ids: Vec<u32>| {
            let ids = Tensor::new(ids, &self.device)?;
            table.index_select(&ids, 0)?.to_dtype(DType::F32)
        };
        let mut positions = Vec::with_capacity(batch.tokens());
        for sequence in &batch.sequences {
            let ids = &batch.ids[sequence.start..sequence.start + sequence.length];
            positions.extend(self.description.position_rows(ids));
        }
        let mut x = rows(&self.words, batch.ids.clone())?;
        if let Some(types) = &self.types {
            x = (x + rows(types, batch.types.clone())?)?;
        }
        self.embedding_norm.apply(self.path, x, &rows(&self.positions, positions)?)
    }

    fn activate(&self, x: Tensor, bias: &Tensor) -> Result<Tensor> {
        let activation = self.description.activation;
        match self.path {
            Path::Fused => {
                x.inplace_op2(bias, &BiasActivation(activation.kernel()))?;
                Ok(x)
            }
            Path::Portable => {
                let x = x.broadcast_add(bias)?;
                match activation {
                    Activation::Gelu => x.gelu_erf(),
                    Activation::GeluTanh => x.gelu(),
                    Activation::Relu => x.relu(),
                }
            }
        }
    }
}
