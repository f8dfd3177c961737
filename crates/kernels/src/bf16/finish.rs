//! What becomes of a product on tiles.

use super::STEP;
use super::panels::PanelsMut;
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
        to: PanelsMut<'a, u16>,
    },
    /// `product + bias`, added to f32.
    Add {
        /// A summand a column, padded.
        bias: &'a [f32],
        /// Where to.
        to: PanelsMut<'a, f32>,
    },
}

impl<'a> Finish<'a> {
    /// Whether there is room for `rows` rows of the panels up to `end`.
    pub(super) fn holds(&self, rows: usize, end: usize) -> bool {
        let (bias, panels, height) = match self {
            Finish::Store { bias, to, .. } => (bias, to.end(), to.height()),
            Finish::Add { bias, to } => (bias, to.end(), to.height()),
        };
        bias.len() >= end * STEP && panels >= end && height >= rows
    }

    /// What becomes of the panels before `panel`, and of the others.
    #[must_use]
    pub fn split(self, panel: usize) -> (Finish<'a>, Finish<'a>) {
        match self {
            Finish::Store { bias, activation, to } => {
                let (left, right) = to.split(panel);
                (Finish::Store { bias, activation, to: left }, Finish::Store { bias, activation, to: right })
            }
            Finish::Add { bias, to } => {
                let (left, right) = to.split(panel);
                (Finish::Add { bias, to: left }, Finish::Add { bias, to: right })
            }
        }
    }
}
