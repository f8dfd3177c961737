//! Scratch memory of the bf16 forward pass.

use sconce_kernels::bf16::{AttentionScratchBf16, Panels, STEP};

use super::disentangled;
use super::scratch::ScratchMemory;
use crate::description::{Description, NormPlacement};

/// Scratch memory of a block, by parts.
#[derive(Default)]
pub(super) struct Scratch(Vec<PartScratch>);

impl Scratch {
    /// Scratch memory of `count` parts.
    pub(super) fn parts(&mut self, count: usize) -> &mut [PartScratch] {
        self.0.resize_with(self.0.len().max(count), PartScratch::default);
        &mut self.0[..count]
    }
}

/// Scratch memory of a part.
#[derive(Default)]
pub(super) struct PartScratch {
    pub(super) x: Panels<f32>,
    pub(super) part: Panels<f32>,
    pub(super) rounded: Panels<u16>,
    /// The input of the feed-forward block, in parallel attention.
    pub(super) parallel: Panels<u16>,
    pub(super) qkv: Panels<u16>,
    /// Queries of attention over a cache, and what it computes.
    pub(super) queries: Vec<f32>,
    pub(super) attended: Vec<f32>,
    pub(super) context: Panels<u16>,
    pub(super) wide: Panels<u16>,
    pub(super) gated: Panels<u16>,
    pub(super) attention: AttentionScratchBf16,
    pub(super) disentangled: disentangled::Scratch,
}

impl ScratchMemory for Scratch {
    fn bytes(&self) -> usize {
        self.0.iter().map(PartScratch::bytes).sum()
    }
}

impl PartScratch {
    fn bytes(&self) -> usize {
        let PartScratch { x, part, rounded, parallel, qkv, context, wide, gated, attention, .. } = self;
        let wider: usize = [x, part].map(Panels::bytes).iter().sum();
        let rows = size_of::<f32>() * (self.queries.capacity() + self.attended.capacity());
        let narrower: usize = [rounded, parallel, qkv, context, wide, gated].map(Panels::bytes).iter().sum();
        wider + narrower + rows + attention.bytes() + self.disentangled.bytes()
    }

    /// Resizes for `tokens` tokens. Each head, and each half of a gated product, has whole panels.
    pub(super) fn shape(&mut self, d: &Description, tokens: usize) {
        let head = d.head_dim.next_multiple_of(STEP);
        self.x.shape(tokens, d.hidden);
        self.rounded.shape(tokens, d.hidden);
        if d.parallel {
            self.parallel.shape(tokens, d.hidden);
        }
        self.qkv.shape(tokens, (d.heads + 2 * d.kv_heads) * head);
        self.context.shape(tokens, d.heads * head);
        if d.gated {
            self.wide.shape(tokens, 2 * d.intermediate.next_multiple_of(STEP));
            self.gated.shape(tokens, d.intermediate);
        } else {
            self.wide.shape(tokens, d.intermediate);
        }
        if d.placement == NormPlacement::Both {
            self.part.shape(tokens, d.hidden);
        }
    }
}
