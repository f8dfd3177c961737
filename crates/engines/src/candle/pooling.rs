//! From the vectors of tokens to the vector of a text, as sentence-transformers does it.

use candle_core::{DType, Device, Result, Tensor};
use sconce_core::batch::{Rows, Sequence};
use sconce_core::card::{DenseActivation, ModelCard, Pooling, PoolingMode, Step};
use sconce_core::files::ModelFiles;

use super::load::{LoadError, Loader};
use crate::finish::{finish, telling};
use crate::weights::Files;

/// Pooling and the modules after it, in f32 whatever the placement's dtype.
pub(super) struct Head {
    pooling: Pooling,
    steps: Vec<LoadedStep>,
    normalizes: bool,
}

enum LoadedStep {
    Dense { weight: Tensor, bias: Option<Tensor>, activation: DenseActivation },
    Normalize,
}

impl Head {
    /// The card's pooling, and its modules with their weights on `device`.
    pub(super) fn load(
        card: &ModelCard,
        files: &ModelFiles,
        device: &Device,
    ) -> std::result::Result<Head, LoadError> {
        let normalizes = card.normalizes();
        let before = card.steps.value.len() - usize::from(normalizes);
        let mut steps = Vec::with_capacity(before);
        for step in &card.steps.value[..before] {
            steps.push(match step {
                Step::Normalize => LoadedStep::Normalize,
                Step::Dense(dense) => {
                    let tensors = Files::of_module(files, &dense.folder)?;
                    let loader = Loader::new(&tensors, device.clone(), DType::F32);
                    let weight = loader.numbers("linear.weight", &[dense.output, dense.input])?;
                    let bias =
                        if dense.bias { Some(loader.numbers("linear.bias", &[dense.output])?) } else { None };
                    LoadedStep::Dense { weight, bias, activation: dense.activation }
                }
            });
        }
        Ok(Head { pooling: card.pooling.value.clone(), steps, normalizes })
    }

    /// The head of a twin.
    pub(super) fn telling() -> Head {
        Head { pooling: telling(), steps: Vec::new(), normalizes: false }
    }

    /// One row a sequence from `hidden`, `[tokens, hidden]`.
    pub(super) fn rows(&self, hidden: &Tensor, sequences: &[Sequence]) -> Result<Rows> {
        let mut pooled = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let modes =
                self.pooling.modes.iter().map(|&mode| pool(hidden, sequence, mode, self.skip(sequence)));
            pooled.push(Tensor::cat(&modes.collect::<Result<Vec<_>>>()?, 1)?);
        }
        let mut x = Tensor::cat(&pooled, 0)?;
        for step in &self.steps {
            x = match step {
                LoadedStep::Normalize => x.broadcast_div(&x.sqr()?.sum_keepdim(1)?.sqrt()?)?,
                LoadedStep::Dense { weight, bias, activation } => {
                    let x = x.matmul(&weight.t()?)?;
                    let x = bias.as_ref().map_or(Ok(x.clone()), |bias| x.broadcast_add(bias))?;
                    match activation {
                        DenseActivation::Identity => x,
                        DenseActivation::Tanh => x.tanh()?,
                    }
                }
            };
        }
        Ok(finish(x.dim(1)?, x.flatten_all()?.to_vec1()?, self.normalizes))
    }

    /// How many leading tokens are passed over; never all of them.
    fn skip(&self, sequence: &Sequence) -> usize {
        if self.pooling.include_prompt { 0 } else { sequence.skip.min(sequence.length - 1) }
    }
}

/// `[1, hidden]` by one mode.
fn pool(hidden: &Tensor, sequence: &Sequence, mode: PoolingMode, skip: usize) -> Result<Tensor> {
    let (start, count) = (sequence.start + skip, sequence.length - skip);
    let weighted = |weights: Vec<f32>| {
        let weights = Tensor::from_vec(weights, (1, count), hidden.device())?;
        weights.matmul(&hidden.narrow(0, start, count)?)
    };
    match mode {
        PoolingMode::Cls => hidden.narrow(0, start, 1),
        PoolingMode::LastToken => hidden.narrow(0, sequence.start + sequence.length - 1, 1),
        PoolingMode::Max => hidden.narrow(0, start, count)?.contiguous()?.max_keepdim(0),
        PoolingMode::Mean => weighted(vec![1.0 / count as f32; count]),
        PoolingMode::MeanSqrtLen => weighted(vec![1.0 / (count as f32).sqrt(); count]),
        PoolingMode::WeightedMean => {
            let places = skip + 1..=sequence.length;
            let total: f32 = places.clone().map(|place| place as f32).sum();
            weighted(places.map(|place| place as f32 / total).collect())
        }
    }
}
