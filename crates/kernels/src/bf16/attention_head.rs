//! One head of one sequence, as attention on tiles takes it.

use super::panels::Panels;
use crate::attention::{AttentionMask, RelativeBias};

/// One head of one sequence: whole panels of queries, keys and values with their bias, zero behind the head's width.
pub struct AttentionHeadBf16<'a> {
    /// The panels.
    pub rows: &'a Panels<u16>,
    /// The sequence's first row.
    pub start: usize,
    /// Tokens.
    pub length: usize,
    /// Panels that the head takes.
    pub panels: usize,
    /// The first panel of its queries.
    pub query: usize,
    /// The first panel of its keys.
    pub key: usize,
    /// The first panel of its values.
    pub value: usize,
    /// What scores are multiplied with.
    pub scale: f32,
    /// Which keys a query sees.
    pub mask: AttentionMask,
    /// A bias by distance.
    pub relative_bias: Option<RelativeBias<'a>>,
}
