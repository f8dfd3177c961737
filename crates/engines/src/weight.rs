//! The weights of a linear layer in host memory: values in f32, or tensors as a file stores them.

use crate::stored_tensor::StoredTensor;

/// The weights of a linear layer, `[outputs, inputs]`.
pub(crate) enum Weight {
    /// Values in f32.
    F32(Vec<f32>),
    /// Tensors as stored, which follow each other along the outputs.
    Stored(Vec<StoredTensor>),
}

impl Weight {
    /// The values in f32.
    pub(crate) fn into_f32(self) -> Vec<f32> {
        match self {
            Weight::F32(values) => values,
            Weight::Stored(tensors) => tensors.iter().flat_map(StoredTensor::dequantize).collect(),
        }
    }

    /// All outputs of `parts`. They are as stored if all parts are.
    pub(crate) fn concatenate(parts: Vec<Weight>) -> Weight {
        if parts.iter().all(|part| matches!(part, Weight::Stored(_))) {
            let tensors = parts.into_iter().flat_map(|part| match part {
                Weight::Stored(tensors) => tensors,
                Weight::F32(_) => Vec::new(),
            });
            return Weight::Stored(tensors.collect());
        }
        Weight::F32(parts.into_iter().flat_map(Weight::into_f32).collect())
    }
}
