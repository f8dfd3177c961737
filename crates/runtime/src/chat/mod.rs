//! Conversations: messages, the model's chat template, and the prompt that they give.

mod message;
mod prompt;

pub use message::Message;
pub use prompt::{ChatOptions, ChatPrompt};
pub(crate) use prompt::{prompt, template};
