//! Attention of one batch in every layer: packed on the fused path, padded on the portable one and in steps.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, bail};
use sconce_core::batch::{Batch, Sequence};
use sconce_kernels::attention::AttentionMask;
use sconce_kernels::isa::Isa;
use sconce_kernels::rope::RopeTable;
use sconce_kernels::rows;

use super::disentangled::PaddedRelativeProjections;
use super::fused::QkNormRope;
use super::kv_cache::{CacheRows, KvCache};
use super::layers::{ForwardPath, Linear, Norm};
use super::load::{LoadError, Loader};
use super::packed::PackedAttention;
use super::padded::PaddedAttention;
use super::rope::BatchRope;
use crate::assembly;
use crate::description::{Description, RelativePositions};
use crate::head_layout::{self, HeadLayout};
use crate::positional::bias_table::BiasTable;
use crate::positional::disentangled::{PackedRelativeProjections, RelativeProjections};
use crate::positional::rope::RopeCache;

/// What the attention of all layers shares.
#[derive(Clone, Copy)]
pub(super) struct SharedAttention<'a> {
    pub(super) d: &'a Description,
    pub(super) device: &'a Device,
    pub(super) path: ForwardPath,
    /// The dtype of queries, keys and values.
    pub(super) dtype: DType,
    pub(super) biases: Option<&'a Arc<BiasTable>>,
    /// Rotary embeddings of global and of local layers.
    pub(super) ropes: &'a [Option<RopeCache>; 2],
}

/// The projections and norms of one layer's attention.
pub(super) struct LayerAttention {
    is_local: bool,
    pub(super) qkv: Linear,
    qk_norms: Option<QkNorms>,
    relative: Option<LayerRelativeProjections>,
}

enum QkNorms {
    Fused(Box<[rows::Norm; 2]>),
    Portable(Box<[Norm; 2]>),
}

enum LayerRelativeProjections {
    Packed(Arc<PackedRelativeProjections>),
    Padded(PaddedRelativeProjections),
}

impl LayerAttention {
    pub(super) fn load(
        from: &Loader<'_>,
        d: &Description,
        path: ForwardPath,
        layer: usize,
        (qkv, qk_norms, relative): (
            assembly::Linear,
            Option<[assembly::Norm; 2]>,
            Option<RelativeProjections>,
        ),
    ) -> std::result::Result<LayerAttention, LoadError> {
        let qk_norms = match (qk_norms, path) {
            (None, _) => None,
            (Some(norms), ForwardPath::Fused) => {
                Some(QkNorms::Fused(Box::new(norms.map(|norm| head_layout::norm(d, norm)))))
            }
            (Some([query, key]), ForwardPath::Portable) => {
                let norms = [Norm::load(from, d, query, None)?, Norm::load(from, d, key, None)?];
                Some(QkNorms::Portable(Box::new(norms)))
            }
        };
        let relative = match (relative, &d.relative_positions, path) {
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
        Ok(LayerAttention { is_local: d.is_local(layer), qkv: Linear::load(from, qkv)?, qk_norms, relative })
    }
}

/// Attention of one batch.
pub(super) struct BatchAttention<'a> {
    shared: SharedAttention<'a>,
    sequences: Arc<[Sequence]>,
    /// The position of each token.
    positions: Arc<[usize]>,
    /// What all global, and all local, layers need.
    windows: [Option<Window>; 2],
    /// The cache of a step, and the rows of its tokens.
    cache: Option<(&'a KvCache, CacheRows)>,
}

struct Window {
    mask: AttentionMask,
    /// The rotary embedding on the fused path.
    rope_table: Option<Arc<RopeTable>>,
    /// The rotary embedding on the portable path.
    rope: Option<BatchRope>,
    /// None in packed attention.
    padded: Option<PaddedAttention>,
}

impl<'a> BatchAttention<'a> {
    pub(super) fn new(
        shared: SharedAttention<'a>,
        batch: &Batch,
        cache: Option<&'a KvCache>,
    ) -> Result<BatchAttention<'a>> {
        let positions = batch.sequences.iter().enumerate().flat_map(|(index, sequence)| {
            let first = batch.cached_length(index);
            first..first + sequence.length
        });
        let positions: Arc<[usize]> = positions.collect();
        let longest = positions.iter().max().map_or(0, |last| last + 1);
        let SharedAttention { d, device, path, biases, ropes, .. } = shared;
        let window = |local: bool| -> Result<Option<Window>> {
            let Some(window) = (if local { d.local.as_ref() } else { Some(&d.global) }) else {
                return Ok(None);
            };
            let rope_table = ropes[usize::from(local)].as_ref().map(|ropes| ropes.up_to(longest));
            let (heads, mask) = (HeadLayout::of(d), window.mask());
            let padded = match (cache, path) {
                (Some(_), _) => Some(PaddedAttention::cached(batch, heads, mask, device)?),
                (None, ForwardPath::Fused) => None,
                (None, ForwardPath::Portable) => {
                    let biases = biases.map(AsRef::as_ref);
                    Some(PaddedAttention::new(&batch.sequences, heads, mask, biases, device)?)
                }
            };
            let rope = match (&rope_table, path) {
                (Some(table), ForwardPath::Portable) => Some(BatchRope::new(table, &positions, device)?),
                (Some(_), ForwardPath::Fused) | (None, _) => None,
            };
            Ok(Some(Window { mask, rope_table, rope, padded }))
        };
        let windows = [window(false)?, window(true)?];
        let cache = cache.map(|cache| (cache, CacheRows::of(batch)));
        Ok(BatchAttention { shared, sequences: batch.sequences.as_slice().into(), positions, windows, cache })
    }

