//! Text to token ids: tokenizer files, truncation, pairs, templates and late-interaction queries.

mod character_map;
mod error;
mod gguf;
mod load;
mod pair;
mod prompt;
mod query;
mod regex_cost;
pub(crate) mod rerank_template;
mod token_bytes;
mod tokenizer;

pub use error::TokenizerError;
pub(crate) use load::{files, load};
pub use pair::TruncationStrategy;
pub(crate) use token_bytes::TokenBytes;
pub use tokenizer::{ModelTokenizer, Token, TokenSequence};
