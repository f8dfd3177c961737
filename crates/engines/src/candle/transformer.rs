//! The packed forward pass: interprets every description, on any Candle device.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use sconce_core::batch::{Batch, Sequence};
use sconce_kernels::isa::Isa;
use sconce_kernels::{rope, rows};

use super::disentangled::PaddedRelativeProjections;
use super::fused::QkNormRope;
use super::layers::{AfterBlock, ForwardPath, Linear, Norm, activate};
use super::load::{LoadError, Loader};
use super::packed::PackedAttention;
use super::padded::PaddedAttention;
use super::rope::BatchRope;
use crate::assembly::{self, Assembly};
use crate::description::{AttentionWindow, Description, RelativePositions};
use crate::experts::Router;
use crate::head_layout::{self, HeadLayout};
use crate::positional::bias_table::BiasTable;
use crate::positional::disentangled::PackedRelativeProjections;
use crate::positional::rope::RopeCache;

/// A loaded transformer without head.
pub(super) struct Transformer {
    description: Description,
    device: Device,
    path: ForwardPath,
    token_embeddings: Tensor,
    positions: Option<Tensor>,
    types: Option<Tensor>,
    embedding_norm: Option<Norm>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    biases: Option<Arc<BiasTable>>,
    /// Rotary embeddings of global and of local layers.
    ropes: [Option<RopeCache>; 2],
}

struct Layer {
    is_local: bool,
    qkv: Linear,
    qk_norms: Option<QkNorms>,
    relative: Option<LayerRelativeProjections>,
    output: Linear,
    before_attention: Option<Norm>,
    after_attention: AfterBlock,
    router: Option<Router>,
    /// The feed-forward block, or the experts.
    blocks: Vec<FeedForward>,
    before_output: Option<Norm>,
    after_output: AfterBlock,
}

/// A feed-forward block.
struct FeedForward {
    up: Linear,
    down: Linear,
}

enum QkNorms {
    Fused(Box<[rows::Norm; 2]>),
    Portable(Box<[Norm; 2]>),
}

enum LayerRelativeProjections {
    Packed(Arc<PackedRelativeProjections>),
    Padded(PaddedRelativeProjections),
}

/// What all global, or all local, layers need for a batch.
enum Attention {
    Packed { rope_table: Option<Arc<rope::RopeTable>>, window: AttentionWindow },
    Padded { padded: PaddedAttention, rope: Option<BatchRope> },
}

