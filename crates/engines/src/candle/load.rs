//! Named weights onto a device, in the dtype that a placement computes in.

use candle_core::{DType, Device, Tensor};

use crate::weights::{Tensors, WeightsError, norm};

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

    /// A tensor in host memory.
    pub(super) fn host(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        self.tensors.read(name, shape)
    }

    /// A tensor in f32.
    pub(super) fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        Ok(Tensor::from_vec(self.host(name, shape)?, shape, &self.device)?)
    }

    /// A tensor in the placement's dtype, narrowed in host memory: only what stays goes to the device.
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let host = Tensor::from_vec(self.host(name, shape)?, shape, &Device::Cpu)?;
        Ok(host.to_dtype(self.dtype)?.to_device(&self.device)?)
    }

    /// A matrix stored as `[out, inputs]`, transposed, in the placement's dtype.
    pub(super) fn transposed(&self, name: &str, out: usize, inputs: usize) -> Result<Tensor, LoadError> {
        let host = Tensor::from_vec(self.host(name, &[out, inputs])?, (out, inputs), &Device::Cpu)?;
        Ok(host.t()?.contiguous()?.to_dtype(self.dtype)?.to_device(&self.device)?)
    }

    /// The weight and shift of a norm.
    pub(super) fn norm(&self, name: &str, width: usize) -> Result<(Tensor, Tensor), LoadError> {
        let (weight, shift) = norm(self.tensors, name, width)?;
        Ok((Tensor::from_vec(weight, width, &self.device)?, Tensor::from_vec(shift, width, &self.device)?))
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
