//! Single ops on generated values.

use std::time::Instant;

use candle_core::{D, DType, Device, Result, Tensor};
use sconce_core::batch::Rows;
use sconce_core::probe::{Op, Sample};

use crate::weights::{seed, uniform};

/// Runs `op` on generated values.
pub(super) fn run(op: Op, shape: [usize; 2], device: &Device, dtype: DType) -> Result<Sample> {
    let started = Instant::now();
    let [rows, columns] = shape;
    let generated = |name: &str, shape: (usize, usize), dtype: DType| {
        let mut state = seed(name);
        let values: Vec<f32> = (0..shape.0 * shape.1).map(|_| uniform(&mut state)).collect();
        Tensor::from_vec(values, shape, device)?.to_dtype(dtype)
    };
    // The forward pass computes norms, softmax and activations in f32 for every dtype.
    let dtype = match op {
        Op::LayerNorm | Op::Softmax | Op::Gelu => DType::F32,
        Op::PickRows | Op::Matmul | Op::MatmulTransposed | Op::Transpose => dtype,
    };
    let x = generated("x", shape.into(), dtype)?;
    let y = match op {
        Op::PickRows => {
            let ids: Vec<u32> = (0..rows as u32).rev().collect();
            x.index_select(&Tensor::new(ids, device)?, 0)?
        }
        Op::Matmul => x.matmul(&generated("right", (columns, rows), dtype)?)?,
        Op::MatmulTransposed => x.matmul(&generated("right", (rows, columns), dtype)?.t()?)?,
        Op::Transpose => x.transpose(D::Minus2, D::Minus1)?.contiguous()?,
        Op::LayerNorm => {
            let weight = generated("weight", (1, columns), dtype)?.flatten_all()?;
            let shift = generated("shift", (1, columns), dtype)?.flatten_all()?;
            candle_nn::ops::layer_norm(&x, &weight, &shift, 1e-5)?
        }
        Op::Softmax => candle_nn::ops::softmax_last_dim(&x)?,
        Op::Gelu => x.gelu_erf()?,
    };
    let width = y.dim(D::Minus1)?;
    let values = y.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    Ok(Sample {
        rows: Rows { width, values, norms: Vec::new() },
        seconds: started.elapsed().as_secs_f64(),
        ..Sample::default()
    })
}
