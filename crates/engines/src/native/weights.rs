//! Weights packed once, as the kernels read them; what was read is dropped at once.

use sconce_core::batch::Batch;
use sconce_kernels::attention::Distances;
use sconce_kernels::rows::Norm;

use crate::description::Description;
use crate::families::{EMBEDDING_NORM, POSITIONS, RELATIVE_BIAS, TYPES, WORDS};
use crate::relative::Relative;
use crate::weights::{Tensors, WeightsError, prefix};

/// All weights of an encoder, its matrices packed as `M`.
pub(super) struct Weights<M> {
    pub(super) words: Table,
    pub(super) positions: Table,
    pub(super) types: Option<Table>,
    pub(super) embedding_norm: Norm,
    pub(super) layers: Vec<Layer<M>>,
    relative: Option<Relative>,
}

pub(super) struct Layer<M> {
    pub(super) qkv: Linear<M>,
    pub(super) output: Linear<M>,
    pub(super) attention_norm: Norm,
    pub(super) up: Linear<M>,
    pub(super) down: Linear<M>,
    pub(super) output_norm: Norm,
}

/// A matrix and its bias, the bias as long as the packed matrix is wide.
pub(super) struct Linear<M> {
    pub(super) matrix: M,
    pub(super) bias: Vec<f32>,
}

/// A table of rows, in the width that the engine computes in.
pub(super) enum Table {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

impl Table {
    /// Adds row `index` to `to`, which is as long as a row.
    fn add(&self, index: u32, to: &mut [f32]) {
        let place = index as usize * to.len()..(index as usize + 1) * to.len();
        match self {
            Table::F32(rows) => to.iter_mut().zip(&rows[place]).for_each(|(to, x)| *to += x),
            Table::Bf16(rows) => {
                to.iter_mut()
                    .zip(&rows[place])
                    .for_each(|(to, x)| *to += f32::from_bits(u32::from(*x) << 16));
            }
        }
    }
}

/// How matrices and tables are packed.
pub(super) trait Packing<M> {
    /// Packs `[outputs, inputs]`.
    fn matrix(&self, weights: &[f32], outputs: usize, inputs: usize) -> M;
    /// Packs a table.
    fn table(&self, rows: Vec<f32>) -> Table;
    /// The width of a packed matrix of `outputs`.
    fn padded(&self, outputs: usize) -> usize;
    /// The columns that a head of `width` takes among queries, keys and values; those behind it are zero.
    fn head(&self, width: usize) -> usize;
}

impl<M> Weights<M> {
    pub(super) fn load(
        d: &Description,
        from: &dyn Tensors,
        packing: &impl Packing<M>,
    ) -> Result<Weights<M>, WeightsError> {
        let names = &d.family.names;
        let prefix = prefix(from, names.prefixes, WORDS)?;
        let full = |name: &str| format!("{prefix}{name}");
        let packed = |weights: &[f32], mut bias: Vec<f32>, inputs: usize| {
            let matrix = packing.matrix(weights, bias.len(), inputs);
            bias.resize(packing.padded(bias.len()), 0.0);
            Linear { matrix, bias }
        };
        let read = |name: &str, outputs: usize, inputs: usize| -> Result<_, WeightsError> {
            let weights = from.read(&format!("{name}.weight"), &[outputs, inputs])?;
            Ok((weights, from.read(&format!("{name}.bias"), &[outputs])?))
        };
        let linear = |name: &str, outputs: usize, inputs: usize| -> Result<Linear<M>, WeightsError> {
            let (weights, bias) = read(name, outputs, inputs)?;
            Ok(packed(&weights, bias, inputs))
        };
        let (head, wide) = (d.head(), packing.head(d.head()));
        let qkv = |names: [String; 3]| -> Result<Linear<M>, WeightsError> {
            let (mut all, mut biases) = (Vec::new(), Vec::new());
            for name in names {
                let (weights, bias) = read(&name, d.hidden, d.hidden)?;
                all.extend(spread(&weights, head * d.hidden, wide * d.hidden));
                biases.extend(spread(&bias, head, wide));
            }
            Ok(packed(&all, biases, d.hidden))
        };
        let output = |name: &str| -> Result<Linear<M>, WeightsError> {
            let (weights, bias) = read(name, d.hidden, d.hidden)?;
            Ok(packed(&spread(&weights, head, wide), bias, d.heads * wide))
        };
        let norm = |name: &str| -> Result<Norm, WeightsError> {
            let (weight, shift) = crate::weights::norm(from, name, d.hidden)?;
            Ok(Norm { weight, shift, epsilon: d.epsilon as f32 })
        };
        let mut layers = Vec::with_capacity(d.layers);
        for layer in 0..d.layers {
            let name = |pattern: &str| full(&pattern.replace("{}", &layer.to_string()));
            layers.push(Layer {
                qkv: qkv([names.query, names.key, names.value].map(name))?,
                output: output(&name(names.output))?,
                attention_norm: norm(&name(names.attention_norm))?,
                up: linear(&name(names.up), d.intermediate, d.hidden)?,
                down: linear(&name(names.down), d.hidden, d.intermediate)?,
                output_norm: norm(&name(names.output_norm))?,
            });
        }
        let table = |name: &str, rows: usize| -> Result<Table, WeightsError> {
            Ok(packing.table(from.read(&full(name), &[rows, d.hidden])?))
        };
        let relative = match d.relative {
            Some(bias) => {
                let weights = from.read(&full(RELATIVE_BIAS), &[bias.buckets, d.heads])?;
                Some(Relative::new(bias, &weights, d.heads, d.positions.rows))
            }
            None => None,
        };
        Ok(Weights {
            words: table(WORDS, d.vocabulary)?,
            positions: table(POSITIONS, d.positions.rows)?,
            types: if d.types > 0 { Some(table(TYPES, d.types)?) } else { None },
            embedding_norm: norm(&full(EMBEDDING_NORM))?,
            layers,
            relative,
        })
    }

    /// The bias by distance of one head.
    pub(super) fn distances(&self, head: usize) -> Option<Distances<'_>> {
        self.relative.as_ref().map(|relative| relative.head(head))
    }

    /// Gives `put` every token of `batch` with the sum of its rows of the tables.
    pub(super) fn embed(&self, d: &Description, batch: &Batch, mut put: impl FnMut(usize, &[f32])) {
        let mut row = vec![0.0; d.hidden];
        for s in &batch.sequences {
            let place = s.start..s.start + s.length;
            let positions = d.position_rows(&batch.ids[place.clone()]);
            for (token, position) in place.zip(positions) {
                row.fill(0.0);
                self.words.add(batch.ids[token], &mut row);
                self.positions.add(position, &mut row);
                if let Some(table) = &self.types {
                    table.add(batch.types[token], &mut row);
                }
                put(token, &row);
            }
        }
    }
}

/// Every `piece` numbers followed by zeros up to `wide`.
fn spread(numbers: &[f32], piece: usize, wide: usize) -> Vec<f32> {
    let mut spread = Vec::with_capacity(numbers.len() / piece * wide);
    for numbers in numbers.chunks_exact(piece) {
        spread.extend(numbers);
        spread.resize(spread.len() + wide - piece, 0.0);
    }
    spread
}
