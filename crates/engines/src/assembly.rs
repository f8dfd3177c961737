//! Assembles a description's weights from a checkpoint's tensors, in host memory, for both interpreters.

use std::cell::RefCell;
use std::collections::HashSet;

use sconce_kernels::columns::ColumnsMut;
use sconce_kernels::gemm::{GemmScratch, PackedMatrix, Store};
use sconce_kernels::isa::Isa;
use sconce_kernels::rows::{Activation, NormStatistics, normalize};

use crate::description::{Description, Experts, NormKind, NormPlacement, RelativePositions};
use crate::experts::Router;
use crate::gguf::blocks::StoredType;
use crate::positional::disentangled::RelativeProjections;
use crate::positional::{alibi, bias_table};
use crate::step;
use crate::stored_tensor::StoredTensor;
use crate::tensor_names::TensorLayout;
use crate::weight::Weight;
use crate::weights::{Tensors, WeightsError};

/// A weight matrix `[outputs, inputs]` and its bias, zeros if there is none.
pub(crate) struct Linear {
    pub(crate) weight: Weight,
    pub(crate) bias: Vec<f32>,
    pub(crate) inputs: usize,
}

impl Linear {
    pub(crate) fn outputs(&self) -> usize {
        self.bias.len()
    }
}

/// The rows of an embedding table.
pub(crate) enum EmbeddingTable {
    /// Values in f32.
    F32(Vec<f32>),
    /// Values in f16 or bf16, as stored.
    Half(StoredTensor),
    /// Quantized values, as stored, and their factor.
    Quantized(StoredTensor, Option<f64>),
}

impl EmbeddingTable {
    /// The values in f32.
    pub(crate) fn into_f32(self) -> Vec<f32> {
        match self {
            EmbeddingTable::F32(values) => values,
            EmbeddingTable::Half(tensor) => tensor.dequantize(),
            EmbeddingTable::Quantized(tensor, scale) => scaled(tensor.dequantize(), scale),
        }
    }
}

/// Weight and bias of a norm; the bias is zero if there is none.
pub(crate) struct Norm {
    pub(crate) weight: Vec<f32>,
    pub(crate) shift: Vec<f32>,
}

/// A feed-forward block.
pub(crate) struct FeedForward {
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

/// The indices in a tensor name.
#[derive(Clone, Copy)]
struct At {
    layer: usize,
    expert: usize,
}

impl From<usize> for At {
    fn from(layer: usize) -> At {
        At { layer, expert: 0 }
    }
}

/// The weights of one layer.
pub(crate) struct Layer {
    pub(crate) qkv: Linear,
    pub(crate) qk_norms: Option<[Norm; 2]>,
    pub(crate) output: Linear,
    pub(crate) router: Option<Router>,
    /// The feed-forward block, or the experts.
    pub(crate) blocks: Vec<FeedForward>,
    /// Before and after attention.
    pub(crate) attention_norms: [Option<Norm>; 2],
    /// Before and after the feed-forward block.
    pub(crate) output_norms: [Option<Norm>; 2],
    pub(crate) relative: Option<RelativeProjections>,
}

/// The weights of one model.
pub(crate) struct Assembly<'a> {
    d: &'a Description,
    from: &'a dyn Tensors,
    prefix: &'static str,
    /// Whether linear layers and token embeddings stay as stored.
    keeps_blocks: bool,
    /// Names of the tensors that were read.
    read: RefCell<HashSet<String>>,
}

type Read<T> = Result<T, WeightsError>;

