//! Weight matrices on a device: floats, or quantized blocks as a file stores them.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{DType, Device, Result, Tensor};

use crate::gguf::blocks::StoredType;
use crate::stored_tensor::StoredTensor;

/// A matrix that multiplies rows of f32 values. Its outputs come from one or more parts.
pub(super) struct Matrix(Vec<Part>);

enum Part {
    /// `[inputs, outputs]`.
    Float(Tensor),
    /// `[outputs, inputs]`.
    Quantized(Arc<QTensor>),
}

impl Matrix {
    /// A matrix of floats, `[inputs, outputs]`.
    pub(super) fn float(weight: Tensor) -> Matrix {
        Matrix(vec![Part::Float(weight)])
    }

    /// Tensors `[outputs, inputs]` that follow each other along the outputs. Formats that Candle does not multiply by are
    /// converted to `dtype`.
    pub(super) fn stacked(tensors: Vec<StoredTensor>, device: &Device, dtype: DType) -> Result<Matrix> {
        let mut joined: Vec<StoredTensor> = Vec::new();
        for tensor in tensors {
            match joined.last_mut() {
                Some(last) if last.stored == tensor.stored => {
                    last.shape[0] += tensor.shape[0];
                    last.bytes.extend(tensor.bytes);
                }
                Some(_) | None => joined.push(tensor),
            }
        }
        let part = |tensor: &StoredTensor| match quantized(tensor, device)? {
            Some(weight) => Ok(Part::Quantized(Arc::new(weight))),
            None => transposed(tensor.dequantize(), tensor.shape[1], device, dtype).map(Part::Float),
        };
        joined.iter().map(part).collect::<Result<_>>().map(Matrix)
    }

    /// `x · weight`: f32 in, f32 out.
    pub(super) fn product(&self, x: &Tensor) -> Result<Tensor> {
        match &self.0[..] {
            [part] => part.product(x),
            parts => {
                let products = parts.iter().map(|part| part.product(x)).collect::<Result<Vec<_>>>()?;
                Tensor::cat(&products, 1)?.contiguous()
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_quantized(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Quantized(_)))
    }
}

impl Part {
    fn product(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Part::Float(weight) => x.to_dtype(weight.dtype())?.matmul(weight)?.to_dtype(DType::F32),
            // Metal reads an input that is a view from the start of its buffer.
            Part::Quantized(weight) if x.layout().start_offset() > 0 || !x.is_contiguous() => {
                x.force_contiguous()?.apply_op1_no_bwd(weight.as_ref())
            }
            Part::Quantized(weight) => x.apply_op1_no_bwd(weight.as_ref()),
        }
    }
}

/// A table of rows that are looked up.
pub(super) enum Table {
    Float(Tensor),
    /// Quantized rows and their factor.
    Quantized(Arc<QTensor>, f64),
}

impl Table {
    /// The rows `ids`, in f32.
    pub(super) fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Table::Float(rows) => rows.index_select(ids, 0)?.to_dtype(DType::F32),
            Table::Quantized(rows, factor) => rows.embedding(ids)? * *factor,
        }
    }

    /// The output matrix that shares the memory of the table; none if it needs a layout of its own.
    pub(super) fn tied(&self) -> Option<Matrix> {
        match self {
            Table::Float(_) => None,
            Table::Quantized(rows, _) => Some(Matrix(vec![Part::Quantized(Arc::clone(rows))])),
        }
    }
}

/// A tensor on `device` as it is stored; none if Candle does not multiply by its format.
pub(super) fn quantized(tensor: &StoredTensor, device: &Device) -> Result<Option<QTensor>> {
    let Some(format) = ggml_dtype(tensor.stored) else { return Ok(None) };
    if tensor.shape.last().is_none_or(|inputs| !inputs.is_multiple_of(format.block_size())) {
        return Ok(None);
    }
    let storage = QStorage::from_data(tensor.bytes.as_slice().into(), device, format)?;
    QTensor::new(storage, tensor.shape.as_slice()).map(Some)
}

/// Values `[outputs, inputs]`, transposed, in `dtype`.
pub(super) fn transposed(values: Vec<f32>, inputs: usize, device: &Device, dtype: DType) -> Result<Tensor> {
    let host = Tensor::from_vec(values, ((), inputs), &Device::Cpu)?;
    host.t()?.contiguous()?.to_dtype(dtype)?.to_device(device)
}

/// Candle's name of a block format; none of floats, and of formats that it lacks.
fn ggml_dtype(stored: StoredType) -> Option<GgmlDType> {
    Some(match stored {
        StoredType::Q4_0 => GgmlDType::Q4_0,
        StoredType::Q4_1 => GgmlDType::Q4_1,
        StoredType::Q5_0 => GgmlDType::Q5_0,
        StoredType::Q5_1 => GgmlDType::Q5_1,
        StoredType::Q8_0 => GgmlDType::Q8_0,
        StoredType::Q2_K => GgmlDType::Q2K,
        StoredType::Q3_K => GgmlDType::Q3K,
        StoredType::Q4_K => GgmlDType::Q4K,
        StoredType::Q5_K => GgmlDType::Q5K,
        StoredType::Q6_K => GgmlDType::Q6K,
        StoredType::F32 | StoredType::F16 | StoredType::BF16 | StoredType::IQ4_NL | StoredType::IQ4_XS => {
            return None;
        }
    })
}

#[cfg(test)]
mod tests;
