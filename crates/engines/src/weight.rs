//! The weights of a linear layer in host memory: values in f32, or tensors as a file stores them.

use std::ops::Range;

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

    /// Reads the values of an output, in f32.
    pub(crate) fn row(&self, mut output: usize, to: &mut [f32]) {
        match self {
            Weight::F32(values) => to.copy_from_slice(&values[output * to.len()..][..to.len()]),
            Weight::Stored(tensors) => {
                for tensor in tensors {
                    let outputs = tensor.shape[0];
                    if output < outputs {
                        let bytes = tensor.bytes.len() / outputs;
                        let row = &tensor.bytes[output * bytes..][..bytes];
                        return to.copy_from_slice(&tensor.stored.dequantize(row));
                    }
                    output -= outputs;
                }
            }
        }
    }

    /// Values of a range, in f32.
    pub(crate) fn values(&self, range: Range<usize>) -> Vec<f32> {
        match self {
            Weight::F32(values) => values[range].to_vec(),
            Weight::Stored(tensors) => {
                let values = tensors.iter().flat_map(StoredTensor::dequantize);
                values.skip(range.start).take(range.len()).collect()
            }
        }
    }

    /// The outputs of `order`, each with `inputs` values. They are as stored if they come from one tensor.
    pub(crate) fn reordered(self, order: &[usize], inputs: usize) -> Weight {
        if let Weight::Stored(tensors) = &self
            && let [tensor] = &tensors[..]
        {
            return Weight::Stored(vec![tensor.reordered(order.iter().copied())]);
        }
        let values = self.into_f32();
        Weight::F32(order.iter().flat_map(|output| &values[output * inputs..][..inputs]).copied().collect())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::blocks::StoredType;
    use crate::weights::uniform;

    #[test]
    fn reordered_outputs_stay_as_stored() {
        let (mut state, shape, order) = (5, [6, 512], [4, 5, 0, 3]);
        for stored in StoredType::ALL {
            let length = stored.bytes_of(6 * 512).expect("whole blocks");
            // Bytes below 0x7c are never the exponent of an infinite number.
            let bytes = (0..length).map(|_| (uniform(&mut state).abs() * 120.0) as u8).collect();
            let tensor = StoredTensor { stored, shape: shape.to_vec(), bytes };
            let wanted = Weight::F32(tensor.dequantize()).reordered(&order, 512).into_f32();
            let whole = Weight::Stored(vec![tensor.clone(), tensor]);
            let mut row = vec![0.0; 512];
            for (output, wanted) in [(4, &wanted[..512]), (9, &wanted[3 * 512..])] {
                whole.row(output, &mut row);
                assert_eq!(row, wanted, "{stored}");
            }
            let Weight::Stored(mut tensors) = whole else { panic!("{stored} was converted") };
            tensors.truncate(1);
            let whole = Weight::Stored(tensors);
            assert_eq!(whole.values(4 * 512..5 * 512), wanted[..512], "{stored}");
            let Weight::Stored(got) = whole.reordered(&order, 512) else { panic!("{stored} was converted") };
            assert_eq!((got[0].stored, &got[0].shape), (stored, &vec![4, 512]));
            assert_eq!(got[0].dequantize(), wanted, "{stored}");
        }
    }
}
