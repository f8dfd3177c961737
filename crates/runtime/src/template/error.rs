//! Why a template was not rendered.

/// Why a chat template was not rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The model has none.
    #[error(
        "the model has no chat template: looked for `chat_template.jinja`, `chat_template` in `tokenizer_config.json`, and \
         `tokenizer.chat_template` in a GGUF file\nhint: `sconce generate` continues a text without one"
    )]
    Missing,
    /// The model has none of this name.
    #[error("no chat template is called `{name}`; the model has: {}", known.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// Names of the model's templates.
        known: Vec<String>,
    },
    /// It is no valid template.
    #[error("the chat template can't be parsed: {0}")]
    Syntax(String),
    /// It called `raise_exception`.
    #[error("the chat template rejects the conversation: {0}")]
    Raised(String),
    /// An operation failed.
    #[error("the chat template failed in line {line}: {why}")]
    Failed {
        /// Line of the template.
        line: u32,
        /// The reason.
        why: String,
    },
    /// It loops too long.
    #[error("the chat template was stopped after {0} steps")]
    Steps(u64),
    /// It builds too much.
    #[error("the chat template was stopped after it built {0} bytes of texts and lists")]
    Bytes(u64),
    /// It could not run.
    #[error("the chat template has no thread to run on: {0}")]
    Thread(String),
    /// It nests too deeply.
    #[error("the chat template nests more than {0} expressions, blocks and macro calls")]
    Depth(usize),
}

/// A failed operation, whose line the evaluator adds.
pub(super) fn fail<T>(why: impl Into<String>) -> Result<T, TemplateError> {
    Err(failed(why))
}

/// The error of [`fail`].
pub(super) fn failed(why: impl Into<String>) -> TemplateError {
    TemplateError::Failed { line: 0, why: why.into() }
}
