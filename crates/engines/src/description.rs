//! A model as data: everything that an interpreter needs besides the weights.

use sconce_core::batch::Batch;
use sconce_core::card::{KvCacheDtype, Sizes};
use sconce_core::engine::EngineError;
use sconce_core::placement::Dtype;
use sconce_kernels::attention::AttentionMask;
use sconce_kernels::rows;
use serde::Serialize;

use crate::config::{Config, Unsupported};
use crate::positional::bucketed_bias::BucketedBias;
use crate::positional::disentangled::DisentangledAttention;
use crate::positional::rope::Rope;
use crate::tensor_names::TensorNames;

/// A transformer as data.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part that a family has or has not")]
pub struct Description {
    /// The `model_type` of the config.
    pub architecture: String,
    /// Number of layers.
    pub layers: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Number of KV heads; fewer than `heads` in grouped-query attention.
    pub kv_heads: usize,
    /// Dimension of an attention head.
    pub head_dim: usize,
    /// Hidden size of the feed-forward block.
    pub intermediate: usize,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Maximum sequence length.
    pub max_length: usize,
    /// Learned absolute positions.
    pub position_table: Option<PositionTable>,
    /// Rows of the token type table; 0 without one.
    pub token_types: usize,
    /// Factor of the token embeddings.
    pub embedding_scale: Option<f64>,
    /// Whether the embeddings are normalized.
    pub embedding_norm: bool,
    /// Kind of all norms.
    pub norm: NormKind,
    /// Where the norms of a layer are.
    pub placement: NormPlacement,
    /// Whether the first layer has a norm before attention, in pre-norm models.
    pub first_norm: bool,
    /// Whether a norm follows the last layer.
    pub final_norm: bool,
    /// Epsilon of the norms.
    pub epsilon: f64,
    /// Attention window of global layers.
    pub global: AttentionWindow,
    /// Attention window of local layers.
    pub local: Option<AttentionWindow>,
    /// Which layers are local.
    pub layer_pattern: LayerPattern,
    /// Factor of attention scores.
    pub scale: f64,
    /// Attention scores are squashed into this range by tanh.
    pub attention_softcap: Option<f64>,
    /// Whether the queries and keys of each head are normalized (QK norm).
    pub qk_norm: bool,
    /// Relative positions in attention scores.
    pub relative_positions: Option<RelativePositions>,
    /// Which projections have a bias.
    pub biases: Biases,
    /// Activation of the feed-forward block.
    pub activation: Activation,
    /// Whether the feed-forward block is gated (GLU).
    pub gated: bool,
    /// Mixture of experts in place of one feed-forward block.
    pub experts: Option<Experts>,
    /// Whether the feed-forward block reads the same input as attention (parallel attention), not its output.
    pub parallel: bool,
    /// Logits are squashed into this range by tanh.
    pub logit_softcap: Option<f64>,
    /// Dtype of the KV cache.
    #[serde(skip_serializing_if = "KvCacheDtype::is_auto")]
    pub kv_cache_dtype: KvCacheDtype,
    /// Tensor names of the family.
    #[serde(skip)]
    pub names: &'static TensorNames,
}

/// Learned absolute positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PositionTable {
    /// Rows of the table.
    pub rows: usize,
    /// The padding id that positions are counted from: padding has this row, every other token the next free one.
    /// Without it, positions are counted from zero.
    pub padding_id: Option<u32>,
}

/// Kind of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Layer norm with weight and bias.
    Layer,
    /// Layer norm without bias.
    LayerWeight,
    /// RMS norm.
    Rms,
    /// RMS norm that multiplies by one plus its weight.
    RmsLessOne,
}

/// Where the norms of a layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// After each block and its residual.
    Post,
    /// Before each block.
    Pre,
    /// Before each block, and after it before its residual.
    Both,
}

