//! Disentangled attention of the bf16 forward pass, computed in f32: relative scores are gathered value by value, which
//! tiles can't do.

use sconce_core::batch::Sequence;
use sconce_kernels::attention::{AttentionHead, AttentionMask, AttentionScratch, ScoreBias};
use sconce_kernels::bf16::{Panels, STEP, narrow, widen};
use sconce_kernels::isa::Isa;

use crate::description::Description;
use crate::head_layout::HeadLayout;
use crate::positional::disentangled::{PackedRelativeProjections, RelativeScratch};

/// Scratch memory of one sequence.
#[derive(Default)]
pub(super) struct Scratch {
    rows: Vec<f32>,
    context: Vec<f32>,
    short: Vec<u16>,
    attention: AttentionScratch,
    scores: RelativeScratch,
}

impl Scratch {
    /// Allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        let Scratch { rows, context, short, attention, scores } = self;
        let values = (rows.capacity() + context.capacity()) * size_of::<f32>();
        values + short.capacity() * size_of::<u16>() + attention.bytes() + scores.bytes()
    }
}

/// Computes attention over one sequence, from the panels of `qkv` to those of `context`.
pub(super) fn attend(
    d: &Description,
    relative: &PackedRelativeProjections,
    mask: AttentionMask,
    s: &Sequence,
    qkv: &Panels<u16>,
    context: &mut Panels<u16>,
    memory: &mut Scratch,
) {
    let Scratch { rows, context: by_token, short, attention, scores } = memory;
    let (heads, stride, width) = (HeadLayout::of(d), d.qkv_width(), d.query_width());
    // Each head has whole panels.
    let wide = d.head_dim.next_multiple_of(STEP);
    short.resize(stride / d.head_dim * wide, 0);
    rows.resize(s.length * stride, 0.0);
    by_token.resize(s.length * width, 0.0);
    for (token, row) in rows.chunks_exact_mut(stride).enumerate() {
        qkv.get(s.start + token, short);
        for (from, to) in short.chunks_exact(wide).zip(row.chunks_exact_mut(d.head_dim)) {
            widen(&from[..d.head_dim], to);
        }
    }
    let (isa, scale) = (Isa::best(), d.scale as f32);
    for head in 0..d.heads {
        let at = heads.columns(head, stride);
        let scores = relative.scores(scores, head, rows, stride, [at.offsets[0], at.offsets[1]], scale);
        let score_bias = ScoreBias::Disentangled(scores);
        let task =
            AttentionHead { rows, length: s.length, at, bias: None, scale, softcap: None, mask, score_bias };
        task.attend(isa, attention, &mut by_token[head * d.head_dim..], width);
    }
    let short = &mut short[..d.heads * wide];
    short.fill(0);
    for (token, row) in by_token.chunks_exact(width).enumerate() {
        for (from, to) in row.chunks_exact(d.head_dim).zip(short.chunks_exact_mut(wide)) {
            to.iter_mut().zip(from).for_each(|(to, x)| *to = narrow(*x));
        }
        context.set(s.start + token, short);
    }
}
