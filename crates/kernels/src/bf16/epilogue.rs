//! What becomes of a product on tiles.

use super::panels::{PanelsMut, STEP};
use crate::rows::Activation;

/// What becomes of a product on tiles.
pub enum EpilogueBf16<'a> {
    /// `activation(product + bias)`, stored as bf16.
    Store {
        /// A summand a column, padded.
        bias: &'a [f32],
        /// The nonlinearity.
        activation: Activation,
        /// Where to.
        to: PanelsMut<'a, u16>,
    },
    /// `product + bias`, score_bias to f32.
    Add {
        /// A summand a column, padded.
        bias: &'a [f32],
        /// Where to.
        to: PanelsMut<'a, f32>,
    },
}

impl<'a> EpilogueBf16<'a> {
    /// Whether there is room for `rows` rows of the panels up to `end`.
    pub(super) fn holds(&self, rows: usize, end: usize) -> bool {
        let (bias, panels, height) = match self {
            EpilogueBf16::Store { bias, to, .. } => (bias, to.end(), to.height()),
            EpilogueBf16::Add { bias, to } => (bias, to.end(), to.height()),
        };
        bias.len() >= end * STEP && panels >= end && height >= rows
    }

    /// What becomes of the panels before `panel`, and of the others.
    #[must_use]
    pub fn split(self, panel: usize) -> (EpilogueBf16<'a>, EpilogueBf16<'a>) {
        match self {
            EpilogueBf16::Store { bias, activation, to } => {
                let (left, right) = to.split(panel);
                (
                    EpilogueBf16::Store { bias, activation, to: left },
                    EpilogueBf16::Store { bias, activation, to: right },
                )
            }
            EpilogueBf16::Add { bias, to } => {
                let (left, right) = to.split(panel);
                (EpilogueBf16::Add { bias, to: left }, EpilogueBf16::Add { bias, to: right })
            }
        }
    }
}
