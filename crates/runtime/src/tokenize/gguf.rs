//! Loads the tokenizer of a GGUF file from its metadata: a WordPiece vocabulary, byte-level BPE, or SentencePiece with BPE or
//! Unigram.

mod byte_level;
mod parts;
mod sentence_piece;
mod unigram;

use std::path::Path;

use sconce_engines::gguf::header::Header;
use sconce_engines::gguf::metadata::{Metadata, StringArray};
use serde_json::{Map, Value};
use tokenizers::Tokenizer;
use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordpiece::WordPiece;

use super::error::TokenizerError;
use super::load::{Settings, check, word_piece};
use super::token_bytes::WORD_START;

/// Loads the tokenizer of the GGUF file `path`.
pub(super) fn load(path: &Path) -> Result<Tokenizer, TokenizerError> {
    let header = Header::read(path).map_err(|source| TokenizerError::Gguf { source })?;
    let tokenizer = from_metadata(&header.metadata)?;
    check(&tokenizer)?;
    Ok(tokenizer)
}

/// The tokenizer of these metadata.
fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
    let model = metadata.string("tokenizer.ggml.model").unwrap_or("none");
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(|value| value.as_strings());
    match (model, tokens) {
        ("bert", Some(tokens)) => from_pieces(metadata, tokens),
        ("gpt2", Some(tokens)) => byte_level::load(metadata, tokens),
        ("llama", Some(tokens)) => sentence_piece::load(metadata, tokens),
        ("t5", Some(tokens)) => unigram::load(metadata, tokens),
        _ => Err(TokenizerError::UnknownModel { model: model.to_owned() }),
    }
}

fn from_pieces(metadata: &Metadata, tokens: &StringArray) -> Result<Tokenizer, TokenizerError> {
    let pieces = tokens.iter().enumerate().map(|(id, token)| (piece(token), id as u32));
    let model = WordPiece::builder().vocab(pieces.collect::<Vocab>());
    let mut settings = Map::new();
    for (key, names) in [
        ("cls_token", &["bos_token_id", "cls_token_id"][..]),
        // The format spells it so.
        ("sep_token", &["seperator_token_id", "eos_token_id"]),
        ("unk_token", &["unknown_token_id"]),
        ("pad_token", &["padding_token_id"]),
        ("mask_token", &["mask_token_id"]),
    ] {
        let id = names.iter().find_map(|name| metadata.integer(&format!("tokenizer.ggml.{name}")));
        if let Some(token) = id.and_then(|id| tokens.get(usize::try_from(id).ok()?)) {
            settings.insert(key.to_owned(), piece(token).into());
        }
    }
    // No key declares the case. A vocabulary of lower case has no other pieces.
    let is_cased =
        tokens.iter().any(|token| !is_special(token) && token.contains(|c: char| c.is_ascii_uppercase()));
    settings.insert("do_lower_case".to_owned(), (!is_cased).into());
    word_piece(model, &Settings::new(Value::Object(settings)))
}

/// A token in the notation of WordPiece: pieces that continue a word begin with `##`.
fn piece(token: &str) -> String {
    match token.strip_prefix(WORD_START) {
        Some(word) => word.to_owned(),
        None if is_special(token) => token.to_owned(),
        None => format!("##{token}"),
    }
}

fn is_special(token: &str) -> bool {
    token.starts_with('[') && token.ends_with(']')
}

#[cfg(test)]
mod tests;
