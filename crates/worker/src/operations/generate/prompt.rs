//! What a generation continues: text, token ids or a conversation.

use sconce::{ChatOptions, GenerateOptions, Message, Model};
use sconce_http::refusal::{Kind, Refusal};

use crate::errors::refusal;
use crate::operations::call_ids;
use crate::operations::context::invalid;
use crate::operations::output_parser::OutputParser;
use crate::operations::tools::Tools;

/// Maximum bytes of a prompt or of the texts of a conversation.
const MAX_PROMPT: usize = 4 << 20;

/// What is continued.
pub(crate) enum PromptInput {
    Text(String),
    Ids(Vec<u32>),
    Conversation { messages: Vec<Message>, options: ChatOptions, tools: Tools },
}

impl PromptInput {
    pub(super) fn bytes(&self) -> usize {
        match self {
            PromptInput::Text(text) => text.len(),
            PromptInput::Ids(ids) => 4 * ids.len(),
            PromptInput::Conversation { messages, tools, .. } => conversation_bytes(messages, tools),
        }
    }

    /// The token ids, the options with what the chat template adds to them, and the parser of the output.
    pub(super) fn prepare(self, model: &Model, mut options: GenerateOptions) -> Result<Prepared, Refusal> {
        let (ids, parser) = match self {
            PromptInput::Text(text) => {
                let tokens = model.tokens(&text, true).map_err(refusal)?;
                (tokens.into_iter().map(|token| token.id).collect(), OutputParser::plain())
            }
            PromptInput::Ids(ids) => (ids, OutputParser::plain()),
            PromptInput::Conversation { mut messages, options: mut chat, tools } => {
                let callable = tools.are_callable();
                // A model may have a template for tools.
                chat.tools = callable.then(|| tools.definitions.clone());
                let template = model.chat_template(&chat).map_err(refusal)?;
                call_ids::for_template(template, &mut messages);
                let prompt = model.chat_prompt(&messages, &chat).map_err(refusal)?;
                let calls = tools.structured_output(template)?;
                // Structured output begins at once, also where the prompt begins a reasoning.
                let parser = match (&options.structured_output, &calls) {
                    (Some(_), Some(_)) => {
                        return Err(invalid("a required tool call and `response_format` exclude each other"));
                    }
                    (Some(_), None) => OutputParser::plain(),
                    (None, Some(_)) => OutputParser::of(template, "", callable),
                    (None, None) => OutputParser::of(template, &prompt.text, callable),
                };
                let parser = if tools.parallel { parser } else { parser.single() };
                options.structured_output = calls.or(options.structured_output);
                if !options.ignore_eos {
                    options.stop_tokens.extend(prompt.stop_tokens);
                }
                (prompt.ids, parser)
            }
        };
        Ok(Prepared { ids, options, parser })
    }
}

/// A prompt that is ready to be continued.
pub(super) struct Prepared {
    pub(super) ids: Vec<u32>,
    pub(super) options: GenerateOptions,
    pub(super) parser: OutputParser,
}

/// Bytes of a conversation.
pub(crate) fn conversation_bytes(messages: &[Message], tools: &Tools) -> usize {
    let messages = messages.iter().map(|message| json_bytes(&message.0)).sum::<usize>();
    messages + tools.definitions.iter().map(json_bytes).sum::<usize>()
}

/// Rejects prompts of too many bytes.
pub(crate) fn check_bytes(bytes: usize) -> Result<(), Refusal> {
    if bytes > MAX_PROMPT {
        let message = format!("a prompt has at most {MAX_PROMPT} bytes, and this one {bytes}");
        return Err(Refusal::new(Kind::TooLarge, message));
    }
    Ok(())
}

/// Bytes of a value as JSON.
fn json_bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |bytes| bytes.len())
}
