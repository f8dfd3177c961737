//! The forward pass of a block of sequences with f32 activations, and weights in f32 or quantized.

use sconce_core::batch::Batch;
use sconce_kernels::attention::{AttentionHead, AttentionMask, AttentionScratch, ScoreBias};
use sconce_kernels::columns::ColumnsMut;
use sconce_kernels::gemm::{Accumulate, PackedMatrix, Store};
use sconce_kernels::isa::Isa;
use sconce_kernels::paged::CacheElement;
use sconce_kernels::rope::RopeTable;
use sconce_kernels::rows::{Activation, Norm};
use sconce_kernels::team::Team;

use super::kv_cache::{AttentionPart, CachedAttention, KvCache};
use super::matrix::{Cpu, Matrix, ProductScratch, each_rows, gate_rows};
use super::scratch::ScratchMemory;
use super::weights::{FeedForward, Layer, Linear, Packing, Table, Weights};
use crate::description::{Description, NormPlacement};
use crate::head_layout::HeadLayout;
use crate::positional::disentangled::RelativeScratch;
use crate::weight::Weight;

/// Packs matrices for f32 kernels.
pub(super) struct PackF32(pub(super) Isa, pub(super) Team);

impl Packing<PackedMatrix> for PackF32 {
    fn matrix(&self, weight: Weight, outputs: usize, inputs: usize) -> PackedMatrix {
        PackedMatrix::pack_rows((self.0, &self.1), outputs, inputs, |output, to| weight.row(output, to))
    }

    fn table(&self, rows: Vec<f32>) -> Table {
        Table::F32(rows)
    }

    fn padded(&self, outputs: usize) -> usize {
        outputs
    }

    fn part(&self, width: usize) -> usize {
        width
    }
}

/// The forward pass of one model with f32 activations.
pub(super) struct ForwardF32<'a, M> {
    pub(super) d: &'a Description,
    pub(super) weights: &'a Weights<M>,
    pub(super) cpu: Cpu<'a>,
    pub(super) activation: Activation,
}

/// Scratch memory of a block.
#[derive(Default)]
pub(super) struct Scratch {
    x: Vec<f32>,
    normed: Vec<f32>,
    /// The input of the feed-forward block, in parallel attention.
    parallel: Vec<f32>,
    qkv: Vec<f32>,
    context: Vec<f32>,
    wide: Vec<f32>,
    gated: Vec<f32>,
    product: ProductScratch,
    attention: AttentionScratch,
    scores: RelativeScratch,
}

impl ScratchMemory for Scratch {
    fn bytes(&self) -> usize {
        let Scratch { x, normed, parallel, qkv, context, wide, gated, product, attention, scores } = self;
        let values: usize = [x, normed, parallel, qkv, context, wide, gated].map(Vec::capacity).iter().sum();
        values * size_of::<f32>() + product.bytes() + attention.bytes() + scores.bytes()
    }
}

