//! What becomes of a product on tiles.

use crate::rows::Activation;

/// What becomes of a product on tiles.
pub enum Finish<'a> {
    /// `activation(product + bias)`, stored as bf16.
    Store {
        /// A summand a column, padded.
        bias: &'a [f32],
        /// The nonlinearity.
        activation: Activation,
        /// Rows `stride` apart.
        to: &'a mut [u16],
        /// See `to`.
        stride: usize,
    },
    /// `product + bias`, added to f32 rows.
    Add {
        /// A summand a column, padded.
        bias: &'a [f32],
        /// Rows `stride` apart.
        to: &'a mut [f32],
        /// See `to`.
        stride: usize,
    },
}
