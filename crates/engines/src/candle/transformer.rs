//! The packed forward: one interpreter for every description, on any device of Candle's.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use sconce_core::batch::{Batch, Sequence};
use sconce_kernels::isa::Isa;
use sconce_kernels::{rope, rows};

use super::fused::Prepare;
use super::layers::{After, Linear, Norm, Path, activate};
use super::load::{LoadError, Loader};
use super::packed::PackedAttention;
use super::padded::PaddedAttention;
use super::places::PaddedPlaces;
use super::turning::Turning;
use crate::assembly::Assembly;
use crate::description::{Description, Relative, Span};
use crate::parts::disentangled::PackedPlaces;
use crate::parts::rope::Turns;
use crate::parts::tables::Biases;
use crate::queries::{self, Heads};

/// A loaded encoder without its pooling.
pub(super) struct Transformer {
    description: Description,
    device: Device,
    path: Path,
    words: Tensor,
    positions: Option<Tensor>,
    types: Option<Tensor>,
    embedding_norm: Option<Norm>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    biases: Option<Arc<Biases>>,
    /// The rotations of layers that are not local, and of those that are.
    turns: [Option<Turns>; 2],
}

struct Layer {
    is_local: bool,
    qkv: Linear,
    head_norms: Option<HeadNorms>,
    places: Option<LayerPlaces>,
    output: Linear,
    before_attention: Option<Norm>,
    after_attention: After,
    up: Linear,
    down: Linear,
    before_output: Option<Norm>,
    after_output: After,
}

enum HeadNorms {
    Fused(Box<[rows::Norm; 2]>),
    Portable(Box<[Norm; 2]>),
}

enum LayerPlaces {
    Packed(Arc<PackedPlaces>),
    Padded(PaddedPlaces),
}

/// What every layer of one kind needs for a batch.
enum Attention {
    Packed { angles: Option<Arc<rope::Angles>>, span: Span },
    Padded { padded: PaddedAttention, turning: Option<Turning> },
}

impl Transformer {
    pub(super) fn load(
        description: &Description,
        path: Path,
        from: &Loader<'_>,
    ) -> std::result::Result<Transformer, LoadError> {
        let d = description;
        let assembly = Assembly::new(d, from.tensors())?;
        let mut layers = Vec::with_capacity(d.layers);
        for layer in 0..d.layers {
            layers.push(Layer::load(d, &assembly, layer, path, from)?);
        }
        assembly.finish()?;
        let table = |rows: Option<Vec<f32>>| rows.map(|rows| from.table(rows, d.hidden)).transpose();
        let norm = |norm: Option<_>| norm.map(|norm| Norm::load(from, d, norm, None)).transpose();
        let turns = |span: &Span| span.rope.as_ref().map(Turns::new);
        Ok(Transformer {
            description: d.clone(),
            device: from.device().clone(),
            path,
            words: from.table(assembly.words()?, d.hidden)?,
            positions: table(assembly.positions()?)?,
            types: table(assembly.types()?)?,
            embedding_norm: norm(assembly.embedding_norm()?)?,
            layers,
            final_norm: norm(assembly.final_norm()?)?,
            biases: assembly.biases()?.map(Arc::new),
            turns: [turns(&d.global), d.local.as_ref().and_then(turns)],
        })
    }

    pub(super) fn description(&self) -> &Description {
        &self.description
    }

