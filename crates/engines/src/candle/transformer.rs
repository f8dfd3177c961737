//! The packed forward pass: interprets every description, on any Candle device.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use sconce_core::batch::Batch;

use super::attention::{BatchAttention, LayerAttention, SharedAttention};
use super::kv_cache::KvCache;
use super::layers::{AfterBlock, ForwardPath, Linear, Norm, activate};
use super::load::{LoadError, Loader};
use super::matrix::{Matrix, Table};
use crate::assembly::{self, Assembly};
use crate::description::{AttentionWindow, Description};
use crate::experts::Router;
use crate::positional::bias_table::BiasTable;
use crate::positional::rope::RopeCache;

/// A loaded transformer without head.
pub(super) struct Transformer {
    description: Description,
    device: Device,
    path: ForwardPath,
    /// The dtype of queries, keys and values.
    dtype: DType,
    token_embeddings: Table,
    positions: Option<Table>,
    types: Option<Table>,
    embedding_norm: Option<Norm>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    biases: Option<Arc<BiasTable>>,
    /// Rotary embeddings of global and of local layers.
    ropes: [Option<RopeCache>; 2],
}

struct Layer {
    attention: LayerAttention,
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

impl Transformer {
    pub(super) fn load(
        description: &Description,
        path: ForwardPath,
        from: &Loader<'_>,
    ) -> std::result::Result<Transformer, LoadError> {
        let d = description;
        let assembly = Assembly::new(d, from.tensors())?.keeping_blocks(from.keeps_blocks());
        let mut layers = Vec::with_capacity(d.layers);
        for layer in 0..d.layers {
            layers.push(Layer::load(d, &assembly, layer, path, from)?);
        }
        assembly.finish()?;
        let table = |rows: Option<Vec<f32>>| {
            rows.map(|rows| from.table(rows, d.hidden).map(Table::Float)).transpose()
        };
        let norm = |norm: Option<_>| norm.map(|norm| Norm::load(from, d, norm, None)).transpose();
        let ropes = |window: &AttentionWindow| window.rope.as_ref().map(RopeCache::new);
        Ok(Transformer {
            description: d.clone(),
            device: from.device().clone(),
            path,
            dtype: from.dtype(),
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

    /// The output matrix that shares the memory of the token embeddings; none if it needs a layout of its own.
    pub(super) fn tied_output(&self) -> Option<Matrix> {
        self.token_embeddings.tied()
    }

    /// The last hidden state of every token: `[tokens, hidden]`, f32. In a step, attention is to the KV cache.
    pub(super) fn hidden(&self, batch: &Batch, cache: Option<&KvCache>) -> Result<Tensor> {
        let (d, path) = (&self.description, self.path);
        let shared = SharedAttention {
            d,
            device: &self.device,
            path,
            dtype: self.dtype,
            biases: self.biases.as_ref(),
            ropes: &self.ropes,
        };
        let attention = BatchAttention::new(shared, batch, cache)?;
        let mut x = self.embed(batch)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = layer.before_attention.as_ref().map(|norm| norm.of(path, &x)).transpose()?;
            let qkv = layer.attention.qkv.product(normed.as_ref().unwrap_or(&x))?;
            let context = attention.attend(index, &layer.attention, &qkv)?;
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

    fn embed(&self, batch: &Batch) -> Result<Tensor> {
        let rows = |table: &Table, ids: Vec<u32>| table.rows(&Tensor::new(ids, &self.device)?);
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
        let attention = (parts.qkv, parts.qk_norms, parts.relative);
        Ok(Layer {
            attention: LayerAttention::load(from, d, path, layer, attention)?,
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
