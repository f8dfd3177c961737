//! Parts that several families of encoders share.

use crate::config::{Config, Unsupported};
use crate::description::{Biases, Description, NormKind, NormPlacement, PositionTable};

/// A post-norm encoder: layer norms after the embeddings and after each block, biases everywhere.
pub(super) fn post_norm(c: &Config<'_>, d: &mut Description) -> Result<(), Unsupported> {
    d.embedding_norm = true;
    d.norm = NormKind::Layer;
    d.placement = NormPlacement::Post;
    d.epsilon = c.number(&["layer_norm_eps", "layer_norm_epsilon"], 1e-12);
    d.biases = Biases::ALL;
    d.activate(c, &["hidden_act", "activation"], "gelu")
}

/// Learned absolute positions, counted from zero.
pub(super) fn absolute_positions(d: &mut Description) {
    d.position_table = Some(PositionTable { rows: d.max_length, padding_id: None });
}

/// Learned absolute positions, counted from the padding id.
pub(super) fn positions_after_padding(c: &Config<'_>, d: &mut Description) {
    let padding_id = c.size(&["pad_token_id"]).and_then(|id| u32::try_from(id).ok()).unwrap_or(1);
    d.position_table = Some(PositionTable { rows: d.max_length, padding_id: Some(padding_id) });
}