impl<M: Matrix> ForwardF32<'_, M> {
    /// The last hidden states of `batch`, `[tokens, hidden]`. In a step, keys and values are stored in `cache` and read
    /// from it.
    pub(super) fn hidden<T: CacheElement>(
        &self,
        batch: &Batch,
        mut cache: Option<&mut KvCache<T>>,
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        let ForwardF32 { d, weights, cpu, .. } = *self;
        let (tokens, hidden) = (batch.tokens(), d.hidden);
        scratch.x = vec![0.0; tokens * hidden];
        scratch.normed.resize(tokens * hidden, 0.0);
        scratch.parallel.resize(if d.parallel { tokens * hidden } else { 0 }, 0.0);
        scratch.qkv.resize(tokens * d.qkv_width(), 0.0);
        scratch.context.resize(tokens * d.query_width(), 0.0);
        scratch.wide.resize(tokens * d.up_width(), 0.0);
        scratch.gated.resize(if d.gated { tokens * d.intermediate } else { 0 }, 0.0);
        weights.embed(d, batch, |token, row| scratch.x[token * hidden..][..hidden].copy_from_slice(row));
        if let Some(norm) = &weights.embedding_norm {
            norm.apply(cpu.isa, &mut scratch.x, hidden);
        }
        let rope_tables = weights.rope_tables(batch);
        let positions: Vec<usize> = batch.positions().collect();
        for (index, layer) in weights.layers.iter().enumerate() {
            let rope_table = rope_tables[usize::from(layer.is_local)].as_deref();
            let cache = cache.as_deref_mut().map(|cache| (cache, index));
            if d.parallel {
                let Scratch { x, parallel, .. } = scratch;
                parallel.copy_from_slice(before(
                    layer.output_norms[0].as_ref(),
                    cpu,
                    x,
                    &mut scratch.normed,
                    hidden,
                ));
            }
            self.attention(layer, (batch, &positions), rope_table, cache, scratch);
            self.feed_forward(layer, tokens, scratch);
        }
        if let Some(norm) = &weights.final_norm {
            norm.apply(cpu.isa, &mut scratch.x, hidden);
        }
        std::mem::take(&mut scratch.x)
    }

    fn attention<T: CacheElement>(
        &self,
        layer: &Layer<M>,
        (batch, positions): (&Batch, &[usize]),
        rope_table: Option<&RopeTable>,
        cache: Option<(&mut KvCache<T>, usize)>,
        scratch: &mut Scratch,
    ) {
        let ForwardF32 { d, weights, cpu, .. } = *self;
        let Scratch { x, normed, qkv, context, product, attention, scores, .. } = scratch;
        let (tokens, hidden, stride, width) = (batch.tokens(), d.hidden, d.qkv_width(), d.query_width());
        let (heads, group) = (HeadLayout::of(d), d.heads / d.kv_heads);
        let from = before(layer.attention_norms[0].as_ref(), cpu, x, normed, hidden);
        let bias = &layer.qkv.bias;
        let to = Store { bias, activation: Activation::Identity, to: ColumnsMut::new(qkv, stride) };
        layer.qkv.matrix.multiply(cpu, from, hidden, tokens, product, to);
        let window = d.local.as_ref().filter(|_| layer.is_local).unwrap_or(&d.global);
        if rope_table.is_some() || layer.qk_norms.is_some() {
            each_rows(cpu, qkv, stride, |first, rows| {
                for (position, row) in positions[first..].iter().zip(rows.chunks_exact_mut(stride)) {
                    heads.qk_norm_rope(cpu.isa, row, *position, layer.qk_norms.as_ref(), rope_table);
                }
            });
        }
        if let Some((cache, index)) = cache {
            cache.store(index, cpu.team, batch, |row, head, to| {
                for (offset, to) in heads.columns(head * group, stride).offsets[1..].iter().zip(to) {
                    let from = &qkv[row * stride + offset..][..d.head_dim];
                    to.iter_mut().zip(from).for_each(|(to, x)| *to = T::narrow(*x));
                }
            });
            let (mask, scale, softcap) = (window.mask(), d.scale as f32, d.softcap());
            let how = CachedAttention { mask, scale, softcap, cpu };
            cache.attend(index, &how, vec![AttentionPart { batch, queries: qkv, stride, output: context }]);
        }
        for s in batch.sequences.iter().filter(|_| batch.cached.is_empty()) {
            let rows = &qkv[s.start * stride..][..s.length * stride];
            for head in 0..d.heads {
                let at = heads.columns(head, stride);
                let scale = d.scale as f32;
                let score_bias = match (&weights.biases, &layer.relative) {
                    (Some(biases), _) => ScoreBias::Relative(biases.head(head)),
                    (None, Some(relative)) => {
                        let parts = [at.offsets[0], at.offsets[1]];
                        ScoreBias::Disentangled(relative.scores(scores, head, rows, stride, parts, scale))
                    }
                    (None, None) => ScoreBias::None,
                };
                let mask = AttentionMask { visible: s.attended(), ..window.mask() };
                let (length, softcap) = (s.length, d.softcap());
                let task = AttentionHead { rows, length, at, bias: None, scale, softcap, mask, score_bias };
                task.attend(cpu.isa, attention, &mut context[s.start * width + head * d.head_dim..], width);
            }
        }
        let after = layer.attention_norms[1].as_ref();
        self.add(&layer.output, after, context, width, tokens, x, normed, product);
    }

    /// The logits of `rows`, hidden states `[count, hidden]`.
    pub(super) fn logits(&self, rows: &[f32], scratch: &mut Scratch) -> Vec<f32> {
        let Some(Linear { matrix, bias }) = &self.weights.logits else { return Vec::new() };
        if rows.is_empty() {
            return Vec::new();
        }
        let (cpu, hidden, stride) = (self.cpu, self.d.hidden, bias.len());
        let count = rows.len() / hidden;
        let mut logits = cpu.team.zeros(count * stride);
        let to = Store { bias, activation: Activation::Identity, to: ColumnsMut::new(&mut logits, stride) };
        matrix.multiply(cpu, rows, hidden, count, &mut scratch.product, to);
        logits
    }

    fn feed_forward(&self, layer: &Layer<M>, tokens: usize, scratch: &mut Scratch) {
        let ForwardF32 { d, cpu, .. } = *self;
        let Scratch { x, normed, parallel, wide, gated, product, .. } = scratch;
        let from = if d.parallel {
            parallel
        } else {
            before(layer.output_norms[0].as_ref(), cpu, x, normed, d.hidden)
        };
        let Some(router) = &layer.router else {
            let block = &layer.blocks[0];
            let from = self.up(block, from, tokens, wide, gated, product);
            let after = layer.output_norms[1].as_ref();
            return self.add(&block.down, after, from, d.intermediate, tokens, x, normed, product);
        };
        let (mut input, mut output) = (Vec::new(), Vec::new());
        let mut sum = vec![0.0; tokens * d.hidden];
        let assigned = router.route(from);
        for (block, own) in layer.blocks.iter().zip(assigned).filter(|(_, own)| !own.tokens.is_empty()) {
            let count = own.tokens.len();
            input.clear();
            for &token in &own.tokens {
                input.extend_from_slice(&from[token as usize * d.hidden..][..d.hidden]);
            }
            output.resize(count * d.hidden, 0.0);
            let wide = self.up(block, &input, count, wide, gated, product);
            let bias = &block.down.bias;
            let to =
                Store { bias, activation: Activation::Identity, to: ColumnsMut::new(&mut output, d.hidden) };
            block.down.matrix.multiply(cpu, wide, d.intermediate, count, product, to);
            for ((token, weight), row) in
                own.tokens.iter().zip(own.weights).zip(output.chunks_exact(d.hidden))
            {
                let to = &mut sum[*token as usize * d.hidden..][..d.hidden];
                to.iter_mut().zip(row).for_each(|(to, x)| *to += weight * x);
            }
        }
        x.iter_mut().zip(sum).for_each(|(x, y)| *x += y);
    }

    /// The activations of a feed-forward block, `[tokens, intermediate]`, in one of the buffers.
    fn up<'a>(
        &self,
        block: &FeedForward<M>,
        from: &[f32],
        tokens: usize,
        wide: &'a mut [f32],
        gated: &'a mut [f32],
        product: &mut ProductScratch,
    ) -> &'a [f32] {
        let ForwardF32 { d, cpu, activation, .. } = *self;
        let none = vec![0.0; block.up.bias.len()];
        let (bias, first) =
            if d.gated { (&none, Activation::Identity) } else { (&block.up.bias, activation) };
        let wide = &mut wide[..tokens * d.up_width()];
        let to = Store { bias, activation: first, to: ColumnsMut::new(wide, d.up_width()) };
        block.up.matrix.multiply(cpu, from, d.hidden, tokens, product, to);
        if !d.gated {
            return wide;
        }
        let gated = &mut gated[..tokens * d.intermediate];
        gate_rows(cpu, wide, &block.up.bias, activation, gated);
        gated
    }

    /// Adds a product to `x`, with the norm that follows it.
    #[expect(clippy::too_many_arguments, reason = "buffers that are lent one by one")]
    fn add(
        &self,
        linear: &Linear<M>,
        norm: Option<&Norm>,
        from: &[f32],
        stride: usize,
        tokens: usize,
        x: &mut [f32],
        scratch: &mut [f32],
        product: &mut ProductScratch,
    ) {
        let ForwardF32 { d, cpu, .. } = *self;
        let (bias, hidden) = (&linear.bias, d.hidden);
        if let (Some(norm), NormPlacement::Both) = (norm, d.placement) {
            let to = Store { bias, activation: Activation::Identity, to: ColumnsMut::new(scratch, hidden) };
            linear.matrix.multiply(cpu, from, stride, tokens, product, to);
            each_rows(cpu, scratch, hidden, |_, rows| norm.apply(cpu.isa, rows, hidden));
            x.iter_mut().zip(&*scratch).for_each(|(x, y)| *x += y);
            return;
        }
        let to = Accumulate { bias, to: ColumnsMut::new(x, hidden) };
        linear.matrix.multiply(cpu, from, stride, tokens, product, to);
        if let Some(norm) = norm {
            norm.apply(cpu.isa, x, hidden);
        }
    }
}

/// The input of a block: `x`, or its norm in `scratch`.
fn before<'a>(
    norm: Option<&Norm>,
    cpu: Cpu<'_>,
    x: &'a [f32],
    scratch: &'a mut [f32],
    hidden: usize,
) -> &'a [f32] {
    let Some(norm) = norm else { return x };
    each_rows(cpu, scratch, hidden, |first, rows| {
        rows.copy_from_slice(&x[first * hidden..][..rows.len()]);
        norm.apply(cpu.isa, rows, hidden);
    });
    scratch
}
