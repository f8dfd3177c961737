//! Conversations: messages, the model's chat template, and the prompt that they give.

mod message;
mod prompt;

pub use message::Message;
pub(crate) use prompt::prompt;
pub use prompt::{ChatOptions, ChatPrompt};
