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

    /// The rows of `order`. Rows are whole blocks, so this needs no conversion.
    pub(crate) fn reordered(&self, order: impl Iterator<Item = usize>) -> StoredTensor {
        let row = self.bytes.len() / self.shape[0].max(1);
        let bytes: Vec<u8> = order.flat_map(|index| &self.bytes[index * row..][..row]).copied().collect();
        let mut shape = self.shape.clone();
        shape[0] = bytes.len() / row.max(1);
        StoredTensor { stored: self.stored, shape, bytes }
    }
}
