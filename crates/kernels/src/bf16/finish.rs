//! What becomes of a product on tiles.

use super::panels::Panels;
use crate::rows::Activation;

/// What becomes of a product on tiles.
pub enum Finish<'a> {
    /// `activation(product + bias)`, stored as bf16.
    Store {
        /// A summand a column, padded.
        bias: &'a [f32],
        /// The nonlinearity.
        activation: Activation,
        /// Where to.
        to: &'a mut Panels<u16>,
    },
    /// `product + bias`, added to f32.
    Add {
        /// A summand a column, padded.
        bias: &'a [f32],
        /// Where to.
        to: &'a mut Panels<f32>,
    },
}

impl Finish<'_> {
    /// Whether there is room for `rows` rows of `columns`.
    pub(super) fn holds(&self, rows: usize, columns: usize) -> bool {
        let (bias, panels, height) = match self {
            Finish::Store { bias, to, .. } => (bias, to.panels(), to.height()),
            Finish::Add { bias, to } => (bias, to.panels(), to.height()),
        };
        bias.len() >= columns && panels * super::STEP >= columns && height >= rows
    }
}
