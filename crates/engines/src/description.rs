//! One model as data: all that an interpreter needs to know besides the weights themselves.

use sconce_core::batch::Batch;
use sconce_core::engine::EngineError;
use sconce_kernels::attention::Reach;
use sconce_kernels::rows;
use serde::Serialize;

use crate::families::Family;
use crate::parts::buckets::Buckets;
use crate::parts::disentangled::Disentangle;
use crate::parts::rope::Rope;

pub use crate::describe::{describe, longest, numbers};

/// One encoder as data.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part that a family has or has not")]
pub struct Description {
    /// The `model_type` of its config.
    pub architecture: String,
    /// Layers.
    pub layers: usize,
    /// Numbers a token.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Heads of keys and values, each shared by as many heads of queries as it takes.
    pub kv_heads: usize,
    /// Numbers a head.
    pub head: usize,
    /// Numbers a token inside the feed-forward part.
    pub intermediate: usize,
    /// Rows of the token table.
    pub vocabulary: usize,
    /// The most tokens that a text may have.
    pub longest: usize,
    /// A table with a row a position, added to the tokens' own.
    pub positions: Option<Positions>,
    /// Rows of the token type table; zero where tokens have no types.
    pub types: usize,
    /// What the tokens' rows are multiplied with.
    pub embedding_scale: Option<f64>,
    /// Whether the sum of the tables' rows is normalised.
    pub embedding_norm: bool,
    /// The norm.
    pub norm: NormKind,
    /// Where the norms of a layer stand.
    pub placement: NormPlacement,
    /// Whether the first layer's attention has its norm, where norms stand before.
    pub first_norm: bool,
    /// Whether the last layer's output is normalised once more.
    pub final_norm: bool,
    /// What keeps a norm from dividing by zero.
    pub epsilon: f64,
    /// What a layer sees that is not local.
    pub global: Span,
    /// What a local layer sees.
    pub local: Option<Span>,
    /// Which layers are local.
    pub pattern: Pattern,
    /// What scores are multiplied with.
    pub scale: f64,
    /// Whether the queries and keys of each head are normalised.
    pub head_norms: bool,
    /// What is added to scores.
    pub relative: Option<Relative>,
    /// The products that have a bias.
    pub biases: Biases,
    /// The nonlinearity of the feed-forward part.
    pub activation: Activation,
    /// Whether it is a gate that lets a second product through.
    pub gated: bool,
    /// The family, for the names of its weights.
    #[serde(skip)]
    pub family: &'static Family,
}

/// A table with a row a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Positions {
    /// Rows of the table.
    pub rows: usize,
    /// The padding id that positions are counted from: padding itself gets this row, every other
    /// token the next free one. Without it positions are counted from zero.
    pub after: Option<u32>,
}

/// A norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Layer norm with weight and shift.
    Layer,
    /// Layer norm with a weight alone.
    LayerWeight,
    /// RMS norm.
    Rms,
    /// RMS norm whose weights are stored less one.
    RmsLessOne,
}

/// Where the norms of a layer stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// After each part and its residual.
    Post,
    /// Before each part.
    Pre,
    /// Before each part, and after it before its residual.
    Both,
}

/// How far attention sees, and how it knows places.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    /// How far back; all where none.
    pub before: Option<usize>,
    /// How far ahead; all where none, and not at all where attention is causal.
    pub after: Option<usize>,
    /// Rotation by position.
    pub rope: Option<Rope>,
}

impl Span {
    /// All tokens, without rotation.
    pub const ALL: Span = Span { before: None, after: None, rope: None };

    /// The kernels' name for it.
    pub(crate) fn reach(&self) -> Reach {
        let far = |tokens: Option<usize>| tokens.unwrap_or(usize::MAX);
        Reach { before: far(self.before), after: far(self.after), ..Reach::ALL }
    }
}

/// Which layers are local.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// None, or all where there is no other kind.
    None,
    /// All but every so many, counted from the one of this number.
    AllBut {
        /// The step.
        every: usize,
        /// The first that is not local.
        first: usize,
    },
    /// Those from this one on.
    From(usize),
    /// These.
    Listed(Vec<bool>),
}

impl Pattern {
    fn is_local(&self, layer: usize) -> bool {
        match self {
            Pattern::None => false,
            Pattern::AllBut { every, first } => layer % every.max(&1) != *first,
            Pattern::From(first) => layer >= *first,
            Pattern::Listed(local) => local.get(layer).copied().unwrap_or(false),
        }
    }
}

