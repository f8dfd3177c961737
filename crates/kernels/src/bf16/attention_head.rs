//! One attention head over one sequence, in panels.

use super::panels::Panels;
use crate::attention::{AttentionMask, RelativeBias};

/// One head over one sequence: whole panels of queries, keys and values after their bias, zero beyond the head
/// dimension.
pub struct AttentionHeadBf16<'a> {
    /// The panels.
    pub rows: &'a Panels<u16>,
    /// The sequence's first row.
    pub start: usize,
    /// Sequence length.
    pub length: usize,
    /// Panels per head.
    pub panels: usize,
    /// First panel of its queries.
    pub query: usize,
    /// First panel of its keys.
    pub key: usize,
    /// First panel of its values.
    pub value: usize,
    /// Factor of attention scores.
    pub scale: f32,
    /// Scores are squashed into this range by tanh.
    pub softcap: Option<f32>,
    /// The attention mask.
    pub mask: AttentionMask,
    /// Relative position bias.
    pub relative_bias: Option<RelativeBias<'a>>,
}