impl<'a> Assembly<'a> {
    /// Detects the name prefix.
    pub(crate) fn new(d: &'a Description, from: &'a dyn Tensors) -> Read<Assembly<'a>> {
        let names = &d.names;
        let there = |prefix: &&&str| {
            names.token_embeddings.iter().any(|name| from.shape(&format!("{prefix}{name}")).is_some())
        };
        let prefix = names.prefixes.iter().find(there);
        let missing = || WeightsError::Missing(names.token_embeddings[0].to_owned());
        let prefix = prefix.copied().ok_or_else(missing)?;
        Ok(Assembly { d, from, prefix, keeps_blocks: false, read: RefCell::default() })
    }

    /// Leaves linear layers and token embeddings as they are stored.
    pub(crate) fn keeping_blocks(self, keeps_blocks: bool) -> Assembly<'a> {
        Assembly { keeps_blocks, ..self }
    }

    /// Reads a tensor.
    fn read(&self, name: &str, shape: &[usize]) -> Read<Vec<f32>> {
        self.read.borrow_mut().insert(name.to_owned());
        self.from.read(name, shape)
    }

    /// Rejects checkpoints with a layer tensor that was not read: the description lacks a part of the model, and the
    /// result would be wrong.
    pub(crate) fn finish(&self) -> Read<()> {
        let names = &self.d.names;
        let stems: Vec<String> = names
            .output
            .iter()
            .filter_map(|name| Some(format!("{}{}", self.prefix, name.split_once("{}")?.0)))
            .collect();
        let in_layer = |name: &str| {
            let rest = stems.iter().find_map(|stem| name.strip_prefix(stem.as_str()));
            let layer = rest.and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
            layer.is_some_and(|layer| layer < self.d.layers)
        };
        let idle = |name: &str| names.ignored.iter().any(|part| name.contains(part));
        let read = self.read.borrow();
        let unplaced = |name: &String| in_layer(name) && !read.contains(name) && !idle(name);
        match self.from.names().into_iter().filter(unplaced).min() {
            Some(name) => Err(WeightsError::Unplaced(name)),
            None => Ok(()),
        }
    }

    /// Names of the tensors that were read.
    pub(crate) fn used(&self) -> HashSet<String> {
        self.read.borrow().clone()
    }

    /// The full name of the first of `names` that exists; the first name if none exists.
    fn resolve(&self, names: &[&str], at: impl Into<At>, end: &str) -> String {
        let At { layer, expert } = at.into();
        let indexed = |name: &str| name.replace("{}", &layer.to_string()).replace("{e}", &expert.to_string());
        let full = |name: &&str| format!("{}{}{end}", self.prefix, indexed(name));
        let mut names = names.iter().map(full);
        let first = names.next().unwrap_or_default();
        if self.from.shape(&first).is_some() {
            return first;
        }
        names.find(|name| self.from.shape(name).is_some()).unwrap_or(first)
    }

    /// The token embeddings, usually the largest tensor: as stored if they are in half precision and not scaled.
    pub(crate) fn token_embeddings(&self) -> Read<EmbeddingTable> {
        let name = self.resolve(self.d.names.token_embeddings, 0, "");
        let (shape, scale) = ([self.d.vocabulary, self.d.hidden], self.d.embedding_scale);
        let stored = self.from.stored_type(&name);
        let is_half = matches!(stored, Some(StoredType::F16 | StoredType::BF16)) && scale.is_none();
        let is_kept = self.keeps_blocks && stored.is_some_and(StoredType::is_quantized);
        if (is_half || is_kept)
            && let Some(tensor) = self.stored(&name, &shape)?
        {
            let quantized = |tensor| EmbeddingTable::Quantized(tensor, scale);
            return Ok(if is_half { EmbeddingTable::Half(tensor) } else { quantized(tensor) });
        }
        Ok(EmbeddingTable::F32(scaled(self.read(&name, &shape)?, scale)))
    }

    /// Whether the token embeddings are the output matrix.
    pub(crate) fn has_tied_output(&self) -> bool {
        step::output_matrix(self.from).is_none()
    }

    /// A tensor of this shape as it is stored; none if the source has no files.
    fn stored(&self, name: &str, shape: &[usize]) -> Read<Option<StoredTensor>> {
        if self.from.shape(name).is_none_or(|found| found != shape) {
            return Ok(None);
        }
        self.read.borrow_mut().insert(name.to_owned());
        self.from.stored(name)
    }

    /// The weights of a linear layer.
    fn weight(&self, name: &str, shape: &[usize]) -> Read<Weight> {
        let stored = if self.keeps_blocks { self.stored(name, shape)? } else { None };
        match stored {
            Some(tensor) => Ok(Weight::Stored(vec![tensor])),
            None => self.read(name, shape).map(Weight::F32),
        }
    }

    /// The output matrix of a decoder, `[vocabulary, hidden]`: its own, or the token embeddings if they are tied.
    pub(crate) fn output_embeddings(&self) -> Read<Weight> {
        let tied = || self.resolve(self.d.names.token_embeddings, 0, "");
        let name = step::output_matrix(self.from).unwrap_or_else(tied);
        self.weight(&name, &[self.d.vocabulary, self.d.hidden])
    }

    /// The bias of the output matrix; empty if there is none.
    pub(crate) fn output_bias(&self) -> Read<Vec<f32>> {
        let Some(name) = step::output_matrix(self.from) else { return Ok(Vec::new()) };
        let name = format!("{}.bias", name.trim_end_matches(".weight"));
        match self.d.biases.logits {
            true => self.read(&name, &[self.d.vocabulary]),
            false if !self.from.generated() && self.from.shape(&name).is_some() => {
                Err(WeightsError::Unplaced(name))
            }
            false => Ok(Vec::new()),
        }
    }

    pub(crate) fn position_embeddings(&self) -> Read<Option<Vec<f32>>> {
        let Some(positions) = self.d.position_table else { return Ok(None) };
        let name = self.resolve(&[self.d.names.position_embeddings], 0, "");
        self.read(&name, &[positions.rows, self.d.hidden]).map(Some)
    }

    pub(crate) fn token_type_embeddings(&self) -> Read<Option<Vec<f32>>> {
        if self.d.token_types == 0 {
            return Ok(None);
        }
        let name = self.resolve(&[self.d.names.token_type_embeddings], 0, "");
        self.read(&name, &[self.d.token_types, self.d.hidden]).map(Some)
    }

    pub(crate) fn embedding_norm(&self) -> Read<Option<Norm>> {
        let names = self.d.names.embedding_norm;
        if self.d.embedding_norm { self.norm(names, 0, self.d.hidden).map(Some) } else { Ok(None) }
    }

    pub(crate) fn final_norm(&self) -> Read<Option<Norm>> {
        let names = [self.d.names.final_norm];
        if self.d.final_norm { self.norm(&names, 0, self.d.hidden).map(Some) } else { Ok(None) }
    }

    /// The relative position biases of every head.
    pub(crate) fn bias_table(&self) -> Read<Option<bias_table::BiasTable>> {
        let d = self.d;
        match &d.relative_positions {
            Some(RelativePositions::BucketedBias(buckets)) => {
                let name = self.resolve(&[d.names.relative], 0, "");
                let weights = self.read(&name, &[buckets.count, d.heads])?;
                let bias = |head, distance| buckets.bias(&weights, d.heads, head, distance);
                Ok(Some(bias_table::BiasTable::new(d.heads, d.max_length, bias)))
            }
            Some(RelativePositions::Alibi) => {
                let slopes = alibi::slopes(d.heads);
                let bias = |head: usize, distance| alibi::bias(slopes[head], distance);
                Ok(Some(bias_table::BiasTable::new(d.heads, d.max_length, bias)))
            }
            Some(RelativePositions::Disentangled(_)) | None => Ok(None),
        }
    }

    pub(crate) fn layer(&self, layer: usize) -> Read<Layer> {
        let (d, names) = (self.d, &self.d.names);
        let (wide, narrow) = (d.query_width(), d.kv_heads * d.head_dim);
        let mut qkv = self.concatenated(names.qkv, layer, &[wide, narrow, narrow], d.biases.qkv)?;
        if self.from.generated()
            && let Weight::F32(values) = &mut qkv.weight
        {
            // Generated weights are untrained: without this factor, unscaled scores would be large.
            let gain = 1.0 / (d.scale * (d.head_dim as f64).sqrt()) as f32;
            for x in &mut values[..wide * d.hidden] {
                *x *= gain;
            }
        }
        let halves = vec![d.intermediate; if d.gated { 2 } else { 1 }];
        let block = |expert: usize| -> Read<FeedForward> {
            let at = At { layer, expert };
            Ok(FeedForward {
                up: self.concatenated(names.up, at, &halves, d.biases.up)?,
                down: self.linear(names.down, at, [d.hidden, d.intermediate], d.biases.down)?,
            })
        };
        let router = |experts: Experts| -> Read<Router> {
            let name = self.resolve(&[names.router], layer, ".weight");
            Ok(Router { weight: self.read(&name, &[experts.count, d.hidden])?, experts })
        };
        let norm = |names: &[&str]| self.norm(names, layer, d.hidden).map(Some);
        let norms = |names: [&'static [&'static str]; 2], first: bool| -> Read<[Option<Norm>; 2]> {
            Ok(match d.placement {
                NormPlacement::Post => [None, norm(names[1])?],
                NormPlacement::Pre => [if first { norm(names[0])? } else { None }, None],
                NormPlacement::Both => [norm(names[0])?, norm(names[1])?],
            })
        };
        let head_norm = |name: &'static str| self.norm(&[name], layer, d.head_dim);
        let [query, key] = names.qk_norms;
        Ok(Layer {
            qk_norms: if d.qk_norm { Some([head_norm(query)?, head_norm(key)?]) } else { None },
            output: self.linear(names.output, layer, [d.hidden, wide], d.biases.output)?,
            router: d.experts.map(router).transpose()?,
            blocks: (0..d.blocks()).map(block).collect::<Read<_>>()?,
            attention_norms: norms(names.attention_norms, layer > 0 || d.first_norm)?,
            output_norms: norms(names.output_norms, true)?,
            relative: self.relative_projections(layer, &qkv)?,
            qkv,
        })
    }

    /// A matrix that consists of parts with these numbers of outputs.
    fn concatenated(
        &self,
        layouts: &[TensorLayout],
        at: impl Into<At>,
        outputs: &[usize],
        biased: bool,
    ) -> Read<Linear> {
        let (at, inputs) = (at.into(), self.d.hidden);
        let whole: usize = outputs.iter().sum();
        let first = |layout: &TensorLayout| match layout {
            TensorLayout::Stacked(names) => self.resolve(&names[..1], at, ".weight"),
            TensorLayout::Swapped(name) | TensorLayout::PerHead(name) => self.resolve(&[name], at, ".weight"),
        };
        let layout =
            layouts.iter().find(|layout| self.from.shape(&first(layout)).is_some()).unwrap_or(&layouts[0]);
        let explicit = self.d.names.qkv_bias.filter(|_| outputs.len() == 3 && biased);
        let linear = |name: &str, outputs: usize| {
            self.linear(&[name], at, [outputs, inputs], biased && explicit.is_none())
        };
        let mut linear = match layout {
            TensorLayout::Stacked(names) if names.len() == outputs.len() => {
                let parts = names.iter().zip(outputs).map(|(name, &outputs)| linear(name, outputs));
                concatenate(parts.collect::<Result<Vec<_>, _>>()?, inputs)
            }
            TensorLayout::Stacked(names) => {
                let parts = names.iter().map(|name| linear(name, whole / names.len()));
                concatenate(parts.collect::<Result<Vec<_>, _>>()?, inputs)
            }
            TensorLayout::Swapped(name) => {
                let order: Vec<usize> = (whole / 2..whole).chain(0..whole / 2).collect();
                reordered(linear(name, whole)?, &order)
            }
            TensorLayout::PerHead(name) => {
                group_by_part(linear(name, whole)?, self.d.head_dim, self.d.kv_heads)
            }
        };
        if let Some(names) = explicit {
            linear.bias.clear();
            for (name, &outputs) in names.iter().zip(outputs) {
                match *name {
                    "" => linear.bias.extend(vec![0.0; outputs]),
                    name => linear.bias.extend(self.read(&self.resolve(&[name], at, ""), &[outputs])?),
                }
            }
        }
        Ok(linear)
    }

    fn linear(&self, names: &[&str], at: impl Into<At>, shape: [usize; 2], biased: bool) -> Read<Linear> {
        let at = at.into();
        let weight = self.weight(&self.resolve(names, at, ".weight"), &shape)?;
        let bias = if biased {
            self.read(&self.resolve(names, at, ".bias"), &shape[..1])?
        } else {
            vec![0.0; shape[0]]
        };
        Ok(Linear { weight, bias, inputs: shape[1] })
    }

    /// Weight and bias of a norm; old checkpoints call them gamma and beta.
    fn norm(&self, names: &[&str], layer: usize, width: usize) -> Read<Norm> {
        let weight = self.resolve(names, layer, ".weight");
        let old = self.resolve(names, layer, ".gamma");
        let is_old = self.from.shape(&weight).is_none() && self.from.shape(&old).is_some();
        let mut weight = self.read(if is_old { &old } else { &weight }, &[width])?;
        if self.d.norm == NormKind::RmsLessOne && !self.from.generated() {
            for x in &mut weight {
                *x += 1.0;
            }
        }
        let shift = if self.d.norm == NormKind::Layer {
            self.read(&self.resolve(names, layer, if is_old { ".beta" } else { ".bias" }), &[width])?
        } else {
            vec![0.0; width]
        };
        Ok(Norm { weight, shift })
    }

    /// Projections of the relative position embeddings, which do not depend on the input.
    fn relative_projections(&self, layer: usize, qkv: &Linear) -> Read<Option<RelativeProjections>> {
        let (d, names) = (self.d, &self.d.names);
        let Some(RelativePositions::Disentangled(disentangle)) = &d.relative_positions else {
            return Ok(None);
        };
        let table = self.resolve(&[names.relative], 0, "");
        let mut table = self.read(&table, &[2 * disentangle.pos_ebd_size, d.hidden])?;
        if disentangle.norm_embeddings {
            let norm = self.norm(&[names.relative_norm], 0, d.hidden)?;
            for row in table.chunks_exact_mut(d.hidden) {
                normalize(row, NormStatistics::MeanVariance, &norm.weight, &norm.shift, d.epsilon as f32);
            }
        }
        let width = d.query_width();
        let project = |wanted: bool, part: usize| -> Read<Option<Vec<f32>>> {
            if !wanted {
                return Ok(None);
            }
            // Keys are the second part of the QKV projection, queries the first.
            let own = (1 - part) * width;
            let linear = if disentangle.share_att_key {
                let weight = Weight::F32(qkv.weight.values(own * d.hidden..(own + width) * d.hidden));
                let bias = qkv.bias[own..own + width].to_vec();
                Linear { weight, bias, inputs: d.hidden }
            } else {
                let bias = self.resolve(&[names.relative_projections[part]], layer, ".bias");
                let biased = self.from.shape(&bias).is_some();
                self.linear(&[names.relative_projections[part]], layer, [width, d.hidden], biased)?
            };
            Ok(Some(project(&table, linear)))
        };
        let keys = project(disentangle.c2p, 0)?;
        Ok(Some(RelativeProjections { keys, queries: project(disentangle.p2c, 1)? }))
    }
}

