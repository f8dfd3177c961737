//! The bf16 forward pass of a block of sequences, on one thread. Residuals, norms, softmax and accumulators are f32.

use std::ops::Range;

use sconce_core::batch::Batch;
use sconce_kernels::attention::AttentionMask;
use sconce_kernels::bf16::{
    AttentionHeadBf16, AttentionScratchBf16, Bf16, EpilogueBf16, MatrixBf16, Panels, STEP, Tiles, add_rows,
    gate_rows, narrow, norm_rows, widen,
};
use sconce_kernels::isa::Isa;
use sconce_kernels::rope::RopeTable;
use sconce_kernels::rows::{Activation, Norm};

use super::disentangled;
use super::kv_cache::{CachedAttention, KvCache};
use super::scratch::ScratchMemory;
use super::weights::{FeedForward, Layer, Linear, Packing, Table, Weights};
use crate::description::{Description, NormPlacement};
use crate::gguf::blocks::StoredType;
use crate::head_layout::HeadLayout;
use crate::stored_tensor::StoredTensor;
use crate::weight::Weight;

/// Packs matrices as bf16 tiles.
pub(super) struct PackBf16(pub(super) Bf16);

impl Packing<MatrixBf16> for PackBf16 {
    fn matrix(&self, weight: Weight, outputs: usize, inputs: usize) -> MatrixBf16 {
        MatrixBf16::pack(self.0, &weight.into_f32(), outputs, inputs)
    }

    fn table(&self, rows: Vec<f32>) -> Table {
        Table::Bf16(rows.into_iter().map(narrow).collect())
    }

    fn half_table(&self, rows: &StoredTensor) -> Table {
        if rows.stored != StoredType::BF16 {
            return self.table(rows.dequantize());
        }
        let values = rows.bytes.as_chunks::<2>().0;
        Table::Bf16(values.iter().map(|&value| u16::from_le_bytes(value)).collect())
    }

    fn padded(&self, outputs: usize) -> usize {
        outputs.next_multiple_of(STEP)
    }

    fn part(&self, width: usize) -> usize {
        width.next_multiple_of(STEP)
    }
}

/// Scratch memory of a block.
#[derive(Default)]
pub(super) struct Scratch {
    x: Panels<f32>,
    part: Panels<f32>,
    rounded: Panels<u16>,
    /// The input of the feed-forward block, in parallel attention.
    parallel: Panels<u16>,
    qkv: Panels<u16>,
    context: Panels<u16>,
    wide: Panels<u16>,
    gated: Panels<u16>,
    attention: AttentionScratchBf16,
    disentangled: disentangled::Scratch,
}

impl ScratchMemory for Scratch {
    fn bytes(&self) -> usize {
        let Scratch { x, part, rounded, parallel, qkv, context, wide, gated, attention, disentangled } = self;
        let wider: usize = [x, part].map(Panels::bytes).iter().sum();
        let narrower: usize = [rounded, parallel, qkv, context, wide, gated].map(Panels::bytes).iter().sum();
        wider + narrower + attention.bytes() + disentangled.bytes()
    }
}

/// The forward pass of one model in bf16.
pub(super) struct ForwardBf16<'a> {
    pub(super) d: &'a Description,
    pub(super) weights: &'a Weights<MatrixBf16>,
    pub(super) activation: Activation,
    pub(super) unit: Bf16,
}