    /// The last hidden state of every token: `[tokens, hidden]`, f32.
    pub(super) fn hidden(&self, batch: &Batch) -> Result<Tensor> {
        let (d, path) = (&self.description, self.path);
        let sequences: Arc<[Sequence]> = batch.sequences.as_slice().into();
        let positions: Arc<[usize]> = sequences.iter().flat_map(|s| 0..s.length).collect();
        let attention = [self.attention(batch, false)?, self.attention(batch, true)?];
        let mut x = self.embed(batch)?;
        for layer in &self.layers {
            let normed = layer.before_attention.as_ref().map(|norm| norm.of(path, &x)).transpose()?;
            let qkv = layer.qkv.product(normed.as_ref().unwrap_or(&x))?;
            let mixed = match &attention[usize::from(layer.is_local)] {
                Some(Attention::Packed { angles, span }) => {
                    self.packed(layer, &qkv, angles.as_ref(), span, &sequences, &positions)?
                }
                Some(Attention::Padded { padded, turning }) => {
                    self.padded(layer, &qkv, padded, turning.as_ref())?
                }
                None => candle_core::bail!("a local layer in a model that has none"),
            };
            x = layer.after_attention.apply(path, layer.output.product(&mixed)?, &x)?;
            let normed = layer.before_output.as_ref().map(|norm| norm.of(path, &x)).transpose()?;
            let wide = layer.up.product(normed.as_ref().unwrap_or(&x))?;
            let wide = activate(path, d, wide, &layer.up.bias)?;
            x = layer.after_output.apply(path, layer.down.product(&wide)?, &x)?;
        }
        match &self.final_norm {
            Some(norm) => norm.of_own(path, x),
            None => Ok(x),
        }
    }

    fn packed(
        &self,
        layer: &Layer,
        qkv: &Tensor,
        angles: Option<&Arc<rope::Angles>>,
        span: &Span,
        sequences: &Arc<[Sequence]>,
        positions: &Arc<[usize]>,
    ) -> Result<Tensor> {
        let d = &self.description;
        let heads = Heads::of(d);
        let norms = layer.head_norms.as_ref().and_then(|norms| match norms {
            HeadNorms::Fused(norms) => Some(&**norms),
            HeadNorms::Portable(_) => None,
        });
        let places = layer.places.as_ref().and_then(|places| match places {
            LayerPlaces::Packed(places) => Some(Arc::clone(places)),
            LayerPlaces::Padded(_) => None,
        });
        let biased = norms.is_none() && angles.is_none() && places.is_none();
        if !biased {
            let positions = Arc::clone(positions);
            let prepare = Prepare { heads, norms, angles: angles.cloned(), positions };
            qkv.inplace_op2(&layer.qkv.bias, &prepare)?;
        }
        let attention = PackedAttention {
            sequences: Arc::clone(sequences),
            heads,
            scale: d.scale as f32,
            reach: span.reach(),
            biases: self.biases.clone(),
            places,
            biased,
        };
        qkv.apply_op2_no_bwd(&layer.qkv.bias, &attention)
    }

    fn padded(
        &self,
        layer: &Layer,
        qkv: &Tensor,
        padded: &PaddedAttention,
        turning: Option<&Turning>,
    ) -> Result<Tensor> {
        let d = &self.description;
        let (wide, narrow) = (d.query_width(), d.kv_heads * d.head);
        let qkv = qkv.broadcast_add(&layer.qkv.bias)?;
        let prepared = |which: usize, first: usize, width: usize| -> Result<Tensor> {
            let mut x = qkv.narrow(1, first, width)?.reshape(((), width / d.head, d.head))?;
            if let Some(HeadNorms::Portable(norms)) = &layer.head_norms {
                x = norms[which].plain(&x)?;
            }
            if let Some(turning) = turning {
                x = turning.turn(&x)?;
            }
            x.reshape(((), width))
        };
        let dtype = layer.qkv.weight.dtype();
        let queries = (prepared(0, 0, wide)? * d.scale)?.to_dtype(dtype)?;
        let keys = prepared(1, wide, narrow)?.to_dtype(dtype)?;
        let values = qkv.narrow(1, wide + narrow, narrow)?.to_dtype(dtype)?;
        let places = layer.places.as_ref().and_then(|places| match places {
            LayerPlaces::Packed(_) => None,
            LayerPlaces::Padded(places) => Some(places),
        });
        padded.attend(&queries, &keys, &values, places)
    }