/// Attention window and rotary embedding of a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttentionWindow {
    /// Tokens before the query that it attends to; unlimited if none.
    pub before: Option<usize>,
    /// Tokens after the query that it attends to; unlimited if none, 0 in causal attention.
    pub after: Option<usize>,
    /// Rotary embedding.
    pub rope: Option<Rope>,
}

impl AttentionWindow {
    /// Full bidirectional attention without rotary embedding.
    pub const FULL: AttentionWindow = AttentionWindow { before: None, after: None, rope: None };

    /// The window as an attention mask.
    pub(crate) fn mask(&self) -> AttentionMask {
        let limit = |tokens: Option<usize>| tokens.unwrap_or(usize::MAX);
        AttentionMask { before: limit(self.before), after: limit(self.after), ..AttentionMask::ALL }
    }
}

/// Which layers are local.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerPattern {
    /// All layers are global.
    None,
    /// Every `every`-th layer is global, starting at layer `first`.
    AllBut {
        /// Distance between global layers.
        every: usize,
        /// The first global layer.
        first: usize,
    },
    /// Layers from this one on are local.
    From(usize),
    /// Whether each layer is local.
    Listed(Vec<bool>),
}

impl LayerPattern {
    fn is_local(&self, layer: usize) -> bool {
        match self {
            LayerPattern::None => false,
            LayerPattern::AllBut { every, first } => layer % every.max(&1) != *first,
            LayerPattern::From(first) => layer >= *first,
            LayerPattern::Listed(local) => local.get(layer).copied().unwrap_or(false),
        }
    }

    /// The pattern in the config key `layer_types`.
    pub(crate) fn listed(c: &Config<'_>, layers: usize) -> Result<Option<LayerPattern>, Unsupported> {
        let Some(types) = c.get("layer_types").as_array() else { return Ok(None) };
        let local = types.iter().take(layers).map(|kind| match kind.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            Some(_) | None => Err(Unsupported(format!("layer_types {kind}"))),
        });
        let local: Vec<bool> = local.collect::<Result<_, _>>()?;
        if local.len() < layers {
            return Err(Unsupported(format!("layer_types for {} of {layers} layers", local.len())));
        }
        Ok(Some(LayerPattern::Listed(local)))
    }
}

/// Relative positions in attention scores.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RelativePositions {
    /// A learned bias per bucket of distances.
    BucketedBias(BucketedBias),
    /// ALiBi: a bias that falls linearly with distance.
    Alibi,
    /// Disentangled attention.
    Disentangled(DisentangledAttention),
}

/// A mixture of experts: a router chooses some of several feed-forward blocks for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts per token.
    pub per_token: usize,
    /// Whether the weights of the chosen experts are normalized to a sum of 1.
    pub normalized: bool,
}

/// Which projections of a layer have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a projection that has a bias or has not")]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// Output projection of attention.
    pub output: bool,
    /// Up projection of the feed-forward block.
    pub up: bool,
    /// Down projection of the feed-forward block.
    pub down: bool,
    /// Output matrix of a decoder.
    pub logits: bool,
}

impl Biases {
    /// All projections have a bias.
    pub const ALL: Biases = Biases { qkv: true, output: true, up: true, down: true, logits: false };
    /// No projection has a bias.
    pub const NONE: Biases = Biases { qkv: false, output: false, up: false, down: false, logits: false };
}

/// Activation of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// GELU with the exact error function.
    Gelu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// ReLU.
    Relu,
    /// SiLU, also called swish.
    Silu,
    /// GELU with the sigmoid approximation.
    QuickGelu,
}

impl Activation {
    /// The activation that configs call `name`.
    pub(crate) fn named(name: &str) -> Option<Activation> {
        Some(match name {
            "gelu" | "gelu_python" | "geglu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
            "relu" | "reglu" => Activation::Relu,
            "silu" | "swish" | "swiglu" => Activation::Silu,
            "quick_gelu" => Activation::QuickGelu,
            _ => return None,
        })
    }