    /// The output of attention in layer `index` for rows of queries, keys and values: `[tokens, heads · head_dim]`.
    pub(super) fn attend(&self, index: usize, layer: &LayerAttention, qkv: &Tensor) -> Result<Tensor> {
        let Some(window) = &self.windows[usize::from(layer.is_local)] else {
            bail!("a local layer in a model that has none");
        };
        let Some(padded) = &window.padded else { return self.packed(layer, window, qkv) };
        let SharedAttention { d, dtype, path, .. } = self.shared;
        let [queries, keys, values] = match path {
            ForwardPath::Fused => self.fused_heads(layer, window, qkv)?,
            ForwardPath::Portable => self.portable_heads(layer, window, qkv)?,
        };
        let queries = (queries * d.scale)?.to_dtype(dtype)?;
        if let Some((cache, rows)) = &self.cache {
            let [keys, values] = cache.store(index, rows, [&keys, &values])?;
            return padded.attend(&queries, keys, values, d.attention_softcap, None);
        }
        let (keys, values) = (keys.to_dtype(dtype)?, values.to_dtype(dtype)?);
        let relative = layer.relative.as_ref().and_then(|relative| match relative {
            LayerRelativeProjections::Packed(_) => None,
            LayerRelativeProjections::Padded(relative) => Some(relative),
        });
        padded.attend(&queries, &keys, &values, d.attention_softcap, relative)
    }

    fn packed(&self, layer: &LayerAttention, window: &Window, qkv: &Tensor) -> Result<Tensor> {
        let d = self.shared.d;
        let relative = layer.relative.as_ref().and_then(|relative| match relative {
            LayerRelativeProjections::Packed(relative) => Some(Arc::clone(relative)),
            LayerRelativeProjections::Padded(_) => None,
        });
        let biased = layer.qk_norms.is_none() && window.rope_table.is_none() && relative.is_none();
        if !biased {
            self.prepare(layer, window, qkv)?;
        }
        let attention = PackedAttention {
            sequences: Arc::clone(&self.sequences),
            heads: HeadLayout::of(d),
            scale: d.scale as f32,
            softcap: d.softcap(),
            mask: window.mask,
            biases: self.shared.biases.cloned(),
            relative,
            biased,
        };
        qkv.apply_op2_no_bwd(&layer.qkv.bias, &attention)
    }

    /// Adds the bias, and applies QK norms and rotary embedding, in place.
    fn prepare(&self, layer: &LayerAttention, window: &Window, qkv: &Tensor) -> Result<()> {
        let norms = layer.qk_norms.as_ref().and_then(|norms| match norms {
            QkNorms::Fused(norms) => Some(&**norms),
            QkNorms::Portable(_) => None,
        });
        let (heads, positions) = (HeadLayout::of(self.shared.d), Arc::clone(&self.positions));
        let prepare = QkNormRope { heads, norms, rope_table: window.rope_table.clone(), positions };
        qkv.inplace_op2(&layer.qkv.bias, &prepare)
    }

    /// Queries, keys and values by fused ops.
    fn fused_heads(&self, layer: &LayerAttention, window: &Window, qkv: &Tensor) -> Result<[Tensor; 3]> {
        self.prepare(layer, window, qkv)?;
        let d = self.shared.d;
        let (wide, narrow) = (d.query_width(), d.kv_heads * d.head_dim);
        let part = |first: usize, width: usize| qkv.narrow(1, first, width)?.contiguous();
        Ok([part(0, wide)?, part(wide, narrow)?, part(wide + narrow, narrow)?])
    }

    /// Queries, keys and values by Candle's own ops.
    fn portable_heads(&self, layer: &LayerAttention, window: &Window, qkv: &Tensor) -> Result<[Tensor; 3]> {
        let d = self.shared.d;
        let (wide, narrow) = (d.query_width(), d.kv_heads * d.head_dim);
        let qkv = qkv.broadcast_add(&layer.qkv.bias)?;
        let prepared = |which: usize, first: usize, width: usize| -> Result<Tensor> {
            let mut x = qkv.narrow(1, first, width)?.reshape(((), width / d.head_dim, d.head_dim))?;
            if let Some(QkNorms::Portable(norms)) = &layer.qk_norms {
                x = norms[which].plain(&x)?;
            }
            if let Some(rope) = &window.rope {
                x = rope.rotate(&x)?;
            }
            x.reshape(((), width))
        };
        let values = qkv.narrow(1, wide + narrow, narrow)?;
        Ok([prepared(0, 0, wide)?, prepared(1, wide, narrow)?, values])
    }
}