/// What is added to attention's scores.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relative {
    /// A bias by distance, from logarithmic buckets.
    Buckets(Buckets),
    /// A bias that grows with distance, steeper or flatter by head.
    Slopes,
    /// Content against distance, both ways.
    Disentangled(Disentangle),
}

/// The products of a layer that have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a product that has a bias or has not")]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// What follows attention.
    pub output: bool,
    /// The feed-forward part, widening.
    pub up: bool,
    /// The feed-forward part, narrowing.
    pub down: bool,
}

impl Biases {
    /// All of them.
    pub const ALL: Biases = Biases { qkv: true, output: true, up: true, down: true };
    /// None of them.
    pub const NONE: Biases = Biases { qkv: false, output: false, up: false, down: false };
}

/// The nonlinearity of a feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The exact GELU, by the error function.
    Gelu,
    /// The GELU's approximation by tanh.
    GeluTanh,
    /// Negative numbers become zero.
    Relu,
    /// `x · sigmoid(x)`.
    Silu,
    /// The GELU's approximation by a sigmoid.
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

    /// The kernels' name for it.
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

/// The widest window of a twin: longer texts than this are tried, so that it is seen to end.
const TWIN_WINDOW: usize = 256;

impl Description {
    /// Numbers of a token's queries.
    pub fn query_width(&self) -> usize {
        self.heads * self.head
    }

    /// Numbers of a token's queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head
    }

    /// Numbers of a token that come out of the first product of the feed-forward part.
    pub fn up_width(&self) -> usize {
        self.intermediate * if self.gated { 2 } else { 1 }
    }

    /// Whether a layer is local.
    pub fn is_local(&self, layer: usize) -> bool {
        self.local.is_some() && self.pattern.is_local(layer)
    }

    /// A small model of the same kind: same head width, positions, windows, activation and norms, heads that share
    /// keys where the model's do, but two layers, one of each kind where there are two, and a small vocabulary. If
    /// it is right, the kind is.
    #[must_use]
    pub fn twin(&self) -> Description {
        let hidden = 2 * self.head;
        let kv_heads = self.kv_heads.min(2);
        let drawn_in = |window: Option<usize>| window.map(|tokens| tokens.min(TWIN_WINDOW));
        let span = |span: &Span| Span {
            before: drawn_in(span.before),
            after: drawn_in(span.after),
            rope: span.rope.clone(),
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
            vocabulary: 101,
            global: span(&self.global),
            local: self.local.as_ref().map(span),
            pattern: if self.local.is_some() { Pattern::Listed(vec![false, true]) } else { Pattern::None },
            ..self.clone()
        }
    }

    /// One layer at the model's real widths.
    #[must_use]
    pub fn one_layer(&self) -> Description {
        Description { layers: 1, vocabulary: self.vocabulary.min(1000), ..self.clone() }
    }

    /// Every number that indexes a table is checked here: a device may read past a table without a word.
    pub(crate) fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        let malformed = |what: String| Err(EngineError::Malformed(what));
        if !batch.is_well_formed() || batch.sequences.is_empty() {
            return malformed("its sequences do not lie end to end".to_owned());
        }
        if let Some(id) = batch.ids.iter().find(|&&id| id as usize >= self.vocabulary) {
            return malformed(format!("token id {id} of a vocabulary of {}", self.vocabulary));
        }
        if let Some(kind) = batch.types.iter().find(|&&kind| kind as usize >= self.types.max(1)) {
            return malformed(format!("token type {kind} of {}", self.types));
        }
        let windows = [Some(&self.global), self.local.as_ref()].into_iter().flatten();
        let back = windows.filter_map(|span| span.before).min().unwrap_or(usize::MAX);
        if batch.sequences.iter().any(|sequence| sequence.unseen > back) {
            return malformed(format!("tokens that see nothing within {back} tokens before them"));
        }
        let room = self.longest;
        match batch.sequences.iter().find(|sequence| sequence.length > room) {
            Some(sequence) => {
                malformed(format!("{} tokens where the model has {room} positions", sequence.length))
            }
            None => Ok(()),
        }
    }
}

impl Positions {
    /// Positions that a text can have.
    pub(crate) fn room(&self) -> usize {
        self.rows.saturating_sub(self.after.map_or(0, |padding| padding as usize + 1))
    }

    /// The row of the table for each of `ids`.
    pub fn rows(&self, ids: &[u32]) -> Vec<u32> {
        match self.after {
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
