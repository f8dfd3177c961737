//! One model as data: all that an interpreter needs to know besides the weights themselves.

use sconce_core::batch::Batch;
use sconce_core::card::ModelCard;
use sconce_core::engine::EngineError;
use sconce_core::obstacle::Obstacle;
use sconce_kernels::rows;
use serde::Serialize;

use crate::families::{self, Family};

/// One encoder as data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// The `model_type` of its config.
    pub architecture: String,
    /// Layers.
    pub layers: usize,
    /// Numbers a token.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Numbers a token inside the feed-forward part.
    pub intermediate: usize,
    /// Rows of the token table.
    pub vocabulary: usize,
    /// How a token knows its place.
    pub positions: Positions,
    /// Rows of the token type table; zero where tokens have no types.
    pub types: usize,
    /// A bias on attention by distance.
    pub relative: Option<RelativeBias>,
    /// The nonlinearity of the feed-forward part.
    pub activation: Activation,
    /// What keeps a norm from dividing by zero.
    pub epsilon: f64,
    /// The family, for the names of its weights.
    #[serde(skip)]
    pub family: &'static Family,
}

/// How a token knows its place: a table with a row a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Positions {
    /// Rows of the table.
    pub rows: usize,
    /// The padding id that positions are counted from: padding itself gets this row, every other
    /// token the next free one. Without it positions are counted from zero.
    pub after: Option<u32>,
}

/// A bias on attention by distance, from logarithmic buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RelativeBias {
    /// Buckets, for both directions together.
    pub buckets: usize,
    /// The distance from which all share a bucket.
    pub max_distance: usize,
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
}

impl Activation {
    /// The kernels' name for it.
    pub(crate) fn kernel(self) -> rows::Activation {
        match self {
            Activation::Gelu => rows::Activation::Gelu,
            Activation::GeluTanh => rows::Activation::GeluTanh,
            Activation::Relu => rows::Activation::Relu,
        }
    }
}

/// What a card's model is, or why no description fits.
pub fn describe(card: &ModelCard) -> Result<Description, Obstacle> {
    let config = &card.config;
    let sizes = &card.sizes.value;
    let unknown =
        |what: String| Obstacle::UnknownArchitecture { architecture: what, known: families::model_types() };
    let architecture = &card.architecture.value;
    let family = families::named(architecture).ok_or_else(|| unknown(architecture.clone()))?;

    if config["is_decoder"].as_bool() == Some(true) {
        return Err(unknown(format!("{architecture} as a decoder")));
    }
    let kind = config["position_embedding_type"].as_str().unwrap_or("absolute");
    if kind != "absolute" {
        return Err(unknown(format!("{architecture} with position_embedding_type {kind}")));
    }
    let activation = config[family.activation_key].as_str().unwrap_or("gelu");
    let activation = match activation {
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        other => return Err(unknown(format!("{architecture} with {} {other}", family.activation_key))),
    };
    if sizes.heads == 0 || !sizes.hidden.is_multiple_of(sizes.heads) || sizes.layers == 0 {
        return Err(unknown(format!(
            "{architecture} with hidden {} over {} heads",
            sizes.hidden, sizes.heads
        )));
    }
    Ok(Description {
        architecture: architecture.clone(),
        layers: sizes.layers,
        hidden: sizes.hidden,
        heads: sizes.heads,
        intermediate: sizes.intermediate,
        vocabulary: sizes.vocabulary,
        positions: Positions {
            rows: sizes.positions,
            after: family.positions_after_padding.then(|| families::padding_id(config)),
        },
        types: if family.token_types { config["type_vocab_size"].as_u64().unwrap_or(2) as usize } else { 0 },
        relative: family.relative_bias.then(|| RelativeBias {
            buckets: config["relative_attention_num_buckets"].as_u64().unwrap_or(32) as usize,
            max_distance: 128,
        }),
        activation,
        epsilon: family.fixed_epsilon.or(config["layer_norm_eps"].as_f64()).unwrap_or(1e-12),
        family,
    })
}

impl Description {
    /// Numbers a head.
    pub fn head(&self) -> usize {
        self.hidden / self.heads
    }

    /// A small model of the same kind: same head width, positions, activation and norms, but two
    /// layers, two heads and a small vocabulary. If it is right, the kind is.
    #[must_use]
    pub fn twin(&self) -> Description {
        let hidden = 2 * self.head();
        Description { layers: 2, heads: 2, hidden, intermediate: 2 * hidden, vocabulary: 101, ..self.clone() }
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
        let room = self
            .positions
            .rows
            .saturating_sub(self.positions.after.map_or(0, |padding| padding as usize + 1));
        match batch.sequences.iter().find(|sequence| sequence.length > room) {
            Some(sequence) => {
                malformed(format!("{} tokens where the model has {room} positions", sequence.length))
            }
            None => Ok(()),
        }
    }

    /// The row of the position table for each of `ids`.
    pub fn position_rows(&self, ids: &[u32]) -> Vec<u32> {
        match self.positions.after {
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

impl RelativeBias {
    /// The bucket for a key that lies `distance` tokens after its query.
    pub fn bucket(&self, distance: isize) -> usize {
        let half = self.buckets / 2;
        let after = if distance > 0 { half } else { 0 };
        let exact = half / 2;
        let away = distance.unsigned_abs();
        if away < exact {
            return after + away;
        }
        let scale = (self.max_distance as f32 / exact as f32).ln();
        let beyond = (away as f32 / exact as f32).ln() / scale * (half - exact) as f32;
        after + (exact + beyond as usize).min(half - 1)
    }
}
