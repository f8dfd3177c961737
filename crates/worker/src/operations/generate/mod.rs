//! Text generation: prompts or a conversation to a stream of events or to whole outputs.

mod event;
mod event_writer;
mod outputs;
mod prompt;
mod running;

pub(crate) use event::{EndReason, TokenUsage};
pub(crate) use event_writer::{EventWriter, event_stream};
pub(crate) use outputs::{FinishedOutput, ToolCall, finish};
pub(crate) use prompt::{PromptInput, check_bytes, conversation_bytes};
pub(crate) use running::{Generating, start};
