//! The epilogue of a bf16 GEMM.

use super::panels::{PanelsMut, STEP};
use crate::columns::ColumnsMut;
use crate::rows::Activation;

/// The epilogue of a bf16 GEMM.
pub enum EpilogueBf16<'a> {
    /// Stores `activation(output + bias)` as bf16.
    Store {
        /// Bias per column, padded.
        bias: &'a [f32],
        /// Activation.
        activation: Activation,
        /// Destination.
        to: PanelsMut<'a, u16>,
    },
    /// Adds `output + bias` to f32 values.
    Add {
        /// Bias per column, padded.
        bias: &'a [f32],
        /// Destination.
        to: PanelsMut<'a, f32>,
    },
    /// Stores `output + bias` in rows of f32 values. Padded columns are left out.
    Rows {
        /// Bias per column, padded.
        bias: &'a [f32],
        /// Destination.
        to: ColumnsMut<'a>,
    },
}

impl<'a> EpilogueBf16<'a> {
    /// Whether the destination holds `rows` rows of the panels up to `end`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn holds(&self, rows: usize, end: usize) -> bool {
        let (bias, panels, height) = match self {
            EpilogueBf16::Store { bias, to, .. } => (bias, to.end(), to.height()),
            EpilogueBf16::Add { bias, to } => (bias, to.end(), to.height()),
            EpilogueBf16::Rows { bias, to } => (bias, to.columns().end.div_ceil(STEP), to.rows()),
        };
        bias.len() >= end * STEP && panels >= end && height >= rows
    }

    /// Splits the destination before `panel`.
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
            EpilogueBf16::Rows { bias, to } => {
                let column = (panel * STEP).min(to.columns().end);
                let (left, right) = to.split(column);
                (EpilogueBf16::Rows { bias, to: left }, EpilogueBf16::Rows { bias, to: right })
            }
        }
    }
}
