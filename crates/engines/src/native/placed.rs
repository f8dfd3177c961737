//! Disentangled attention between products in bf16: computed in f32, as scores of content against distance are gathered
//! number by number and have no tiles.

use sconce_core::batch::Sequence;
use sconce_kernels::attention::{Added, Head, Reach, Scratch};
use sconce_kernels::bf16::{Panels, STEP, narrow, widen};
use sconce_kernels::isa::Isa;

use crate::description::Description;
use crate::parts::disentangled::{PackedPlaces, PlaceScores};
use crate::queries::Heads;

/// Room for one sequence, kept between them.
#[derive(Default)]
pub(super) struct Room {
    rows: Vec<f32>,
    mixed: Vec<f32>,
    short: Vec<u16>,
    scratch: Scratch,
    scores: PlaceScores,
}

impl Room {
    /// Bytes of memory that it holds.
    pub(super) fn bytes(&self) -> usize {
        let Room { rows, mixed, short, scratch, scores } = self;
        let numbers = (rows.capacity() + mixed.capacity()) * size_of::<f32>();
        numbers + short.capacity() * size_of::<u16>() + scratch.bytes() + scores.bytes()
    }
}

/// Attends over one sequence, from the panels of `qkv` to those of `mixed`.
pub(super) fn attend(
    d: &Description,
    places: &PackedPlaces,
    reach: Reach,
    s: &Sequence,
    qkv: &Panels<u16>,
    mixed: &mut Panels<u16>,
    room: &mut Room,
) {
    let Room { rows, mixed: by_token, short, scratch, scores } = room;
    let (heads, stride, width) = (Heads::of(d), d.qkv_width(), d.query_width());
    // Each head has whole panels of its own.
    let wide = d.head.next_multiple_of(STEP);
    short.resize(stride / d.head * wide, 0);
    rows.resize(s.length * stride, 0.0);
    by_token.resize(s.length * width, 0.0);
    for (token, row) in rows.chunks_exact_mut(stride).enumerate() {
        qkv.get(s.start + token, short);
        for (from, to) in short.chunks_exact(wide).zip(row.chunks_exact_mut(d.head)) {
            widen(&from[..d.head], to);
        }
    }
    let (isa, scale) = (Isa::best(), d.scale as f32);
    for head in 0..d.heads {
        let at = heads.columns(head, stride);
        let scores = places.scores(scores, head, rows, stride, [at.parts[0], at.parts[1]], scale);
        let added = Added::Disentangled(scores);
        let task = Head { rows, length: s.length, at, bias: None, scale, reach, added };
        task.attend(isa, scratch, &mut by_token[head * d.head..], width);
    }
    let short = &mut short[..d.heads * wide];
    short.fill(0);
    for (token, row) in by_token.chunks_exact(width).enumerate() {
        for (from, to) in row.chunks_exact(d.head).zip(short.chunks_exact_mut(wide)) {
            to.iter_mut().zip(from).for_each(|(to, x)| *to = narrow(*x));
        }
        mixed.set(s.start + token, short);
    }
}
