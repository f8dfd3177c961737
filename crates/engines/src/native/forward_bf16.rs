//! The bf16 forward pass of a block of sequences. Residuals, norms, softmax and accumulators are f32.

use sconce_core::batch::Batch;
use sconce_kernels::attention::AttentionMask;
use sconce_kernels::bf16::{
    AttentionHeadBf16, Bf16, EpilogueBf16, InputBf16, Panels, STEP, Tiles, add_rows, gate_rows, narrow,
    norm_rows, widen_heads,
};
use sconce_kernels::columns::ColumnsMut;
use sconce_kernels::rope::RopeTable;
use sconce_kernels::rows::{Activation, Norm};
use sconce_kernels::team::Team;

use super::attention_bf16;
use super::disentangled;
use super::kv_cache::KvCache;
use super::matrix::Cpu;
use super::scratch_bf16::{PartScratch, Scratch};
use super::tile_matrix::TileMatrix;
use super::weights::{FeedForward, Layer, Linear, Weights};
use crate::description::{AttentionWindow, Description, NormPlacement};
use crate::step;

/// Tokens of a part, of which each thread computes some: their activations stay in a core's cache.
const PART: usize = 256;
/// Fewest tokens of a part. The products of fewer tokens are bound by memory bandwidth: their columns are split instead.
const LEAST: usize = 128;

/// The forward pass of one model in bf16.
pub(super) struct ForwardBf16<'a, M> {
    pub(super) d: &'a Description,
    pub(super) weights: &'a Weights<M>,
    pub(super) activation: Activation,
    pub(super) unit: Bf16,
    pub(super) team: &'a Team,
}