    /// The kernels' activation.
    pub(crate) fn kernel(self) -> rows::Activation {
        match self {
            Activation::Gelu => rows::Activation::Gelu,
            Activation::GeluTanh => rows::Activation::GeluTanh,
            Activation::Relu => rows::Activation::Relu,
            Activation::Silu => rows::Activation::Silu,
            Activation::QuickGelu => rows::Activation::QuickGelu,
        }
    }
}

/// Widest attention window of a twin: twins run on longer sequences, so that the window's edges take part.
const TWIN_WINDOW: usize = 256;

impl Description {
    /// A neutral description of these sizes: no positions, biases, gate or optional norms. A family adds what it has.
    pub(crate) fn neutral(architecture: &str, sizes: &Sizes, names: &'static TensorNames) -> Description {
        let head_dim = sizes.hidden.checked_div(sizes.heads).unwrap_or(0);
        Description {
            architecture: architecture.to_owned(),
            layers: sizes.layers,
            hidden: sizes.hidden,
            heads: sizes.heads,
            kv_heads: sizes.heads,
            head_dim,
            intermediate: sizes.intermediate,
            vocabulary: sizes.vocabulary,
            max_length: sizes.positions,
            position_table: None,
            token_types: 0,
            embedding_scale: None,
            embedding_norm: false,
            norm: NormKind::Layer,
            placement: NormPlacement::Pre,
            first_norm: true,
            final_norm: false,
            epsilon: 1e-5,
            global: AttentionWindow::FULL,
            local: None,
            layer_pattern: LayerPattern::None,
            scale: 1.0 / (head_dim as f64).sqrt(),
            attention_softcap: None,
            qk_norm: false,
            relative_positions: None,
            biases: Biases::NONE,
            activation: Activation::Gelu,
            gated: false,
            experts: None,
            parallel: false,
            logit_softcap: None,
            kv_cache_dtype: KvCacheDtype::Auto,
            names,
        }
    }

    /// Sets the activation from the first of `keys` in the config.
    pub(crate) fn activate(
        &mut self,
        c: &Config<'_>,
        keys: &[&str],
        default: &str,
    ) -> Result<(), Unsupported> {
        let key = keys.iter().find(|key| !c.get(key).is_null()).unwrap_or(&keys[0]);
        self.activate_as(key, c.string(keys, default))
    }

    /// Sets the activation that configs call `name`.
    pub(crate) fn activate_as(&mut self, key: &str, name: &str) -> Result<(), Unsupported> {
        self.activation = Activation::named(name).ok_or_else(|| Unsupported(format!("{key} {name}")))?;
        Ok(())
    }

    /// Columns of the query projection.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Columns of the query, key and value projections.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Columns of the up projection, including the gate.
    pub fn up_width(&self) -> usize {
        self.intermediate * if self.gated { 2 } else { 1 }
    }

    /// Feed-forward blocks per layer: one, or the experts.
    pub fn blocks(&self) -> usize {
        self.experts.map_or(1, |experts| experts.count)
    }

    /// At most `count` experts.
    fn fewer_experts(&self, count: usize) -> Option<Experts> {
        self.experts.map(|experts| Experts {
            count: experts.count.min(count),
            per_token: experts.per_token.min(count),
            ..experts
        })
    }

    /// The softcap of attention, for kernels.
    pub(crate) fn softcap(&self) -> Option<f32> {
        self.attention_softcap.map(|cap| cap as f32)
    }

    /// Whether a layer is local.
    pub fn is_local(&self, layer: usize) -> bool {
        self.local.is_some() && self.layer_pattern.is_local(layer)
    }