impl ForwardBf16<'_> {
    /// The last hidden states of `batch`, `[tokens, hidden]`. In a step, keys and values are stored in `cache` and read
    /// from it.
    pub(super) fn hidden(
        &self,
        batch: &Batch,
        cache: Option<&mut KvCache<u16>>,
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        self.unit.with_tiles(|tiles| self.block(tiles, batch, cache, scratch))
    }

    fn block(
        &self,
        tiles: &Tiles,
        batch: &Batch,
        mut cache: Option<&mut KvCache<u16>>,
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        let ForwardBf16 { d, weights, unit, .. } = *self;
        let tokens = batch.tokens();
        // Each head, and each half of a gated product, has whole panels.
        let head = d.head_dim.next_multiple_of(STEP);
        scratch.x.shape(tokens, d.hidden);
        scratch.rounded.shape(tokens, d.hidden);
        if d.parallel {
            scratch.parallel.shape(tokens, d.hidden);
        }
        scratch.qkv.shape(tokens, (d.heads + 2 * d.kv_heads) * head);
        scratch.context.shape(tokens, d.heads * head);
        if d.gated {
            scratch.wide.shape(tokens, 2 * d.intermediate.next_multiple_of(STEP));
            scratch.gated.shape(tokens, d.intermediate);
        } else {
            scratch.wide.shape(tokens, d.intermediate);
        }
        if d.placement == NormPlacement::Both {
            scratch.part.shape(tokens, d.hidden);
        }
        weights.embed(d, batch, |token, row| scratch.x.set(token, row));
        if let Some(norm) = &weights.embedding_norm {
            norm_rows(unit, norm, tokens, &mut scratch.x, &mut scratch.rounded, true);
        }
        let rope_tables = weights.rope_tables(batch);
        for (index, layer) in weights.layers.iter().enumerate() {
            let rope_table = rope_tables[usize::from(layer.is_local)].as_deref();
            let cache = cache.as_deref_mut().map(|cache| (cache, index));
            if let Some(norm) = layer.output_norms[0].as_ref().filter(|_| d.parallel) {
                norm_rows(unit, norm, tokens, &mut scratch.x, &mut scratch.parallel, false);
            }
            self.attention(tiles, layer, batch, rope_table, cache, scratch);
            self.feed_forward(tiles, layer, tokens, scratch);
        }
        if let Some(norm) = &weights.final_norm {
            norm_rows(unit, norm, tokens, &mut scratch.x, &mut scratch.rounded, true);
        }
        let mut hidden = vec![0.0; tokens * d.hidden];
        for (row, to) in hidden.chunks_exact_mut(d.hidden).enumerate() {
            scratch.x.get(row, to);
        }
        hidden
    }

    fn attention(
        &self,
        tiles: &Tiles,
        layer: &Layer<MatrixBf16>,
        batch: &Batch,
        rope_table: Option<&RopeTable>,
        cache: Option<(&mut KvCache<u16>, usize)>,
        scratch: &mut Scratch,
    ) {
        let ForwardBf16 { d, weights, unit, .. } = *self;
        let tokens = batch.tokens();
        if let Some(norm) = &layer.attention_norms[0] {
            norm_rows(unit, norm, tokens, &mut scratch.x, &mut scratch.rounded, false);
        }
        let Scratch { rounded, qkv, context, attention, disentangled, .. } = scratch;
        let plain = Activation::Identity;
        let to = EpilogueBf16::Store { bias: &layer.qkv.bias, activation: plain, to: qkv.all() };
        self.product(tiles, &layer.qkv.matrix, rounded, tokens, to);
        if rope_table.is_some() || layer.qk_norms.is_some() {
            qk_norm_rope(d, layer.qk_norms.as_ref(), rope_table, batch, qkv);
        }
        let panels = d.head_dim.div_ceil(STEP);
        let (heads, keys) = (d.heads * panels, d.kv_heads * panels);
        let window = d.local.as_ref().filter(|_| layer.is_local).unwrap_or(&d.global);
        if let Some((cache, index)) = cache {
            self.cached_attention(cache, index, batch, window.mask(), qkv, context);
        }
        for s in batch.sequences.iter().filter(|_| batch.cached.is_empty()) {
            let mask = AttentionMask { visible: s.attended(), ..window.mask() };
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

    /// Stores the keys and values of `batch` in the cache, and attends over it.
    fn cached_attention(
        &self,
        cache: &mut KvCache<u16>,
        layer: usize,
        batch: &Batch,
        mask: AttentionMask,
        qkv: &Panels<u16>,
        context: &mut Panels<u16>,
    ) {
        let d = self.d;
        let (head, wide) = (d.head_dim, d.head_dim.next_multiple_of(STEP));
        let mut row = vec![0; (d.heads + 2 * d.kv_heads) * wide];
        let mut queries = vec![0.0; batch.tokens() * d.query_width()];
        for (s, cached) in batch.sequences.iter().zip(&batch.cached) {
            for token in 0..s.length {
                qkv.get(s.start + token, &mut row);
                let own = &mut queries[(s.start + token) * d.query_width()..][..d.query_width()];
                for (from, to) in row.chunks_exact(wide).zip(own.chunks_exact_mut(head)) {
                    widen(&from[..head], to);
                }
                let (keys, values) = row[d.heads * wide..].split_at(d.kv_heads * wide);
                cache.store(layer, &cached.blocks, cached.length + token, [keys, values], wide);
            }
        }
        let mut output = vec![0.0; queries.len()];
        let queries = (&queries[..], d.query_width());
        let (scale, softcap) = (d.scale as f32, d.softcap());
        let how = CachedAttention { mask, scale, softcap, isa: self.unit.isa() };
        cache.attend(layer, batch, &how, queries, &mut output);
        let mut row = vec![0; d.heads * wide];
        for (token, output) in output.chunks_exact(d.query_width()).enumerate() {
            for (from, to) in output.chunks_exact(head).zip(row.chunks_exact_mut(wide)) {
                to.iter_mut().zip(from).for_each(|(to, x)| *to = narrow(*x));
            }
            context.set(token, &row);
        }
    }

    /// The logits of `rows`, hidden states `[count, hidden]`.
    pub(super) fn logits(&self, rows: &[f32]) -> Vec<f32> {
        let Some(Linear { matrix, bias }) = &self.weights.logits else { return Vec::new() };
        if rows.is_empty() {
            return Vec::new();
        }
        let (hidden, vocabulary) = (self.d.hidden, self.d.vocabulary);
        let count = rows.len() / hidden;
        let (mut input, mut output) = (Panels::default(), Panels::default());
        input.shape(count, hidden);
        output.shape(count, vocabulary);
        let none = vec![0.0; vocabulary];
        for (row, values) in rows.chunks_exact(hidden).enumerate() {
            input.set(row, &values.iter().map(|x| narrow(*x)).collect::<Vec<u16>>());
            output.set(row, &none);
        }
        let to = EpilogueBf16::Add { bias, to: output.all() };
        self.unit.with_tiles(|tiles| self.product(tiles, matrix, &input, count, to));
        let mut logits = vec![0.0; count * vocabulary];
        for (row, to) in logits.chunks_exact_mut(vocabulary).enumerate() {
            output.get(row, to);
        }
        logits
    }

    fn feed_forward(&self, tiles: &Tiles, layer: &Layer<MatrixBf16>, tokens: usize, scratch: &mut Scratch) {
        let ForwardBf16 { d, unit, .. } = *self;
        if let Some(norm) = layer.output_norms[0].as_ref().filter(|_| !d.parallel) {
            norm_rows(unit, norm, tokens, &mut scratch.x, &mut scratch.rounded, false);
        }
        let Scratch { rounded, parallel, wide, gated, .. } = scratch;
        let from = if d.parallel { parallel } else { rounded };
        let Some(router) = &layer.router else {
            let block = &layer.blocks[0];
            self.up(tiles, block, from, tokens, wide, gated);
            let input = if d.gated { ProductInput::Gated } else { ProductInput::Wide };
            return self.add(tiles, &block.down, layer.output_norms[1].as_ref(), tokens, input, scratch);
        };
        let (mut short, mut rows) = (vec![0; d.hidden], vec![0.0; tokens * d.hidden]);
        for (token, row) in rows.chunks_exact_mut(d.hidden).enumerate() {
            from.get(token, &mut short);
            widen(&short, row);
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
        block: &FeedForward<MatrixBf16>,
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
        linear: &Linear<MatrixBf16>,
        norm: Option<&Norm>,
        tokens: usize,
        input: ProductInput,
        scratch: &mut Scratch,
    ) {
        let ForwardBf16 { d, unit, .. } = *self;
        let Scratch { x, part, rounded, context, wide, gated, .. } = scratch;
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

    /// A product, its columns split over the threads of the pool: a single block is bound by memory bandwidth.
    fn product(&self, tiles: &Tiles, m: &MatrixBf16, a: &Panels<u16>, rows: usize, finish: EpilogueBf16<'_>) {
        let threads = rayon::current_num_threads().min(m.panels());
        if threads == 1 {
            m.multiply(tiles, a, rows, 0..m.panels(), finish);
        } else {
            self.split(m, a, rows, 0..m.panels(), threads, finish);
        }
    }

    fn split(
        &self,
        m: &MatrixBf16,
        a: &Panels<u16>,
        rows: usize,
        panels: Range<usize>,
        threads: usize,
        finish: EpilogueBf16<'_>,
    ) {
        if threads == 1 {
            return self.unit.with_tiles(|tiles| m.multiply(tiles, a, rows, panels, finish));
        }
        let few = threads / 2;
        let middle = panels.start + panels.len() * few / threads;
        let (left, right) = finish.split(middle);
        rayon::join(
            || self.split(m, a, rows, panels.start..middle, few, left),
            || self.split(m, a, rows, middle..panels.end, threads - few, right),
        );
    }
}

/// The input of a product.
#[derive(Clone, Copy)]
enum ProductInput {
    Attention,
    Wide,
    Gated,
}

/// QK norms and rotary embedding, in f32.
fn qk_norm_rope(
    d: &Description,
    norms: Option<&[Norm; 2]>,
    rope_table: Option<&RopeTable>,
    batch: &Batch,
    qkv: &mut Panels<u16>,
) {
    let heads = HeadLayout::of(d);
    let (head, wide) = (d.head_dim, d.head_dim.next_multiple_of(STEP));
    let count = d.heads + 2 * d.kv_heads;
    let (mut short, mut row) = (vec![0; count * wide], vec![0.0; count * head]);
    for (index, s) in batch.sequences.iter().enumerate() {
        let first = batch.cached_length(index);
        for token in 0..s.length {
            qkv.get(s.start + token, &mut short);
            for (from, to) in short.chunks_exact(wide).zip(row.chunks_exact_mut(head)) {
                widen(&from[..head], to);
            }
            heads.qk_norm_rope(Isa::Avx512, &mut row, first + token, norms, rope_table);
            for (from, to) in row.chunks_exact(head).zip(short.chunks_exact_mut(wide)) {
                to.iter_mut().zip(from).for_each(|(to, x)| *to = narrow(*x));
            }
            qkv.set(s.start + token, &short);
        }
    }
}