impl<M: TileMatrix> ForwardBf16<'_, M> {
    fn cpu(&self) -> Cpu<'_> {
        Cpu::new(self.unit.isa(), self.team)
    }

    /// The last hidden states of `batch`, `[tokens, hidden]`. In a step, keys and values are stored in `cache` and read
    /// from it, and many tokens are split over threads.
    pub(super) fn hidden(
        &self,
        batch: &Batch,
        cache: Option<&mut KvCache<u16>>,
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        let split: Vec<Batch> = match cache {
            Some(_) => parts(batch, self.team.count()).iter().map(|part| batch.tokens_of(part)).collect(),
            None => Vec::new(),
        };
        let parts = if split.len() > 1 { &split[..] } else { std::slice::from_ref(batch) };
        let scratch = scratch.parts(parts.len());
        self.unit.with_tiles(|_| self.parts(batch, parts, cache, scratch))
    }

    /// The same for the parts of a batch. Each is computed on one thread, but a single one on all.
    fn parts(
        &self,
        batch: &Batch,
        parts: &[Batch],
        mut cache: Option<&mut KvCache<u16>>,
        scratch: &mut [PartScratch],
    ) -> Vec<f32> {
        let ForwardBf16 { d, weights, unit, team, .. } = *self;
        let single = Team::single();
        let of_part = ForwardBf16 { team: if parts.len() > 1 { &single } else { team }, ..*self };
        let each = |scratch: &mut [PartScratch], work: &(dyn Fn(&Tiles, &Batch, &mut PartScratch) + Sync)| {
            team.each(parts.iter().zip(scratch), |(batch, scratch)| {
                unit.with_tiles(|tiles| work(tiles, batch, scratch));
            });
        };
        each(scratch, &|_, batch, scratch| of_part.embed(batch, scratch));
        let rope_tables = weights.rope_tables(batch);
        for (index, layer) in weights.layers.iter().enumerate() {
            let rope_table = rope_tables[usize::from(layer.is_local)].as_deref();
            let is_cached = cache.is_some();
            each(scratch, &|tiles, batch, scratch| {
                of_part.qkv(tiles, layer, batch, rope_table, scratch);
                if is_cached {
                    let PartScratch { qkv, queries, .. } = scratch;
                    attention_bf16::queries(unit, d, batch.tokens(), qkv, queries);
                }
            });
            if let Some(cache) = cache.as_deref_mut() {
                for (batch, scratch) in parts.iter().zip(&*scratch) {
                    attention_bf16::store(d, team, cache, index, batch, &scratch.qkv);
                }
                // Later tokens attend to more keys: the threads share the work.
                let mask = self.window(layer).mask();
                attention_bf16::attend((unit, team), d, (cache, index), parts, mask, scratch);
            }
            each(scratch, &|tiles, batch, scratch| {
                of_part.attention(tiles, layer, batch, scratch);
                of_part.feed_forward(tiles, layer, batch.tokens(), scratch);
            });
        }
        let mut hidden = vec![0.0; batch.tokens() * d.hidden];
        let mut rest = hidden.chunks_exact_mut(d.hidden);
        for (batch, PartScratch { x, rounded, .. }) in parts.iter().zip(scratch) {
            if let Some(norm) = &weights.final_norm {
                norm_rows(unit, norm, batch.tokens(), x, rounded, true);
            }
            for (row, to) in rest.by_ref().take(batch.tokens()).enumerate() {
                x.get(row, to);
            }
        }
        hidden
    }

    fn embed(&self, batch: &Batch, scratch: &mut PartScratch) {
        let ForwardBf16 { d, weights, unit, .. } = *self;
        scratch.shape(d, batch.tokens());
        weights.embed(d, batch, |token, row| scratch.x.set(token, row));
        if let Some(norm) = &weights.embedding_norm {
            norm_rows(unit, norm, batch.tokens(), &mut scratch.x, &mut scratch.rounded, true);
        }
    }

    /// Queries, keys and values of a layer.
    fn qkv(
        &self,
        tiles: &Tiles,
        layer: &Layer<M>,
        batch: &Batch,
        rope_table: Option<&RopeTable>,
        scratch: &mut PartScratch,
    ) {
        let ForwardBf16 { d, unit, .. } = *self;
        let (tokens, PartScratch { x, rounded, parallel, qkv, .. }) = (batch.tokens(), scratch);
        if let Some(norm) = layer.output_norms[0].as_ref().filter(|_| d.parallel) {
            norm_rows(unit, norm, tokens, x, parallel, false);
        }
        if let Some(norm) = &layer.attention_norms[0] {
            norm_rows(unit, norm, tokens, x, rounded, false);
        }
        let plain = Activation::Identity;
        let to = EpilogueBf16::Store { bias: &layer.qkv.bias, activation: plain, to: qkv.all() };
        self.product(tiles, &layer.qkv.matrix, rounded, tokens, to);
        if rope_table.is_some() || layer.qk_norms.is_some() {
            attention_bf16::qk_norm_rope(unit, d, layer.qk_norms.as_ref(), rope_table, batch, qkv);
        }
    }

    /// The attention window of a layer.
    fn window(&self, layer: &Layer<M>) -> &AttentionWindow {
        self.d.local.as_ref().filter(|_| layer.is_local).unwrap_or(&self.d.global)
    }

    /// Attention, which is computed already if there is a cache, and its product.
    fn attention(&self, tiles: &Tiles, layer: &Layer<M>, batch: &Batch, scratch: &mut PartScratch) {
        let ForwardBf16 { d, weights, unit, .. } = *self;
        let tokens = batch.tokens();
        let PartScratch { qkv, attended, context, attention, disentangled, .. } = scratch;
        let panels = d.head_dim.div_ceil(STEP);
        let (heads, keys) = (d.heads * panels, d.kv_heads * panels);
        if !batch.cached.is_empty() {
            attention_bf16::round(unit, d, attended, context);
        }
        for s in batch.sequences.iter().filter(|_| batch.cached.is_empty()) {
            let mask = AttentionMask { visible: s.attended(), ..self.window(layer).mask() };
            if let Some(relative) = &layer.relative {
                disentangled::attend(d, relative, mask, s, qkv, context, disentangled);
                continue;
            }
            for head in 0..d.heads {
                let (query, shared) = (head * panels, head / (d.heads / d.kv_heads) * panels);
                let task = AttentionHeadBf16 {
                    rows: qkv,
                    start: s.start,
                    length: s.length,
                    panels,
                    query,
                    key: heads + shared,
                    value: heads + keys + shared,
                    scale: d.scale as f32,
                    softcap: d.softcap(),
                    mask,
                    relative_bias: weights.biases.as_ref().map(|biases| biases.head(head)),
                };
                task.attend(tiles, attention, context, query);
            }
        }
        self.add(
            tiles,
            &layer.output,
            layer.attention_norms[1].as_ref(),
            tokens,
            ProductInput::Attention,
            scratch,
        );
    }

    /// The logits of `rows`, hidden states `[count, hidden]`.
    pub(super) fn logits(&self, rows: &[f32]) -> Vec<f32> {
        let Some(Linear { matrix, bias }) = &self.weights.logits else { return Vec::new() };
        if rows.is_empty() {
            return Vec::new();
        }
        let (hidden, vocabulary) = (self.d.hidden, self.d.vocabulary);
        let count = rows.len() / hidden;
        let mut input = Panels::default();
        input.shape(count, hidden);
        for (row, values) in rows.chunks_exact(hidden).enumerate() {
            input.set(row, &values.iter().map(|x| narrow(*x)).collect::<Vec<u16>>());
        }
        let mut logits = self.team.zeros(count * vocabulary);
        let to = EpilogueBf16::Rows { bias, to: ColumnsMut::new(&mut logits, vocabulary) };
        self.unit.with_tiles(|tiles| self.product(tiles, matrix, &input, count, to));
        logits
    }

    fn feed_forward(&self, tiles: &Tiles, layer: &Layer<M>, tokens: usize, scratch: &mut PartScratch) {
        let ForwardBf16 { d, unit, .. } = *self;
        if let Some(norm) = layer.output_norms[0].as_ref().filter(|_| !d.parallel) {
            norm_rows(unit, norm, tokens, &mut scratch.x, &mut scratch.rounded, false);
        }
        let PartScratch { rounded, parallel, wide, gated, .. } = scratch;
        let from = if d.parallel { parallel } else { rounded };
        let Some(router) = &layer.router else {
            let block = &layer.blocks[0];
            self.up(tiles, block, from, tokens, wide, gated);
            let input = if d.gated { ProductInput::Gated } else { ProductInput::Wide };
            return self.add(tiles, &block.down, layer.output_norms[1].as_ref(), tokens, input, scratch);
        };
        let (mut short, mut rows) = (vec![0; d.hidden], vec![0.0; tokens * d.hidden]);
        for (token, row) in rows.chunks_exact_mut(d.hidden).enumerate() {
            widen_heads(unit, from, token, d.hidden, row);
        }
        let mut sum = vec![0.0; tokens * d.hidden];
        let (mut input, mut output) = (Panels::default(), Panels::default());
        let (none, mut row) = (vec![0.0; d.hidden], vec![0.0; d.hidden]);
        let assigned = router.route(&rows);
        for (block, own) in layer.blocks.iter().zip(assigned).filter(|(_, own)| !own.tokens.is_empty()) {
            let count = own.tokens.len();
            input.shape(count, d.hidden);
            output.shape(count, d.hidden);
            for (place, &token) in own.tokens.iter().enumerate() {
                from.get(token as usize, &mut short);
                input.set(place, &short);
                output.set(place, &none);
            }
            self.up(tiles, block, &input, count, wide, gated);
            let wide = if d.gated { &*gated } else { &*wide };
            let to = EpilogueBf16::Add { bias: &block.down.bias, to: output.all() };
            self.product(tiles, &block.down.matrix, wide, count, to);
            for (place, (token, weight)) in own.tokens.iter().zip(own.weights).enumerate() {
                output.get(place, &mut row);
                let to = &mut sum[*token as usize * d.hidden..][..d.hidden];
                to.iter_mut().zip(&row).for_each(|(to, x)| *to += weight * x);
            }
        }
        for (token, sum) in sum.chunks_exact(d.hidden).enumerate() {
            scratch.x.get(token, &mut row);
            row.iter_mut().zip(sum).for_each(|(x, y)| *x += y);
            scratch.x.set(token, &row);
        }
    }

    /// The activations of a feed-forward block: in `gated` if it is gated, in `wide` otherwise.
    fn up(
        &self,
        tiles: &Tiles,
        block: &FeedForward<M>,
        from: &Panels<u16>,
        tokens: usize,
        wide: &mut Panels<u16>,
        gated: &mut Panels<u16>,
    ) {
        let ForwardBf16 { d, activation, unit, .. } = *self;
        let first = if d.gated { Activation::Identity } else { activation };
        let to = EpilogueBf16::Store { bias: &block.up.bias, activation: first, to: wide.all() };
        self.product(tiles, &block.up.matrix, from, tokens, to);
        if d.gated {
            gate_rows(unit, tokens, wide, activation, gated);
        }
    }

    /// Adds a product to `x`, with the norm that follows it.
    fn add(
        &self,
        tiles: &Tiles,
        linear: &Linear<M>,
        norm: Option<&Norm>,
        tokens: usize,
        input: ProductInput,
        scratch: &mut PartScratch,
    ) {
        let ForwardBf16 { d, unit, .. } = *self;
        let PartScratch { x, part, rounded, context, wide, gated, .. } = scratch;
        let from = match input {
            ProductInput::Attention => context,
            ProductInput::Wide => wide,
            ProductInput::Gated => gated,
        };
        let bias = &linear.bias;
        match norm {
            Some(norm) if d.placement == NormPlacement::Both => {
                let none = vec![0.0; d.hidden];
                (0..tokens).for_each(|row| part.set(row, &none));
                self.product(tiles, &linear.matrix, from, tokens, EpilogueBf16::Add { bias, to: part.all() });
                norm_rows(unit, norm, tokens, part, rounded, true);
                add_rows(unit, tokens, part, x);
            }
            Some(norm) => {
                self.product(tiles, &linear.matrix, from, tokens, EpilogueBf16::Add { bias, to: x.all() });
                norm_rows(unit, norm, tokens, x, rounded, true);
            }
            None => {
                self.product(tiles, &linear.matrix, from, tokens, EpilogueBf16::Add { bias, to: x.all() });
            }
        }
    }

    /// A product, its columns split over threads: a single block is bound by memory bandwidth.
    fn product(&self, tiles: &Tiles, m: &M, a: &Panels<u16>, rows: usize, finish: EpilogueBf16<'_>) {
        let (cpu, panels) = (self.cpu(), m.panels());
        let tasks = cpu.tasks(panels);
        if tasks == 1 {
            return m.multiply(InputBf16 { tiles, a, rows }, 0..panels, finish);
        }
        let mut parts = Vec::with_capacity(tasks);
        let mut rest = finish;
        for n in 0..tasks {
            let own = cpu.share(panels, n, tasks);
            let finish;
            (finish, rest) = rest.split(own.end);
            parts.push((own, finish));
        }
        self.team.each(parts, |(panels, finish)| {
            self.unit.with_tiles(|tiles| m.multiply(InputBf16 { tiles, a, rows }, panels, finish));
        });
    }
}

/// The input of a product.
#[derive(Clone, Copy)]
enum ProductInput {
    Attention,
    Wide,
    Gated,
}

/// The tokens of a step by parts for `threads` threads.
fn parts(batch: &Batch, threads: usize) -> Vec<step::SomeTokens> {
    let tokens = batch.tokens();
    let count = tokens.div_ceil(PART).next_multiple_of(threads);
    if threads == 1 || tokens < count * LEAST {
        return Vec::new();
    }
    // Rows of whole tiles.
    step::in_parts(batch, tokens.div_ceil(count).next_multiple_of(STEP))
}
