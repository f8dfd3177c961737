//! Weights, packed once for the kernels.

use std::sync::Arc;

use sconce_core::batch::Batch;
use sconce_kernels::bf16::MatrixBf16;
use sconce_kernels::gemm::{PanelMatrix, StoredWeight};
use sconce_kernels::isa::Isa;
use sconce_kernels::quant::QuantMatrix;
use sconce_kernels::rope::RopeTable;
use sconce_kernels::rows::Norm;

use crate::assembly::{self, Assembly, EmbeddingTable};
use crate::description::{AttentionWindow, Description, RelativePositions};
use crate::experts::Router;
use crate::head_layout;
use crate::positional::bias_table::BiasTable;
use crate::positional::disentangled::PackedRelativeProjections;
use crate::positional::rope::RopeCache;
use crate::stored_tensor::StoredTensor;
use crate::weight::Weight;
use crate::weights::{Tensors, WeightsError};

/// All weights of a transformer, with matrices packed as `M`.
pub(super) struct Weights<M> {
    /// None if they are the weights of the output matrix.
    token_embeddings: Option<Table>,
    positions: Option<Table>,
    types: Option<Table>,
    pub(super) embedding_norm: Option<Norm>,
    pub(super) layers: Vec<Layer<M>>,
    pub(super) final_norm: Option<Norm>,
    /// The output matrix of a decoder, from the last hidden state to logits.
    pub(super) logits: Option<Linear<M>>,
    /// Relative position biases of every head.
    pub(super) biases: Option<BiasTable>,
    /// Rotary embeddings of global and of local layers.
    pub(super) ropes: [Option<RopeCache>; 2],
}

pub(super) struct Layer<M> {
    pub(super) is_local: bool,
    pub(super) qkv: Linear<M>,
    pub(super) qk_norms: Option<[Norm; 2]>,
    pub(super) relative: Option<PackedRelativeProjections>,
    pub(super) output: Linear<M>,
    /// Before and after attention.
    pub(super) attention_norms: [Option<Norm>; 2],
    pub(super) router: Option<Router>,
    /// The feed-forward block, or the experts.
    pub(super) blocks: Vec<FeedForward<M>>,
    /// Before and after the feed-forward block.
    pub(super) output_norms: [Option<Norm>; 2],
}

/// A feed-forward block.
pub(super) struct FeedForward<M> {
    pub(super) up: Linear<M>,
    pub(super) down: Linear<M>,
}

/// A matrix and its bias, padded to the packed width.
pub(super) struct Linear<M> {
    pub(super) matrix: M,
    pub(super) bias: Vec<f32>,
}

/// An embedding table, in the engine's dtype.
pub(super) enum Table {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    /// Quantized rows and their factor.
    Quantized(Box<QuantMatrix>, f32),
}

impl Table {
    /// Adds row `index` to `to`.
    fn add(&self, index: u32, to: &mut [f32]) {
        let place = index as usize * to.len()..(index as usize + 1) * to.len();
        match self {
            Table::F32(rows) => to.iter_mut().zip(&rows[place]).for_each(|(to, x)| *to += x),
            Table::Bf16(rows) => {
                to.iter_mut()
                    .zip(&rows[place])
                    .for_each(|(to, x)| *to += f32::from_bits(u32::from(*x) << 16));
            }
            Table::Quantized(rows, scale) => {
                let mut row = vec![0.0; to.len()];
                rows.row(index as usize, &mut row);
                to.iter_mut().zip(row).for_each(|(to, x)| *to += x * scale);
            }
        }
    }
}

/// A matrix whose weights can be read.
pub(super) trait WeightRows {
    /// The weights of an output.
    fn row(&self, output: usize, to: &mut [f32]);
}

impl<T: StoredWeight> WeightRows for PanelMatrix<T> {
    fn row(&self, output: usize, to: &mut [f32]) {
        PanelMatrix::row(self, output, to);
    }
}

