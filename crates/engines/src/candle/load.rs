//! Copies weights to a device, in the placement's dtype.

use candle_core::{DType, Device, Tensor};

use crate::assembly::EmbeddingTable;
use crate::gguf::blocks::StoredType;
use crate::weights::{Tensors, WeightsError};

/// Copies weights to a device.
pub(super) struct Loader<'a> {
    tensors: &'a dyn Tensors,
    device: Device,
    dtype: DType,
}

impl<'a> Loader<'a> {
    pub(super) fn new(tensors: &'a dyn Tensors, device: Device, dtype: DType) -> Loader<'a> {
        Loader { tensors, device, dtype }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
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

    /// An embedding table in the placement's dtype. Values that are stored in this dtype are not converted.
    pub(super) fn embedding_table(&self, table: EmbeddingTable, width: usize) -> Result<Tensor, LoadError> {
        match table {
            EmbeddingTable::Half(rows) if half_dtype(rows.stored) == Some(self.dtype) => {
                let host = Tensor::from_raw_buffer(&rows.bytes, self.dtype, &rows.shape, &Device::Cpu)?;
                Ok(host.to_device(&self.device)?)
            }
            table @ (EmbeddingTable::F32(_) | EmbeddingTable::Half(_) | EmbeddingTable::Quantized(..)) => {
                self.table(table.into_f32(), width)
            }
        }
    }

    /// A matrix stored as `[outputs, inputs]`, transposed, in the placement's dtype.
    pub(super) fn transposed(&self, values: Vec<f32>, inputs: usize) -> Result<Tensor, LoadError> {
        let host = Tensor::from_vec(values, ((), inputs), &Device::Cpu)?;
        Ok(host.t()?.contiguous()?.to_dtype(self.dtype)?.to_device(&self.device)?)
    }
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
