//! A tensor as a file stores it: floats or quantized blocks, not converted.

use crate::gguf::blocks::StoredType;

/// A tensor as a file stores it. Rows are whole blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// How the values are stored.
    pub stored: StoredType,
    /// The shape, rows first.
    pub shape: Vec<usize>,
    /// The stored bytes.
    pub bytes: Vec<u8>,
}

impl StoredTensor {
    /// The values in f32.
    pub fn dequantize(&self) -> Vec<f32> {
        self.stored.dequantize(&self.bytes)
    }
}
