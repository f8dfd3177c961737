//! Copies weights to a device, in the placement's dtype.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use half::f16;
use sconce_core::placement::Dtype;

use super::device;
use super::matrix::{self, Matrix, Table};
use crate::assembly::EmbeddingTable;
use crate::gguf::blocks::StoredType;
use crate::stored_tensor::StoredTensor;
use crate::weight::Weight;
use crate::weights::{Tensors, WeightsError};

/// Copies weights to a device.
pub(super) struct Loader<'a> {
    tensors: &'a dyn Tensors,
    device: Device,
    /// The dtype of activations, and of weights that are not quantized.
    dtype: DType,
    placed: Dtype,
}

impl<'a> Loader<'a> {
    pub(super) fn new(tensors: &'a dyn Tensors, device: Device, placed: Dtype) -> Loader<'a> {
        Loader { tensors, device, dtype: device::dtype(placed), placed }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dtype of cached keys and values.
    pub(super) fn cache_dtype(&self) -> DType {
        if self.keeps_blocks() { DType::F16 } else { self.dtype }
    }

    /// Whether matrices stay as they are stored.
    pub(super) fn keeps_blocks(&self) -> bool {
        !self.placed.is_float()
    }

    /// The source of the weights.
    pub(super) fn tensors(&self) -> &'a dyn Tensors {
        self.tensors
    }

    /// A vector in f32.
    pub(super) fn vector(&self, values: Vec<f32>) -> Result<Tensor, LoadError> {
        let count = values.len();
        Ok(Tensor::from_vec(values, count, &self.device)?)
    }

    /// Rows in the placement's dtype, converted in host memory.
    pub(super) fn table(&self, values: Vec<f32>, width: usize) -> Result<Tensor, LoadError> {
        let host = Tensor::from_vec(values, ((), width), &Device::Cpu)?;
        Ok(host.to_dtype(self.dtype)?.to_device(&self.device)?)
    }

    /// An embedding table in the placement's dtype. Values that are stored in this dtype are not converted, and quantized
    /// ones stay quantized.
    pub(super) fn embedding_table(&self, table: EmbeddingTable, width: usize) -> Result<Table, LoadError> {
        match table {
            EmbeddingTable::Half(rows) if half_dtype(rows.stored) == Some(self.dtype) => {
                let host = Tensor::from_raw_buffer(&rows.bytes, self.dtype, &rows.shape, &Device::Cpu)?;
                Ok(Table::Float(host.to_device(&self.device)?))
            }
            EmbeddingTable::Quantized(rows, scale) => {
                if let Some(rows) = matrix::quantized(&rows, &self.device)? {
                    return Ok(Table::Quantized(Arc::new(rows), scale.unwrap_or(1.0)));
                }
                let values = EmbeddingTable::Quantized(rows, scale).into_f32();
                self.table(values, width).map(Table::Float)
            }
            table @ (EmbeddingTable::F32(_) | EmbeddingTable::Half(_)) => {
                self.table(table.into_f32(), width).map(Table::Float)
            }
        }
    }

    /// A matrix `[outputs, inputs]`: in the placement's dtype, or as it is stored. Generated weights are quantized for
    /// placements with quantized weights.
    pub(super) fn matrix(&self, weight: Weight, inputs: usize) -> Result<Matrix, LoadError> {
        let values = match weight {
            Weight::Stored(tensors) => return Ok(Matrix::stacked(tensors, &self.device, self.dtype)?),
            Weight::F32(values) => values,
        };
        let quantized = if self.tensors.generated() { quantize(self.placed, &values, inputs)? } else { None };
        Ok(match quantized {
            Some(tensor) => Matrix::stacked(vec![tensor], &self.device, self.dtype)?,
            None => Matrix::float(matrix::transposed(values, inputs, &self.device, self.dtype)?),
        })
    }
}

/// Quantizes values `[outputs, inputs]` to 16 levels per block: `Q4_1` for int4, `Q8_0` for int8; none for floats, and if
/// inputs are no whole blocks. Generated weights are on such levels.
fn quantize(dtype: Dtype, values: &[f32], inputs: usize) -> Result<Option<StoredTensor>, LoadError> {
    let stored = match dtype {
        Dtype::Int4 => StoredType::Q4_1,
        Dtype::Int8 => StoredType::Q8_0,
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => return Ok(None),
    };
    if !inputs.is_multiple_of(stored.block_length()) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    if dtype == Dtype::Int4 {
        let host = Tensor::from_slice(values, values.len(), &Device::Cpu)?;
        bytes.extend_from_slice(&QTensor::quantize(&host, GgmlDType::Q4_1)?.data()?);
    } else {
        // The levels are odd multiples of half a step.
        for block in values.chunks_exact(stored.block_length()) {
            let scale = f16::from_f32(block.iter().fold(0.0, |largest: f32, x| largest.max(x.abs())) / 15.0);
            bytes.extend(scale.to_le_bytes());
            bytes.extend(block.iter().map(|x| ((x / scale.to_f32()).round() as i8).to_le_bytes()[0]));
        }
    }
    Ok(Some(StoredTensor { stored, shape: vec![values.len() / inputs, inputs], bytes }))
}

fn half_dtype(stored: StoredType) -> Option<DType> {
    if stored == StoredType::F16 {
        Some(DType::F16)
    } else {
        (stored == StoredType::BF16).then_some(DType::BF16)
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

#[cfg(test)]
mod tests {
    use sconce_testkit::compare::{largest, max_difference};

    use super::*;
    use crate::weights::GeneratedTensors;

    #[test]
    fn generated_weights_stay_on_their_levels() {
        let exact = GeneratedTensors.read("a.weight", &[48, 64]).expect("they are generated");
        let quantized =
            |dtype| quantize(dtype, &exact, 64).expect("quantized").expect("whole blocks").dequantize();
        assert_eq!(quantized(Dtype::Int4), exact);
        // The middle of the levels is rounded to f16, which Q8_0 does not have, and so is its scale.
        let size = largest(exact.iter().map(|x| f64::from(x.abs())));
        assert!(max_difference(&quantized(Dtype::Int8), &exact) < size / 512.0);
        assert!(quantize(Dtype::Int4, &exact, 48).expect("no error").is_none(), "no whole blocks");
        assert!(quantize(Dtype::F16, &exact, 64).expect("no error").is_none(), "not quantized");
    }
}