    fn attention(&self, batch: &Batch, local: bool) -> Result<Option<Attention>> {
        let d = &self.description;
        let Some(span) = (if local { d.local.as_ref() } else { Some(&d.global) }) else { return Ok(None) };
        let longest = batch.sequences.iter().map(|s| s.length).max().unwrap_or(0);
        let angles = self.turns[usize::from(local)].as_ref().map(|turns| turns.up_to(longest));
        let attention = match self.path {
            Path::Fused => Attention::Packed { angles, span: span.clone() },
            Path::Portable => {
                let (heads, biases) = (Heads::of(d), self.biases.as_deref());
                let padded =
                    PaddedAttention::new(&batch.sequences, heads, span.reach(), biases, &self.device)?;
                let turning = angles.map(|angles| Turning::new(&angles, &batch.sequences, &self.device));
                Attention::Padded { padded, turning: turning.transpose()? }
            }
        };
        Ok(Some(attention))
    }

    fn embed(&self, batch: &Batch) -> Result<Tensor> {
        let rows = |table: &Tensor, ids: Vec<u32>| {
            let ids = Tensor::new(ids, &self.device)?;
            table.index_select(&ids, 0)?.to_dtype(DType::F32)
        };
        let mut x = rows(&self.words, batch.ids.clone())?;
        if let Some(types) = &self.types {
            x = (x + rows(types, batch.types.clone())?)?;
        }
        let placed = match (&self.positions, self.description.positions) {
            (Some(table), Some(positions)) => {
                let mut ids = Vec::with_capacity(batch.tokens());
                for sequence in &batch.sequences {
                    let own = &batch.ids[sequence.start..sequence.start + sequence.length];
                    ids.extend(positions.rows(own));
                }
                Some(rows(table, ids)?)
            }
            _ => None,
        };
        match (&self.embedding_norm, placed) {
            (Some(norm), Some(placed)) => norm.of_sum(self.path, x, &placed),
            (Some(norm), None) => norm.of_own(self.path, x),
            (None, Some(placed)) => x + placed,
            (None, None) => Ok(x),
        }
    }
}

impl Layer {
    fn load(
        d: &Description,
        assembly: &Assembly<'_>,
        layer: usize,
        path: Path,
        from: &Loader<'_>,
    ) -> std::result::Result<Layer, LoadError> {
        let parts = assembly.layer(layer)?;
        let output = Linear::load(from, parts.output)?;
        let down = Linear::load(from, parts.down)?;
        let [before_attention, after_attention] = parts.attention_norms;
        let [before_output, after_output] = parts.output_norms;
        let before = |norm: Option<_>| norm.map(|norm| Norm::load(from, d, norm, None)).transpose();
        let head_norms = match (parts.head_norms, path) {
            (None, _) => None,
            (Some(norms), Path::Fused) => {
                Some(HeadNorms::Fused(Box::new(norms.map(|norm| queries::norm(d, norm)))))
            }
            (Some([query, key]), Path::Portable) => {
                let norms = [Norm::load(from, d, query, None)?, Norm::load(from, d, key, None)?];
                Some(HeadNorms::Portable(Box::new(norms)))
            }
        };
        let places = match (parts.places, &d.relative, path) {
            (Some(places), Some(Relative::Disentangled(how)), Path::Fused) => {
                let packed = PackedPlaces::new(Isa::best(), how, &places, d.head, d.longest);
                Some(LayerPlaces::Packed(Arc::new(packed)))
            }
            (Some(places), Some(Relative::Disentangled(how)), Path::Portable) => {
                Some(LayerPlaces::Padded(PaddedPlaces::load(from, d, how, places)?))
            }
            _ => None,
        };
        Ok(Layer {
            is_local: d.is_local(layer),
            qkv: Linear::load(from, parts.qkv)?,
            head_norms,
            places,
            before_attention: before(before_attention)?,
            after_attention: After::load(from, d, after_attention, &output.bias)?,
            output,
            up: Linear::load(from, parts.up)?,
            before_output: before(before_output)?,
            after_output: After::load(from, d, after_output, &down.bias)?,
            down,
        })
    }
}
