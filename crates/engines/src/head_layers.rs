//! Layers of output heads with their weights, on plain slices, for all engines.

use sconce_core::card::{Pooling, PoolingMode};
use sconce_core::files::ModelFiles;
use sconce_core::head::{Dense, DenseActivation, Step};
use sconce_kernels::columns::ColumnsMut;
use sconce_kernels::gemm::{GemmScratch, PackedMatrix, Store};
use sconce_kernels::isa::Isa;
use sconce_kernels::math::{gelu, gelu_tanh};
use sconce_kernels::rows::{Activation, Norm, NormStatistics};

use crate::normalize::normalized;
use crate::weights::{SafetensorsFiles, Tensors, WeightsError, norm};

/// A layer with its weights.
pub(crate) enum HeadLayer {
    Dense(DenseLayer),
    Norm(Norm),
    LogRelu(u8),
    Normalize,
}

pub(crate) struct DenseLayer {
    matrix: PackedMatrix,
    bias: Vec<f32>,
    activation: DenseActivation,
}

impl HeadLayer {
    /// Loads the layers of `steps` for rows of `width` columns, from module folders or from the model's `own` tensors.
    pub(crate) fn load_all(
        steps: &[Step],
        mut width: usize,
        files: &ModelFiles,
        own: &dyn Tensors,
    ) -> Result<Vec<HeadLayer>, WeightsError> {
        let mut layers = Vec::with_capacity(steps.len());
        for step in steps {
            layers.push(match step {
                Step::Normalize => HeadLayer::Normalize,
                Step::LogRelu(times) => HeadLayer::LogRelu(*times),
                Step::Norm(step) => {
                    let there = |name: &&String| {
                        ["weight", "gamma"].iter().any(|part| own.shape(&format!("{name}.{part}")).is_some())
                    };
                    let name = step.name.iter().find(there).or(step.name.first());
                    let name = name.map_or("", String::as_str);
                    let (weight, shift) = if step.bias {
                        norm(own, name, width)?
                    } else {
                        (own.read(&format!("{name}.weight"), &[width])?, vec![0.0; width])
                    };
                    HeadLayer::Norm(Norm {
                        statistics: NormStatistics::MeanVariance,
                        weight,
                        shift,
                        epsilon: step.epsilon as f32,
                    })
                }
                Step::Dense(dense) => {
                    width = dense.output;
                    HeadLayer::Dense(match &dense.folder {
                        Some(folder) => {
                            DenseLayer::load(dense, &SafetensorsFiles::of_module(files, folder)?)?
                        }
                        None => DenseLayer::load(dense, own)?,
                    })
                }
            });
        }
        Ok(layers)
    }

    /// Applies the layer to rows of `width` columns; returns the rows and their new width.
    pub(crate) fn apply(&self, mut x: Vec<f32>, width: usize) -> (Vec<f32>, usize) {
        match self {
            HeadLayer::Normalize => (normalized(width, x, true).values, width),
            HeadLayer::Norm(norm) => {
                norm.apply(Isa::best(), &mut x, width);
                (x, width)
            }
            HeadLayer::LogRelu(times) => {
                for _ in 0..*times {
                    for x in &mut x {
                        *x = relu(*x).ln_1p();
                    }
                }
                (x, width)
            }
            HeadLayer::Dense(linear) => (linear.apply(&x), linear.matrix.outputs()),
        }
    }
}

impl DenseLayer {
    fn load(dense: &Dense, tensors: &dyn Tensors) -> Result<DenseLayer, WeightsError> {
        let named = |names: &[String]| {
            let found = names.iter().find(|name| tensors.shape(name).is_some());
            found.or(names.first()).cloned().unwrap_or_default()
        };
        let weight = named(&dense.weight);
        let weights = match &dense.selected_rows {
            None => tensors.read(&weight, &[dense.output, dense.input])?,
            Some(picked) => {
                let table = tensors.read(&weight, &[picked.of, dense.input])?;
                let row = |&row: &u32| table.chunks_exact(dense.input).nth(row as usize).map(<[f32]>::to_vec);
                let rows: Option<Vec<_>> = picked.rows.iter().map(row).collect();
                rows.ok_or_else(|| WeightsError::Missing(format!("{weight} at {:?}", picked.rows)))?.concat()
            }
        };
        let bias = if dense.bias.is_empty() {
            vec![0.0; dense.output]
        } else {
            tensors.read(&named(&dense.bias), &[dense.output])?
        };
        let matrix = PackedMatrix::pack(Isa::best(), &weights, dense.output, dense.input);
        Ok(DenseLayer { matrix, bias, activation: dense.activation })
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let (inputs, outputs) = (self.matrix.inputs(), self.matrix.outputs());
        let rows = x.len() / inputs.max(1);
        let mut to = vec![0.0; rows * outputs];
        let columns = ColumnsMut::new(&mut to, outputs);
        let store = &mut Store { bias: &self.bias, activation: Activation::Identity, to: columns };
        self.matrix.multiply(x, inputs, rows, &mut GemmScratch::default(), store);
        self.activate(&mut to);
        to
    }

    /// The elementwise maximum of the layer's outputs over the rows of `x`, without storing the outputs.
    pub(crate) fn largest(&self, x: &[f32]) -> Vec<f32> {
        let inputs = self.matrix.inputs();
        let mut tops = vec![f32::NEG_INFINITY; self.matrix.outputs()];
        let mut keep = |_row: usize, column: usize, values: &mut [f32]| {
            tops[column..].iter_mut().zip(values).for_each(|(top, x)| *top = larger(*top, *x));
        };
        self.matrix.multiply(x, inputs, x.len() / inputs.max(1), &mut GemmScratch::default(), &mut keep);
        tops.iter_mut().zip(&self.bias).for_each(|(top, bias)| *top += bias);
        self.activate(&mut tops);
        tops
    }

    /// Whether the activation is monotonic, so that it commutes with the maximum.
    pub(crate) fn is_monotonic(&self) -> bool {
        match self.activation {
            DenseActivation::Identity | DenseActivation::Tanh | DenseActivation::Relu => true,
            DenseActivation::Gelu | DenseActivation::GeluTanh => false,
        }
    }

    fn activate(&self, values: &mut [f32]) {
        let activation: fn(f32) -> f32 = match self.activation {
            DenseActivation::Identity => return,
            DenseActivation::Tanh => f32::tanh,
            DenseActivation::Relu => relu,
            DenseActivation::Gelu => gelu,
            DenseActivation::GeluTanh => gelu_tanh,
        };
        for x in values {
            *x = activation(*x);
        }
    }
}

/// ReLU that propagates NaN.
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// The larger of two values; propagates NaN.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || !(b > a || b.is_nan()) { a } else { b }
}

/// Pools `tokens`, the first of which follows `skip` skipped ones; the modes' results are concatenated.
pub(crate) fn pool(pooling: &Pooling, tokens: &[f32], width: usize, skip: usize) -> Vec<f32> {
    pooling.modes.iter().flat_map(|&mode| pool_by(mode, tokens, width, skip)).collect()
}

fn pool_by(mode: PoolingMode, tokens: &[f32], width: usize, skip: usize) -> Vec<f32> {
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
        PoolingMode::Max => rows().fold(vec![f32::NEG_INFINITY; width], |top, row| {
            top.iter().zip(row).map(|(&a, &b)| larger(a, b)).collect()
        }),
    }
}

#[cfg(test)]
mod tests;