impl Transformer {
    pub(super) fn load(
        description: &Description,
        path: ForwardPath,
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
        let ropes = |window: &AttentionWindow| window.rope.as_ref().map(RopeCache::new);
        Ok(Transformer {
            description: d.clone(),
            device: from.device().clone(),
            path,
            token_embeddings: from.embedding_table(assembly.token_embeddings()?, d.hidden)?,
            positions: table(assembly.position_embeddings()?)?,
            types: table(assembly.token_type_embeddings()?)?,
            embedding_norm: norm(assembly.embedding_norm()?)?,
            layers,
            final_norm: norm(assembly.final_norm()?)?,
            biases: assembly.bias_table()?.map(Arc::new),
            ropes: [ropes(&d.global), d.local.as_ref().and_then(ropes)],
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
            let context = match &attention[usize::from(layer.is_local)] {
                Some(Attention::Packed { rope_table, window }) => {
                    self.packed(layer, &qkv, rope_table.as_ref(), window, &sequences, &positions)?
                }
                Some(Attention::Padded { padded, rope }) => {
                    self.padded(layer, &qkv, padded, rope.as_ref())?
                }
                None => candle_core::bail!("a local layer in a model that has none"),
            };
            let attended = layer.after_attention.apply(path, layer.output.product(&context)?, &x)?;
            let input = if d.parallel { &x } else { &attended };
            let normed = layer.before_output.as_ref().map(|norm| norm.of(path, input)).transpose()?;
            let output = self.feed_forward(layer, normed.as_ref().unwrap_or(input))?;
            x = layer.after_output.apply(path, output, &attended)?;
        }
        match &self.final_norm {
            Some(norm) => norm.of_own(path, x),
            None => Ok(x),
        }
    }

    /// The feed-forward block, or the weighted sum of the experts of each token, without the bias of the down projection.
    fn feed_forward(&self, layer: &Layer, x: &Tensor) -> Result<Tensor> {
        let block = |block: &FeedForward, x: &Tensor| {
            let wide = activate(self.path, &self.description, block.up.product(x)?, &block.up.bias)?;
            block.down.product(&wide)
        };
        let Some(router) = &layer.router else { return block(&layer.blocks[0], x) };
        let x = x.contiguous()?;
        let assigned = router.route(&x.flatten_all()?.to_vec1::<f32>()?);
        let mut sum = x.zeros_like()?;
        for (expert, own) in layer.blocks.iter().zip(assigned).filter(|(_, own)| !own.tokens.is_empty()) {
            let weights = Tensor::from_vec(own.weights, (own.tokens.len(), 1), &self.device)?;
            let tokens = Tensor::new(own.tokens, &self.device)?;
            let output = block(expert, &x.index_select(&tokens, 0)?)?.broadcast_mul(&weights)?;
            sum = sum.index_add(&tokens, &output, 0)?;
        }
        Ok(sum)
    }

    fn packed(
        &self,
        layer: &Layer,
        qkv: &Tensor,
        rope_table: Option<&Arc<rope::RopeTable>>,
        window: &AttentionWindow,
        sequences: &Arc<[Sequence]>,
        positions: &Arc<[usize]>,
    ) -> Result<Tensor> {
        let d = &self.description;
        let heads = HeadLayout::of(d);
        let norms = layer.qk_norms.as_ref().and_then(|norms| match norms {
            QkNorms::Fused(norms) => Some(&**norms),
            QkNorms::Portable(_) => None,
        });
        let relative = layer.relative.as_ref().and_then(|relative| match relative {
            LayerRelativeProjections::Packed(relative) => Some(Arc::clone(relative)),
            LayerRelativeProjections::Padded(_) => None,
        });
        let biased = norms.is_none() && rope_table.is_none() && relative.is_none();
        if !biased {
            let positions = Arc::clone(positions);
            let prepare = QkNormRope { heads, norms, rope_table: rope_table.cloned(), positions };
            qkv.inplace_op2(&layer.qkv.bias, &prepare)?;
        }
        let attention = PackedAttention {
            sequences: Arc::clone(sequences),
            heads,
            scale: d.scale as f32,
            softcap: d.softcap(),
            mask: window.mask(),
            biases: self.biases.clone(),
            relative,
            biased,
        };
        qkv.apply_op2_no_bwd(&layer.qkv.bias, &attention)
    }

    fn padded(
        &self,
        layer: &Layer,
        qkv: &Tensor,
        padded: &PaddedAttention,
        rope: Option<&BatchRope>,
    ) -> Result<Tensor> {
        let d = &self.description;
        let (wide, narrow) = (d.query_width(), d.kv_heads * d.head_dim);
        let qkv = qkv.broadcast_add(&layer.qkv.bias)?;
        let prepared = |which: usize, first: usize, width: usize| -> Result<Tensor> {
            let mut x = qkv.narrow(1, first, width)?.reshape(((), width / d.head_dim, d.head_dim))?;
            if let Some(QkNorms::Portable(norms)) = &layer.qk_norms {
                x = norms[which].plain(&x)?;
            }
            if let Some(rope) = rope {
                x = rope.rotate(&x)?;
            }
            x.reshape(((), width))
        };
        let dtype = layer.qkv.weight.dtype();
        let queries = (prepared(0, 0, wide)? * d.scale)?.to_dtype(dtype)?;
        let keys = prepared(1, wide, narrow)?.to_dtype(dtype)?;
        let values = qkv.narrow(1, wide + narrow, narrow)?.to_dtype(dtype)?;
        let relative = layer.relative.as_ref().and_then(|relative| match relative {
            LayerRelativeProjections::Packed(_) => None,
            LayerRelativeProjections::Padded(relative) => Some(relative),
        });
        padded.attend(&queries, &keys, &values, d.attention_softcap, relative)
    }

    fn attention(&self, batch: &Batch, local: bool) -> Result<Option<Attention>> {
        let d = &self.description;
        let Some(window) = (if local { d.local.as_ref() } else { Some(&d.global) }) else { return Ok(None) };
        let longest = batch.sequences.iter().map(|s| s.length).max().unwrap_or(0);
        let rope_table = self.ropes[usize::from(local)].as_ref().map(|ropes| ropes.up_to(longest));
        let attention = match self.path {
            ForwardPath::Fused => Attention::Packed { rope_table, window: window.clone() },
            ForwardPath::Portable => {
                let (heads, biases) = (HeadLayout::of(d), self.biases.as_deref());
                let padded =
                    PaddedAttention::new(&batch.sequences, heads, window.mask(), biases, &self.device)?;
                let rope =
                    rope_table.map(|rope_table| BatchRope::new(&rope_table, &batch.sequences, &self.device));
                Attention::Padded { padded, rope: rope.transpose()? }
            }
        };
        Ok(Some(attention))
    }

    fn embed(&self, batch: &Batch) -> Result<Tensor> {
        let rows = |table: &Tensor, ids: Vec<u32>| {
            let ids = Tensor::new(ids, &self.device)?;
            table.index_select(&ids, 0)?.to_dtype(DType::F32)
        };
        let mut x = rows(&self.token_embeddings, batch.ids.clone())?;
        if let Some(types) = &self.types {
            x = (x + rows(types, batch.types.clone())?)?;
        }
        let position_embeddings = match (&self.positions, self.description.position_table) {
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
        match (&self.embedding_norm, position_embeddings) {
            (Some(norm), Some(position_embeddings)) => norm.of_sum(self.path, x, &position_embeddings),
            (Some(norm), None) => norm.of_own(self.path, x),
            (None, Some(position_embeddings)) => x + position_embeddings,
            (None, None) => Ok(x),
        }
    }
}

impl Layer {
    fn load(
        d: &Description,
        assembly: &Assembly<'_>,
        layer: usize,
        path: ForwardPath,
        from: &Loader<'_>,
    ) -> std::result::Result<Layer, LoadError> {
        let parts = assembly.layer(layer)?;
        let output = Linear::load(from, parts.output)?;
        let block = |block: assembly::FeedForward| -> std::result::Result<FeedForward, LoadError> {
            Ok(FeedForward { up: Linear::load(from, block.up)?, down: Linear::load(from, block.down)? })
        };
        let blocks = parts.blocks.into_iter().map(block).collect::<std::result::Result<Vec<_>, _>>()?;
        let [before_attention, after_attention] = parts.attention_norms;
        let [before_output, after_output] = parts.output_norms;
        let before = |norm: Option<_>| norm.map(|norm| Norm::load(from, d, norm, None)).transpose();
        let qk_norms = match (parts.qk_norms, path) {
            (None, _) => None,
            (Some(norms), ForwardPath::Fused) => {
                Some(QkNorms::Fused(Box::new(norms.map(|norm| head_layout::norm(d, norm)))))
            }
            (Some([query, key]), ForwardPath::Portable) => {
                let norms = [Norm::load(from, d, query, None)?, Norm::load(from, d, key, None)?];
                Some(QkNorms::Portable(Box::new(norms)))
            }
        };
        let relative = match (parts.relative, &d.relative_positions, path) {
            (Some(relative), Some(RelativePositions::Disentangled(how)), ForwardPath::Fused) => {
                let packed =
                    PackedRelativeProjections::new(Isa::best(), how, &relative, d.head_dim, d.max_length);
                Some(LayerRelativeProjections::Packed(Arc::new(packed)))
            }
            (Some(relative), Some(RelativePositions::Disentangled(how)), ForwardPath::Portable) => Some(
                LayerRelativeProjections::Padded(PaddedRelativeProjections::load(from, d, how, relative)?),
            ),
            _ => None,
        };
        Ok(Layer {
            is_local: d.is_local(layer),
            qkv: Linear::load(from, parts.qkv)?,
            qk_norms,
            relative,
            before_attention: before(before_attention)?,
            after_attention: AfterBlock::load(from, d, after_attention, &output.bias)?,
            output,
            router: parts.router,
            before_output: before(before_output)?,
            after_output: AfterBlock::load(from, d, after_output, &blocks[0].down.bias)?,
            blocks,
        })
    }
}
