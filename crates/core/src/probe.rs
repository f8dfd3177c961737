//! Probe cases and their samples; the planner judges them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::batch::{Batch, OutputKind, Rows};

/// A probe of a placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeCase {
    /// One operation on generated values.
    Op {
        /// The operation.
        op: Op,
        /// Rows and columns.
        shape: [usize; 2],
    },
    /// The twin: a small model of the same architecture with generated weights.
    Twin {
        /// Sequence lengths of the batch.
        lengths: Vec<usize>,
        /// Seed of the token ids.
        seed: u64,
        /// Token vectors, or per sequence the concatenated first, maximum, mean and last vector.
        output_kind: OutputKind,
    },
    /// One layer of the model's real sizes with generated weights, for its run time.
    Speed {
        /// Sequences.
        batch: usize,
        /// Tokens per sequence.
        length: usize,
    },
    /// Steps of the twin with a KV cache: prompts in chunks, then single tokens, with several sequences in a step.
    Steps {
        /// Lengths of the prompts. Each sequence joins one step after the one before it.
        lengths: Vec<usize>,
        /// Tokens of a prompt per step.
        chunk: usize,
        /// Seed of the token ids.
        seed: u64,
    },
    /// A decode step of layers of the model's real sizes with generated weights, for its run time per layer.
    Decode {
        /// Sequences.
        batch: usize,
        /// Cached tokens per sequence.
        cached: usize,
    },
    /// The canary: the real weights on real texts.
    Canary {
        /// Tokenized texts. The first batch is timed, the others run once. The sample holds the rows of all batches.
        batches: Vec<Batch>,
    },
}

/// An operation of transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Row lookup (embedding).
    PickRows,
    /// Matrix multiplication.
    Matmul,
    /// Matrix multiplication with a transposed view.
    MatmulTransposed,
    /// A copy of a transposed view.
    Transpose,
    /// Layer norm over the last dimension.
    LayerNorm,
    /// Softmax over the last dimension.
    Softmax,
    /// GELU with the exact error function.
    Gelu,
}

impl Op {
    /// All operations.
    pub const ALL: [Op; 7] =
        [Op::PickRows, Op::Matmul, Op::MatmulTransposed, Op::Transpose, Op::LayerNorm, Op::Softmax, Op::Gelu];
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Op::PickRows => "pick-rows",
            Op::Matmul => "matmul",
            Op::MatmulTransposed => "matmul-transposed",
            Op::Transpose => "transpose",
            Op::LayerNorm => "layer-norm",
            Op::Softmax => "softmax",
            Op::Gelu => "gelu",
        })
    }
}

/// The result of a probe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The output.
    pub rows: Rows,
    /// Run time in seconds without loading; the best of several runs.
    pub seconds: f64,
    /// Memory of the process in bytes, for placements that compute in host memory.
    pub memory: Option<u64>,
    /// Number of graph nodes that each execution provider computed.
    pub nodes: BTreeMap<String, usize>,
    /// Predictions of every token but the first of the canary's texts, by a model that generates.
    #[serde(default)]
    pub predictions: Vec<Prediction>,
}

/// The prediction of a token of a text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Log probability of the token.
    pub logprob: f32,
    /// The most likely token.
    pub top: u32,
}

impl fmt::Display for ProbeCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeCase::Op { op, shape } => write!(f, "op {op} {}x{}", shape[0], shape[1]),
            ProbeCase::Twin { lengths, .. } if lengths.len() > 6 => {
                write!(
                    f,
                    "twin of lengths {}..{} ({})",
                    lengths[0],
                    lengths[lengths.len() - 1],
                    lengths.len()
                )
            }
            ProbeCase::Twin { lengths, .. } => write!(f, "twin of lengths {lengths:?}"),
            ProbeCase::Speed { batch, length } => write!(f, "speed {batch}x{length}"),
            ProbeCase::Steps { lengths, chunk, .. } => {
                write!(f, "steps of prompts {lengths:?} in chunks of {chunk}")
            }
            ProbeCase::Decode { batch, cached } => write!(f, "decode {batch} after {cached}"),
            ProbeCase::Canary { batches } => {
                let texts: usize = batches.iter().map(|batch| batch.sequences.len()).sum();
                write!(f, "canary of {texts} texts")
            }
        }
    }
}
