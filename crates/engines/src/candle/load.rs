//! Weights onto a device, in the dtype that a placement computes in.

use candle_core::{DType, Device, Tensor};

use crate::weights::{Tensors, WeightsError};

/// Weights on their way to a device.
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

    /// Where the weights come from.
    pub(super) fn tensors(&self) -> &'a dyn Tensors {
        self.tensors
    }

    /// A vector in f32.
    pub(super) fn numbers(&self, values: Vec<f32>) -> Result<Tensor, LoadError> {
        let count = values.len();
        Ok(Tensor::from_vec(values, count, &self.device)?)
    }

    /// Rows in the placement's dtype, narrowed in host memory: only what stays goes to the device.
    pub(super) fn table(&self, values: Vec<f32>, width: usize) -> Result<Tensor, LoadError> {
        let host = Tensor::from_vec(values, ((), width), &Device::Cpu)?;
        Ok(host.to_dtype(self.dtype)?.to_device(&self.device)?)
    }

    /// A matrix stored as `[out, inputs]`, transposed, in the placement's dtype.
    pub(super) fn transposed(&self, values: Vec<f32>, inputs: usize) -> Result<Tensor, LoadError> {
        let host = Tensor::from_vec(values, ((), inputs), &Device::Cpu)?;
        Ok(host.t()?.contiguous()?.to_dtype(self.dtype)?.to_device(&self.device)?)
    }
}

/// Why a model could not be built from its weights.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}
