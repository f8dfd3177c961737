//! From the vectors of tokens to the vector of a text, on plain slices.

use sconce_core::batch::{Rows, Sequence};
use sconce_core::card::{Dense, DenseActivation, ModelCard, Pooling, PoolingMode, Step};
use sconce_core::files::ModelFiles;

use crate::finish::{finish, telling};
use crate::weights::{Files, Tensors, WeightsError};

/// Pooling and the modules after it.
pub(super) struct Head {
    pooling: Pooling,
    steps: Vec<LoadedStep>,
    normalizes: bool,
}

enum LoadedStep {
    Dense { weight: Vec<f32>, bias: Vec<f32>, input: usize, activation: DenseActivation },
    Normalize,
}

impl Head {
    /// The card's pooling, and its modules with their weights.
    pub(super) fn load(card: &ModelCard, files: &ModelFiles) -> Result<Head, WeightsError> {
        let normalizes = card.normalizes();
        let before = &card.steps.value[..card.steps.value.len() - usize::from(normalizes)];
        let steps = before.iter().map(|step| match step {
            Step::Normalize => Ok(LoadedStep::Normalize),
            Step::Dense(dense) => load_dense(dense, files),
        });
        Ok(Head { pooling: card.pooling.value.clone(), steps: steps.collect::<Result<_, _>>()?, normalizes })
    }

    /// The head of a twin.
    pub(super) fn telling() -> Head {
        Head { pooling: telling(), steps: Vec::new(), normalizes: false }
    }

    /// One row a sequence from `hidden`, rows of `width`.
    pub(super) fn rows(&self, hidden: &[f32], width: usize, sequences: &[Sequence]) -> Rows {
        let mut values = Vec::new();
        let mut length = 0;
        for sequence in sequences {
            let skip = if self.pooling.include_prompt { 0 } else { sequence.skip.min(sequence.length - 1) };
            let tokens = &hidden[(sequence.start + skip) * width..(sequence.start + sequence.length) * width];
            let mut row: Vec<f32> =
                self.pooling.modes.iter().flat_map(|&mode| pool(tokens, width, mode, skip)).collect();
            for step in &self.steps {
                row = step.apply(row);
            }
            length = row.len();
            values.extend(row);
        }
        finish(length, values, self.normalizes)
    }
}

fn load_dense(dense: &Dense, files: &ModelFiles) -> Result<LoadedStep, WeightsError> {
    let tensors = Files::of_module(files, &dense.folder)?;
    let weight = tensors.read("linear.weight", &[dense.output, dense.input])?;
    let bias =
        if dense.bias { tensors.read("linear.bias", &[dense.output])? } else { vec![0.0; dense.output] };
    Ok(LoadedStep::Dense { weight, bias, input: dense.input, activation: dense.activation })
}

impl LoadedStep {
    fn apply(&self, row: Vec<f32>) -> Vec<f32> {
        match self {
            LoadedStep::Normalize => finish(row.len(), row, true).values,
            LoadedStep::Dense { weight, bias, input, activation } => {
                let outputs = weight.chunks_exact(*input).zip(bias);
                let sums = outputs.map(|(weights, bias)| {
                    weights.iter().zip(&row).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32
                        + bias
                });
                match activation {
                    DenseActivation::Identity => sums.collect(),
                    DenseActivation::Tanh => sums.map(f32::tanh).collect(),
                }
            }
        }
    }
}

/// One vector of `tokens`, the first of which is the one after `skip`.
fn pool(tokens: &[f32], width: usize, mode: PoolingMode, skip: usize) -> Vec<f32> {
    let rows = || tokens.chunks_exact(width);
    let count = rows().len();
    let weighted = |weight: &dyn Fn(usize) -> f32| {
        let mut sums = vec![0.0; width];
        for (place, row) in rows().enumerate() {
            let weight = weight(place);
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x);
        }
        sums
    };
    match mode {
        PoolingMode::Cls => tokens[..width].to_vec(),
        PoolingMode::LastToken => tokens[tokens.len() - width..].to_vec(),
        PoolingMode::Mean => weighted(&|_| 1.0 / count as f32),
        PoolingMode::MeanSqrtLen => weighted(&|_| 1.0 / (count as f32).sqrt()),
        PoolingMode::WeightedMean => {
            let total: f32 = (0..count).map(|place| (place + skip + 1) as f32).sum();
            weighted(&|place| (place + skip + 1) as f32 / total)
        }
        PoolingMode::Max => {
            let larger = |a: f32, b: f32| if b > a || b.is_nan() { b } else { a };
            rows().fold(vec![f32::NEG_INFINITY; width], |top, row| {
                top.iter().zip(row).map(|(&a, &b)| if a.is_nan() { a } else { larger(a, b) }).collect()
            })
        }
    }
}
