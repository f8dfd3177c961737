//! What a generation reports.

use sconce::{FinishReason, GeneratedToken};

use crate::operations::output_parser::Delta;

/// An event of a generation.
#[derive(Debug, PartialEq)]
pub(crate) enum GenerationEvent {
    /// The next parts of an output, and the token that they come from, unless they were held back until the end.
    Deltas { choice: usize, deltas: Vec<Delta>, token: Option<GeneratedToken> },
    /// An output ended.
    Finished { choice: usize, reason: EndReason },
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// An end token.
    Stop,
    /// The stop string of this index.
    StopString(usize),
    /// The maximum number of tokens.
    Length,
    /// The model called tools.
    ToolCalls,
}

impl EndReason {
    /// The name that OpenAI's API uses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EndReason::Stop | EndReason::StopString(_) => FinishReason::Stop.name(),
            EndReason::Length => FinishReason::Length.name(),
            EndReason::ToolCalls => "tool_calls",
        }
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenUsage {
    pub(crate) prompt: usize,
    /// Tokens of the prompt that were in the prefix cache.
    pub(crate) cached: usize,
    pub(crate) generated: usize,
    /// Generated tokens that came before the answer.
    pub(crate) reasoning: usize,
}