fn concatenate(parts: Vec<Linear>, inputs: usize) -> Linear {
    let (weights, biases): (Vec<Weight>, Vec<Vec<f32>>) =
        parts.into_iter().map(|part| (part.weight, part.bias)).unzip();
    Linear { weight: Weight::concatenate(weights), bias: biases.concat(), inputs }
}

/// Reorders the outputs from queries, keys and values per KV head to all queries, all keys, all values.
fn group_by_part(from: Linear, head: usize, kv_heads: usize) -> Linear {
    let group = from.outputs() / head / kv_heads;
    let parts = [0..group - 2, group - 2..group - 1, group - 1..group];
    let order = |part: std::ops::Range<usize>| {
        (0..kv_heads).flat_map(move |n| part.clone().map(move |at| n * group + at))
    };
    let heads = parts.into_iter().flat_map(order);
    let order: Vec<usize> = heads.flat_map(|n| n * head..(n + 1) * head).collect();
    reordered(from, &order)
}

/// The outputs of `order`.
fn reordered(Linear { weight, bias, inputs }: Linear, order: &[usize]) -> Linear {
    let bias = order.iter().map(|&output| bias[output]).collect();
    Linear { weight: weight.reordered(order, inputs), bias, inputs }
}

/// Values times a factor.
fn scaled(mut values: Vec<f32>, factor: Option<f64>) -> Vec<f32> {
    if let Some(factor) = factor {
        for x in &mut values {
            *x *= factor as f32;
        }
    }
    values
}

/// `rows · weightᵀ + bias`.
fn project(rows: &[f32], linear: Linear) -> Vec<f32> {
    let (stride, inputs) = (linear.outputs(), linear.inputs);
    let count = rows.len() / inputs;
    let mut to = vec![0.0; count * stride];
    let matrix = PackedMatrix::pack(Isa::best(), &linear.weight.into_f32(), stride, inputs);
    let columns = ColumnsMut::new(&mut to, stride);
    let store = &mut Store { bias: &linear.bias, activation: Activation::Identity, to: columns };
    matrix.multiply(rows, inputs, count, &mut GemmScratch::default(), store);
    to
}
