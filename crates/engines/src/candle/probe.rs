//! Answers to probe cases: single ops, twins, one layer's speed, and the real weights.

use std::time::Instant;

use candle_core::{D, DType, Device, Result, Tensor};
use sconce_core::batch::{Batch, Rows, Want};
use sconce_core::engine::{Encoder, EngineError};
use sconce_core::obstacle::Obstacle;
use sconce_core::probe::{Op, Sample};

use super::fault;
use crate::description::Description;
use crate::weights::{seed, uniform};

/// Runs `op` on generated numbers.
pub(super) fn op(op: Op, shape: [usize; 2], device: &Device, dtype: DType) -> Result<Sample> {
    let started = Instant::now();
    let [rows, columns] = shape;
    let generated = |name: &str, shape: (usize, usize)| {
        let mut state = seed(name);
        let values: Vec<f32> = (0..shape.0 * shape.1).map(|_| uniform(&mut state)).collect();
        Tensor::from_vec(values, shape, device)?.to_dtype(dtype)
    };
    let x = generated("x", shape.into())?;
    let y = match op {
        Op::PickRows => {
            let ids: Vec<u32> = (0..rows as u32).rev().collect();
            x.index_select(&Tensor::new(ids, device)?, 0)?
        }
        Op::Matmul => x.matmul(&generated("right", (columns, rows))?)?,
        Op::MatmulTransposed => x.matmul(&generated("right", (rows, columns))?.t()?)?,
        Op::Transpose => x.transpose(D::Minus2, D::Minus1)?.contiguous()?,
        Op::LayerNorm => {
            let weight = generated("weight", (1, columns))?.flatten_all()?;
            let shift = generated("shift", (1, columns))?.flatten_all()?;
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
        memory: None,
    })
}

/// A batch of generated token ids.
pub(super) fn batch(lengths: &[usize], seed: u64, want: Want, description: &Description) -> Batch {
    let (vocabulary, padding) = (description.vocabulary, description.positions.after);
    let mut batch = Batch::new(want);
    let mut state = seed;
    for &length in lengths {
        let mut id = || {
            let id = (uniform(&mut state).abs() * vocabulary as f32) as u32 % vocabulary as u32;
            if Some(id) == padding { (id + 1) % vocabulary as u32 } else { id }
        };
        let ids: Vec<u32> = (0..length).map(|_| id()).collect();
        batch.push(&ids, &vec![0; length], 0);
    }
    batch
}

/// Computes `batch` once, and then again until `enough` seconds are spent; the time is the best.
pub(super) fn timed(
    encoder: &mut dyn Encoder,
    batch: &Batch,
    enough: f64,
) -> std::result::Result<Sample, Obstacle> {
    let mut sample = Sample { seconds: f64::INFINITY, ..Sample::default() };
    let begun = Instant::now();
    while sample.seconds.is_infinite() || begun.elapsed().as_secs_f64() < enough {
        let started = Instant::now();
        sample.rows = encoder.encode(batch).map_err(obstacle)?.into_rows();
        sample.seconds = sample.seconds.min(started.elapsed().as_secs_f64());
    }
    Ok(sample)
}

fn obstacle(error: EngineError) -> Obstacle {
    match error {
        EngineError::OutOfMemory(_) => Obstacle::DoesNotFit { need: None, have: None },
        EngineError::Malformed(says) => Obstacle::LoadFailed { says },
        EngineError::Failed(source) => match source.downcast_ref::<candle_core::Error>() {
            Some(error) => fault::obstacle(error),
            None => Obstacle::LoadFailed { says: source.to_string() },
        },
    }
}
