//! Quantized matrices from the blocks of a file, or from values.

use half::f16;
use sconce_kernels::isa::Isa;
use sconce_kernels::quant::{CodeWidth, QuantFormat, QuantMatrix, QuantRow};
use sconce_kernels::team::Team;

use crate::stored_tensor::StoredTensor;

/// Values per scale.
const GROUP: usize = 32;

/// Packs a tensor `[outputs, inputs]` with the codes and scales of its blocks; none if it is not quantized.
pub(super) fn pack((isa, team): (Isa, &Team), tensor: &StoredTensor) -> Option<QuantMatrix> {
    let format = tensor.stored.quant_format()?;
    let (outputs, inputs) = (tensor.shape[0], tensor.shape[1]);
    let bytes = tensor.bytes.len() / outputs.max(1);
    let read = |output: usize, row: &mut QuantRow| {
        tensor.stored.unpack(&tensor.bytes[output * bytes..][..bytes], row);
    };
    Some(QuantMatrix::pack((isa, team), format, outputs, inputs, read))
}

/// Quantizes values `[outputs, inputs]` to 16 levels between the minimum and the maximum of each 32 inputs; none if inputs
/// are no whole groups. Generated weights are on such levels and stay as they are; others would be rounded.
pub(super) fn values(
    (isa, team): (Isa, &Team),
    width: CodeWidth,
    values: &[f32],
    outputs: usize,
    inputs: usize,
) -> Option<QuantMatrix> {
    let format = QuantFormat { width, group: GROUP, groups: 1, zero: 0, has_minimums: true };
    let largest = 15.0;
    let read = |output: usize, row: &mut QuantRow| {
        for values in values[output * inputs..][..inputs].chunks_exact(GROUP) {
            let (low, high) =
                values.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
            let (scale, minimum) = (f16::from_f32((high - low) / largest), f16::from_f32(-low));
            let code = |x: &f32| ((x + minimum.to_f32()) / scale.to_f32()).round().clamp(0.0, largest) as u8;
            row.codes.extend(values.iter().map(code));
            row.scales.push(scale.to_bits());
            row.minimums.push(minimum.to_bits());
        }
    };
    inputs.is_multiple_of(GROUP).then(|| QuantMatrix::pack((isa, team), format, outputs, inputs, read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::blocks::StoredType;
    use crate::weights::{GeneratedTensors, Tensors, uniform};

    fn rows(matrix: &QuantMatrix) -> Vec<f32> {
        let mut all = vec![f32::NAN; matrix.outputs() * matrix.inputs()];
        for (output, to) in all.chunks_exact_mut(matrix.inputs()).enumerate() {
            matrix.row(output, to);
        }
        all
    }

    #[test]
    fn packed_blocks_have_the_values_of_the_file() {
        let mut state = 3;
        for stored in StoredType::ALL.into_iter().filter(|stored| stored.is_quantized()) {
            let shape = vec![18, 512];
            let length = stored.bytes_of(18 * 512).expect("whole blocks");
            // Bytes below 0x7c are never the exponent of an infinite scale.
            let bytes = (0..length).map(|_| (uniform(&mut state).abs() * 120.0) as u8).collect();
            let tensor = StoredTensor { stored, shape, bytes };
            let matrix = pack((Isa::best(), &Team::new(2)), &tensor).expect("it is quantized");
            assert_eq!(rows(&matrix), tensor.dequantize(), "{stored}");
        }
    }

    #[test]
    fn floats_are_not_packed_as_blocks() {
        let tensor = StoredTensor { stored: StoredType::F32, shape: vec![1, 32], bytes: vec![0; 128] };
        assert!(pack((Isa::best(), &Team::new(2)), &tensor).is_none());
        assert!(values((Isa::best(), &Team::single()), CodeWidth::Eight, &[0.0; 40], 1, 40).is_none());
    }

    #[test]
    fn generated_weights_are_quantized_without_an_error() {
        let exact = GeneratedTensors.read("a.weight", &[48, 64]).expect("they are generated");
        for width in [CodeWidth::Four, CodeWidth::Eight] {
            let matrix = values((Isa::best(), &Team::single()), width, &exact, 48, 64).expect("whole groups");
            assert_eq!(rows(&matrix), exact, "{width:?}");
        }
        // Rounding to bf16 would change them.
        assert!(exact.iter().filter(|x| x.to_bits().trailing_zeros() < 16).count() > exact.len() / 2);
    }
}