impl WeightRows for MatrixBf16 {
    fn row(&self, output: usize, to: &mut [f32]) {
        MatrixBf16::row(self, output, to);
    }
}

/// How matrices and tables are packed.
pub(super) trait Packing<M> {
    /// Packs `[outputs, inputs]`.
    fn matrix(&self, weight: Weight, outputs: usize, inputs: usize) -> M;
    /// Packs a table.
    fn table(&self, rows: Vec<f32>) -> Table;
    /// Packs a table in half precision.
    fn half_table(&self, rows: &StoredTensor) -> Table {
        self.table(rows.dequantize())
    }
    /// Packs a quantized table with a factor.
    fn quantized_table(&self, rows: &StoredTensor, scale: Option<f64>) -> Table {
        self.table(EmbeddingTable::Quantized(rows.clone(), scale).into_f32())
    }
    /// Padded width of a matrix with `outputs` outputs.
    fn padded(&self, outputs: usize) -> usize;
    /// Padded width of a head or of half of a gated product.
    fn part(&self, width: usize) -> usize;
}

impl<M: WeightRows> Weights<M> {
    pub(super) fn load(
        d: &Description,
        from: &dyn Tensors,
        packing: &impl Packing<M>,
        generates: bool,
    ) -> Result<Weights<M>, WeightsError> {
        let assembly = Assembly::new(d, from)?.keeping_blocks(true);
        let biased = |matrix: M, mut bias: Vec<f32>| {
            bias.resize(packing.padded(bias.len()), 0.0);
            Linear { matrix, bias }
        };
        let linear = |linear: assembly::Linear| {
            let outputs = linear.outputs();
            biased(packing.matrix(linear.weight, outputs, linear.inputs), linear.bias)
        };
        // Every head, and each half of a gated product, starts at its own padded column.
        let apart = |linear: assembly::Linear, piece: usize| {
            let (wide, inputs) = (packing.part(piece), linear.inputs);
            let weight = padded(linear.weight, piece * inputs, wide * inputs);
            assembly::Linear { weight, bias: pad_groups(&linear.bias, piece, wide), inputs }
        };
        let output = |linear: assembly::Linear| {
            let wide = packing.part(d.head_dim);
            let weight = padded(linear.weight, d.head_dim, wide);
            assembly::Linear { weight, bias: linear.bias, inputs: d.heads * wide }
        };
        let block = |block: assembly::FeedForward| FeedForward {
            up: linear(if d.gated { apart(block.up, d.intermediate) } else { block.up }),
            down: linear(block.down),
        };
        let norm = |norm| head_layout::norm(d, norm);
        let norms = |norms: [Option<assembly::Norm>; 2]| norms.map(|one| one.map(norm));
        let mut layers = Vec::with_capacity(d.layers);
        for layer in 0..d.layers {
            let parts = assembly.layer(layer)?;
            let relative = match (&parts.relative, &d.relative_positions) {
                (Some(relative), Some(RelativePositions::Disentangled(how))) => {
                    Some(PackedRelativeProjections::new(Isa::best(), how, relative, d.head_dim, d.max_length))
                }
                _ => None,
            };
            layers.push(Layer {
                is_local: d.is_local(layer),
                qkv: linear(apart(parts.qkv, d.head_dim)),
                qk_norms: parts.qk_norms.map(|norms| norms.map(norm)),
                relative,
                output: linear(output(parts.output)),
                attention_norms: norms(parts.attention_norms),
                router: parts.router,
                blocks: parts.blocks.into_iter().map(block).collect(),
                output_norms: norms(parts.output_norms),
            });
        }
        let token_embeddings = if generates && assembly.has_tied_output() {
            None
        } else {
            Some(match assembly.token_embeddings()? {
                EmbeddingTable::F32(rows) => packing.table(rows),
                EmbeddingTable::Half(rows) => packing.half_table(&rows),
                EmbeddingTable::Quantized(rows, scale) => packing.quantized_table(&rows, scale),
            })
        };
        let logits = if generates {
            let matrix = packing.matrix(assembly.output_embeddings()?, d.vocabulary, d.hidden);
            let mut bias = assembly.output_bias()?;
            bias.resize(d.vocabulary, 0.0);
            Some(biased(matrix, bias))
        } else {
            None
        };
        assembly.finish()?;
        let ropes = |window: &AttentionWindow| window.rope.as_ref().map(RopeCache::new);
        Ok(Weights {
            token_embeddings,
            positions: assembly.position_embeddings()?.map(|rows| packing.table(rows)),
            types: assembly.token_type_embeddings()?.map(|rows| packing.table(rows)),
            embedding_norm: assembly.embedding_norm()?.map(norm),
            layers,
            final_norm: assembly.final_norm()?.map(norm),
            logits,
            biases: assembly.bias_table()?,
            ropes: [ropes(&d.global), d.local.as_ref().and_then(ropes)],
        })
    }

