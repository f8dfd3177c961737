//! Errors of loading a tokenizer and of tokenizing.

use std::path::PathBuf;

/// Error of a model's tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// No tokenizer file in the folder.
    #[error(
        "no tokenizer in `{0}`: looked for `tokenizer.json`, `vocab.txt`, and `vocab.json` with `merges.txt`\n\
         hint: python -c \"from transformers import AutoTokenizer; \
         AutoTokenizer.from_pretrained('{0}').save_pretrained('{0}')\" writes `tokenizer.json`",
        folder.display()
    )]
    Missing {
        /// The folder.
        folder: PathBuf,
    },
    /// The GGUF file can't be read.
    #[error(transparent)]
    Gguf {
        /// The error of its header.
        source: sconce_engines::weights::WeightsError,
    },
    /// The GGUF file has a tokenizer of another kind.
    #[error("the tokenizer `{model}` of the GGUF file is not read; known: `bert`, `gpt2`, `llama`, `t5`")]
    UnknownModel {
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },
    /// The GGUF file lacks a key of its tokenizer.
    #[error("the GGUF file has no valid `{key}`: its tokenizer is incomplete")]
    Incomplete {
        /// The key.
        key: &'static str,
    },
    /// A key of the tokenizer has more or fewer values than there are tokens.
    #[error("the GGUF file has {tokens} tokens, and {values} values of `{key}`")]
    Lengths {
        /// The key.
        key: &'static str,
        /// The number of its values.
        values: usize,
        /// The number of tokens.
        tokens: usize,
    },
    /// The GGUF file splits text by rules that are not known.
    #[error(
        "the pre-tokenizer `{pre}` of the GGUF file is not known; known: {}",
        known.join(", ")
    )]
    UnknownPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        pre: String,
        /// The known values.
        known: Vec<&'static str>,
    },
    /// A file can't be read.
    #[error("`{}` can't be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        #[source]
        source: std::io::Error,
    },
    /// A setting exceeds its limit: a short text could cost minutes or gigabytes.
    #[error(
        "the tokenizer is rejected for its cost: {what}: {value}, limit: {most}\n\
         hint: fetch its files again from where the model was published"
    )]
    LimitExceeded {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The limit.
        most: usize,
    },
    /// The regular expressions of the tokenizer are too slow.
    #[error(
        "the tokenizer is rejected for its cost: its regular expressions took {took} ms for a text of {bytes} bytes, \
         limit: {most} ms\nhint: fetch its files again from where the model was published"
    )]
    TooSlow {
        /// Length of the probe text in bytes.
        bytes: usize,
        /// Measured time in ms.
        took: usize,
        /// Time limit in ms.
        most: usize,
    },
    /// The text is longer than the limit for one tokenization.
    #[error("the text has {bytes} bytes, limit: {most}\nhint: split it into several texts")]
    TooLong {
        /// Length of the text in bytes.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// The sequence exceeds `max_length` after special tokens were added.
    #[error("the sequence has {tokens} tokens after special tokens were added, and `max_length` is {most}")]
    Overflow {
        /// Tokens of the sequence.
        tokens: usize,
        /// `max_length` of the model.
        most: usize,
    },
    /// The vocabulary lacks a special token.
    #[error("the vocabulary has no token `{0}`")]
    NoSuchToken(String),
    /// The tokenizer has more ids than the embedding table has rows.
    #[error("the tokenizer has {tokenizer} tokens, and the model has {model}")]
    TooLarge {
        /// Vocabulary size of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding table.
        model: usize,
    },
    /// Special tokens alone fill `max_length`.
    #[error(
        "`max_length` is {length}, and each sequence has {special} special tokens\n\
         hint: `--max-length` must be at least {}",
        special + 1
    )]
    MaxLengthTooSmall {
        /// `max_length`.
        length: usize,
        /// Special tokens per sequence.
        special: usize,
    },
    /// Text of the caller would become a control token.
    #[error("the conversation contains the control token `{0}`, which the tokenizer can't encode as text")]
    ControlToken(String),
    /// The character map of the normalizer has entries out of bounds.
    #[error("the character map of the tokenizer is not valid")]
    InvalidCharacterMap,
    /// The tokenizer library returned an error.
    #[error("the tokenizer failed")]
    Tokenizer(#[source] tokenizers::Error),
}