    /// The twin: the same head dimension, positions, windows, activation, norms and grouping of KV heads, with two
    /// layers (a global and a local one where the model has both) and a small vocabulary.
    #[must_use]
    pub fn twin(&self) -> Description {
        let hidden = 2 * self.head_dim;
        let kv_heads = self.kv_heads.min(2);
        let narrowed = |window: Option<usize>| window.map(|tokens| tokens.min(TWIN_WINDOW));
        let window = |window: &AttentionWindow| AttentionWindow {
            before: narrowed(window.before),
            after: narrowed(window.after),
            rope: window.rope.clone(),
        };
        Description {
            layers: 2,
            kv_heads,
            heads: if self.kv_heads == self.heads {
                2
            } else {
                kv_heads * (self.heads / self.kv_heads).min(3)
            },
            hidden,
            intermediate: 2 * hidden,
            experts: self.fewer_experts(4),
            vocabulary: 101,
            global: window(&self.global),
            local: self.local.as_ref().map(window),
            layer_pattern: if self.local.is_some() {
                LayerPattern::Listed(vec![false, true])
            } else {
                LayerPattern::None
            },
            ..self.clone()
        }
    }

    /// One layer of the model's real sizes.
    #[must_use]
    pub fn one_layer(&self) -> Description {
        let experts = self.experts.and_then(|experts| self.fewer_experts(2 * experts.per_token));
        Description { layers: 1, vocabulary: self.vocabulary.min(1000), experts, ..self.clone() }
    }

    /// Enough layers of the model's real sizes that their weights in `dtype` exceed the caches of processors: a decode
    /// step reads them from memory.
    pub(crate) fn uncached_layers(&self, dtype: Dtype) -> Description {
        const BYTES: usize = 128 << 20;
        let layer = self.hidden
            * (self.qkv_width() + self.query_width() + self.blocks() * (self.up_width() + self.intermediate));
        let bytes = (layer * dtype.bits() as usize / 8).max(1);
        Description { layers: BYTES.div_ceil(bytes).clamp(1, self.layers), ..self.one_layer() }
    }

    /// Checks every index into a table: a device may read out of bounds without an error.
    pub(crate) fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        let malformed = |what: String| Err(EngineError::Malformed(what));
        if !batch.is_well_formed() || batch.sequences.is_empty() {
            return malformed("its sequences do not lie end to end".to_owned());
        }
        if let Some(id) = batch.ids.iter().find(|&&id| id as usize >= self.vocabulary) {
            return malformed(format!("token id {id} of a vocabulary of {}", self.vocabulary));
        }
        if let Some(kind) = batch.types.iter().find(|&&kind| kind as usize >= self.token_types.max(1)) {
            return malformed(format!("token type {kind} of {}", self.token_types));
        }
        let windows = [Some(&self.global), self.local.as_ref()].into_iter().flatten();
        let back = windows.filter_map(|window| window.before).min().unwrap_or(usize::MAX);
        if batch.sequences.iter().any(|sequence| sequence.masked > back) {
            return malformed(format!("tokens that see nothing within {back} tokens before them"));
        }
        let max_length = self.max_length;
        let lengths = batch.sequences.iter().enumerate();
        let longest = lengths.map(|(index, sequence)| batch.cached_length(index) + sequence.length).max();
        match longest.filter(|longest| *longest > max_length) {
            Some(longest) => {
                malformed(format!("{longest} tokens where the model has {max_length} positions"))
            }
            None => Ok(()),
        }
    }
}

impl PositionTable {
    /// Maximum sequence length.
    pub(crate) fn max_length(&self) -> usize {
        self.rows.saturating_sub(self.padding_id.map_or(0, |padding| padding as usize + 1))
    }

    /// The row of the table for each of `ids`.
    pub fn rows(&self, ids: &[u32]) -> Vec<u32> {
        match self.padding_id {
            None => (0..ids.len() as u32).collect(),
            Some(padding) => {
                let mut last = padding;
                ids.iter()
                    .map(|&id| {
                        if id == padding {
                            return padding;
                        }
                        last += 1;
                        last
                    })
                    .collect()
            }
        }
    }
}
