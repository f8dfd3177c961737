//! SentencePiece BPE tokenizers of GGUF files: a vocabulary of pieces with scores.
//!
//! SentencePiece merges the adjacent pair whose concatenation is the piece with the highest score. As BPE this is one merge
//! for each split of a piece into two others, in descending order of the scores.

use sconce_engines::gguf::metadata::{Metadata, StringArray, Value};
use serde_json::json;
use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::parts::{self, Parts};
use crate::tokenize::error::TokenizerError;
use crate::tokenize::load::{MAX_TOKEN_BYTES, check_limit};
use crate::tokenize::token_bytes::WORD_START;

/// Token types in `tokenizer.ggml.token_type`. Text is merged to normal and unused pieces.
const NORMAL: u64 = 1;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;
/// Limit of the bytes that are hashed to find the splits of all pieces. Gemma 3 takes a hundredth of it.
const MAX_SPLIT_BYTES: usize = 1 << 33;
/// The control tokens of Phi-3 that keep the whitespace after them. The others remove it, which no key says.
const PHI3_KEEP: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// Loads a tokenizer with this vocabulary.
pub(super) fn load(metadata: &Metadata, tokens: &StringArray) -> Result<Tokenizer, TokenizerError> {
    let prefix = parts::value(metadata, "add_space_prefix").and_then(Value::as_bool).unwrap_or(true);
    let pieces = Pieces::read(metadata, tokens, prefix)?;
    let unknown = parts::value(metadata, "unknown_token_id").and_then(Value::as_u64).unwrap_or(0);
    let unknown = usize::try_from(unknown).ok().and_then(|id| tokens.get(id));
    let model = BPE::builder()
        .vocab_and_merges(pieces.vocabulary(), pieces.merges()?)
        .byte_fallback(true)
        .fuse_unk(true);
    let model = unknown.into_iter().fold(model, |model, token| model.unk_token(token.to_owned()));
    let model = model.build().map_err(TokenizerError::Tokenizer)?;
    let start = WORD_START.to_string();
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": start });
    let words = json!({ "type": "Replace", "pattern": { "String": start }, "content": " " });
    let mut normalizers = vec![spaces];
    let mut decoders = vec![words, json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": start }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let parts = Parts {
        normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
        pre_tokenizer: serde_json::Value::Null,
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        adds_begin: true,
        added: added(metadata, prefix),
    };
    parts::assemble(model, parts, metadata, tokens)
}

/// The added tokens.
fn added(metadata: &Metadata, prefix: bool) -> Vec<tokenizers::AddedToken> {
    let name = metadata.string("general.name").unwrap_or_default().to_lowercase();
    let is_phi3 = ["phi-3", "phi3"].iter().any(|phi3| name.contains(phi3));
    let mut added = parts::added(metadata);
    for token in &mut added {
        if !token.special && !prefix {
            // SentencePiece finds them in the normalized text. The normalizer with a prefix would change them.
            (token.content, token.normalized) = (normalized(&token.content), true);
        }
        token.rstrip = is_phi3 && !PHI3_KEEP.contains(&token.content.as_str());
    }
    added
}

/// A token as it is in a normalized text. Files have runs of spaces, such as those of Gemma, as plain spaces.
fn normalized(token: &str) -> String {
    token.replace(' ', &WORD_START.to_string())
}

/// The pieces of a vocabulary.
pub(super) struct Pieces {
    /// By id.
    pub(super) texts: Vec<String>,
    pub(super) scores: Vec<f64>,
    pub(super) types: Vec<u64>,
}

impl Pieces {
    /// Reads the pieces. Without a space before the text, user-defined ones are written as in a normalized text.
    pub(super) fn read(
        metadata: &Metadata,
        tokens: &StringArray,
        prefix: bool,
    ) -> Result<Pieces, TokenizerError> {
        let numbers = |name, key| {
            let numbers = parts::value(metadata, name).and_then(Value::as_numbers);
            let numbers = numbers.ok_or(TokenizerError::Incomplete { key })?;
            if numbers.len() != tokens.len() {
                return Err(TokenizerError::Lengths { key, values: numbers.len(), tokens: tokens.len() });
            }
            Ok(numbers)
        };
        let scores = numbers("scores", "tokenizer.ggml.scores")?;
        let types = numbers("token_type", "tokenizer.ggml.token_type")?;
        let types: Vec<u64> = types.iter().map(|kind| kind.as_u64().unwrap_or(0)).collect();
        let scores = scores.iter().map(|score| score.as_f64().unwrap_or(f64::NEG_INFINITY)).collect();
        let texts = tokens.iter().zip(&types).map(|(token, kind)| {
            if *kind == USER_DEFINED && !prefix { normalized(token) } else { token.to_owned() }
        });
        Ok(Pieces { texts: texts.collect(), scores, types })
    }

    fn vocabulary(&self) -> Vocab {
        self.texts.iter().cloned().zip(0..).collect()
    }

    /// The merges in their order: for each piece, by descending score, all splits into two pieces, longest first part
    /// first.
    fn merges(&self) -> Result<Merges, TokenizerError> {
        let is_merged = |id: &usize| [NORMAL, UNUSED].contains(&self.types[*id]);
        let mut ids: Vec<usize> = (0..self.texts.len()).filter(is_merged).collect();
        let lengths = || ids.iter().map(|id| self.texts[*id].len());
        check_limit("bytes of the longest token", lengths().max().unwrap_or(0), MAX_TOKEN_BYTES)?;
        let hashed = lengths().map(|length| length * length).sum();
        check_limit("bytes of all splits of its tokens", hashed, MAX_SPLIT_BYTES)?;
        let known: std::collections::HashSet<&str> = ids.iter().map(|id| self.texts[*id].as_str()).collect();
        ids.sort_by(|one, other| self.scores[*other].total_cmp(&self.scores[*one]));
        let mut merges = Merges::new();
        for text in ids.iter().map(|id| self.texts[*id].as_str()) {
            let ends = text.char_indices().map(|(at, _)| at).skip(1).collect::<Vec<usize>>();
            let splits = ends.into_iter().rev().map(|end| text.split_at(end));
            let known = splits.filter(|(first, second)| known.contains(first) && known.contains(second));
            merges.extend(known.map(|(first, second)| (first.to_owned(), second.to_owned())));
        }
        Ok(merges)
    }
}

#[cfg(test)]
pub(super) mod tests;
