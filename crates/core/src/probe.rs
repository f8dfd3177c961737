//! Questions put to a placement, and what came back. Nobody judges here.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::batch::{Batch, OutputKind, Rows};

/// A question put to a placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeCase {
    /// One operation on generated numbers.
    Op {
        /// Which.
        op: Op,
        /// Rows and columns.
        shape: [usize; 2],
    },
    /// A small model of the same architecture with generated weights, on sequences of these lengths.
    Twin {
        /// The lengths of the sequences of one batch.
        lengths: Vec<usize>,
        /// What the token ids are generated from.
        seed: u64,
        /// Every token's vector, or for each sequence its first, largest, mean and last one after the other.
        output_kind: OutputKind,
    },
    /// One layer at the model's real widths with generated weights: only the time matters.
    Speed {
        /// Sequences.
        batch: usize,
        /// Tokens a sequence.
        length: usize,
    },
    /// The real weights on real texts.
    Canary {
        /// The texts as tokens: the first batch is timed, the others are computed once. The answer has the rows of
        /// all of them, one batch after the other.
        batches: Vec<Batch>,
    },
}

/// An operation that every transformer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A table's rows picked by number.
    PickRows,
    /// A product of two matrices.
    Matmul,
    /// A product with a transposed view.
    MatmulTransposed,
    /// A copy of a transposed view.
    Transpose,
    /// Layer norm over the last dimension.
    LayerNorm,
    /// Softmax over the last dimension.
    Softmax,
    /// The exact GELU.
    Gelu,
}

impl Op {
    /// All of them.
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

/// What came back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The numbers.
    pub rows: Rows,
    /// Seconds that the computation took, loading excluded; the best of a few where it was repeated.
    pub seconds: f64,
    /// Bytes that the process held when it was done, where the placement computes in host memory.
    pub memory: Option<u64>,
    /// How many nodes of a graph each of the runtime's providers really computed, where there is a graph.
    pub nodes: BTreeMap<String, usize>,
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
            ProbeCase::Canary { batches } => {
                let texts: usize = batches.iter().map(|batch| batch.sequences.len()).sum();
                write!(f, "canary of {texts} texts")
            }
        }
    }
}