    /// Whether `is_true` holds for the matrices of all layers.
    pub(super) fn all_matrices(&self, is_true: impl Fn(&M) -> bool) -> bool {
        self.layers.iter().all(|layer| {
            let blocks = layer.blocks.iter().flat_map(|block| [&block.up, &block.down]);
            [&layer.qkv, &layer.output].into_iter().chain(blocks).all(|linear| is_true(&linear.matrix))
        })
    }

    /// The rotary embeddings of global and of local layers, up to the last position of `batch`.
    pub(super) fn rope_tables(&self, batch: &Batch) -> [Option<Arc<RopeTable>>; 2] {
        let ends = batch.sequences.iter().enumerate().map(|(index, s)| batch.cached_length(index) + s.length);
        let longest = ends.max().unwrap_or(0);
        self.ropes.each_ref().map(|ropes| ropes.as_ref().map(|ropes| ropes.up_to(longest)))
    }

    /// The embedding of a token without its position and type.
    fn embed_token(&self, d: &Description, id: u32, row: &mut [f32]) {
        row.fill(0.0);
        match (&self.token_embeddings, &self.logits) {
            (Some(table), _) => table.add(id, row),
            (None, Some(logits)) => {
                logits.matrix.row(id as usize, row);
                if let Some(scale) = d.embedding_scale {
                    for x in row {
                        *x *= scale as f32;
                    }
                }
            }
            (None, None) => {}
        }
    }

    /// Calls `put` with every token of `batch` and its embedding.
    pub(super) fn embed(&self, d: &Description, batch: &Batch, mut put: impl FnMut(usize, &[f32])) {
        let mut row = vec![0.0; d.hidden];
        for s in &batch.sequences {
            let place = s.start..s.start + s.length;
            let positions = d.position_table.map(|positions| positions.rows(&batch.ids[place.clone()]));
            for token in place {
                self.embed_token(d, batch.ids[token], &mut row);
                if let (Some(table), Some(positions)) = (&self.positions, &positions) {
                    table.add(positions[token - s.start], &mut row);
                }
                if let Some(table) = &self.types {
                    table.add(batch.types[token], &mut row);
                }
                put(token, &row);
            }
        }
    }
}

/// Weights with every group of `piece` values padded with zeros to `wide`; as they are if nothing is missing.
fn padded(weight: Weight, piece: usize, wide: usize) -> Weight {
    if piece == wide { weight } else { Weight::F32(pad_groups(&weight.into_f32(), piece, wide)) }
}

/// Pads every group of `piece` values with zeros to `wide`.
fn pad_groups(values: &[f32], piece: usize, wide: usize) -> Vec<f32> {
    let mut padded = Vec::with_capacity(values.len() / piece * wide);
    for values in values.chunks_exact(piece) {
        padded.extend(values);
        padded.resize(padded.len() + wide - piece, 0.0);
    }
    padded
}
