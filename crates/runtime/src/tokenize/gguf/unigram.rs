//! SentencePiece Unigram tokenizers of GGUF files, as XLM-RoBERTa and T5 have them: pieces with log probabilities.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sconce_engines::gguf::metadata::{Metadata, StringArray, Value};
use serde_json::json;
use tokenizers::Tokenizer;
use tokenizers::models::unigram::Unigram;

use super::parts::{self, Parts};
use super::sentence_piece::Pieces;
use crate::tokenize::character_map;
use crate::tokenize::error::TokenizerError;
use crate::tokenize::token_bytes::WORD_START;

/// The token type of the unknown token in `tokenizer.ggml.token_type`.
const UNKNOWN: u64 = 2;

/// Loads a tokenizer with this vocabulary.
pub(super) fn load(metadata: &Metadata, tokens: &StringArray) -> Result<Tokenizer, TokenizerError> {
    let pieces = Pieces::read(metadata, tokens, true)?;
    let unknown = parts::value(metadata, "unknown_token_id").and_then(Value::as_u64);
    let unknown = unknown.and_then(|id| usize::try_from(id).ok());
    let unknown = unknown.or_else(|| pieces.types.iter().position(|kind| *kind == UNKNOWN));
    let vocabulary = pieces.texts.into_iter().zip(pieces.scores).collect();
    let model = Unigram::from(vocabulary, unknown, false).map_err(TokenizerError::Tokenizer)?;
    let is_set = |name: &str| parts::value(metadata, name).and_then(Value::as_bool).unwrap_or(true);
    let mut normalizers = Vec::new();
    if let Some(map) = parts::value(metadata, "precompiled_charsmap").and_then(Value::as_numbers) {
        let byte = |byte: Value| byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
        let map: Option<Vec<u8>> = map.iter().map(byte).collect();
        let map = map.ok_or(TokenizerError::Incomplete { key: "tokenizer.ggml.precompiled_charsmap" })?;
        character_map::check(&map)?;
        normalizers.push(json!({ "type": "Precompiled", "precompiled_charsmap": STANDARD.encode(map) }));
    }
    if is_set("remove_extra_whitespaces") {
        normalizers.push(json!({ "type": "Strip", "strip_left": true, "strip_right": true }));
        normalizers.push(json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " }));
    }
    let scheme = if is_set("add_space_prefix") { "always" } else { "never" };
    let words =
        json!({ "type": "Metaspace", "replacement": WORD_START, "prepend_scheme": scheme, "split": true });
    let parts = Parts {
        normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
        pre_tokenizer: words.clone(),
        decoder: words,
        adds_begin: false,
        added: parts::added(metadata),
    };
    parts::assemble(model, parts, metadata, tokens)
}

#[cfg(test)]
mod tests {
    use sconce_testkit::gguf::Value;

    use super::super::sentence_piece::tests::{golden, ids, metadata};
    use super::super::tests::tokenizer_of;
    use super::*;

    #[test]
    fn ids_are_those_of_sentence_piece() {
        let golden = golden("unigram.json");
        let map = STANDARD.decode(golden["map"].as_str().expect("base64")).expect("base64");
        let mut metadata = metadata(&golden);
        metadata[0].1 = Value::String("t5".to_owned());
        metadata.push(("tokenizer.ggml.precompiled_charsmap", Value::U8s(map.clone())));
        metadata.push(("tokenizer.ggml.add_eos_token", Value::Bool(true)));
        let tokenizer = tokenizer_of(&metadata).expect("it loads");
        let texts = golden["texts"].as_array().expect("a list");
        assert!(texts.len() > 150);
        let score =
            |ids: &[u32]| ids.iter().filter_map(|id| golden["scores"][*id as usize].as_f64()).sum::<f64>();
        let mut ties = 0;
        for entry in texts {
            let text = entry["text"].as_str().expect("a text");
            let wanted: Vec<u32> = serde_json::from_value(entry["ids"].clone()).expect("ids");
            let got = ids(&tokenizer, text, false);
            assert_eq!(ids(&tokenizer, text, true), [&got[..], &[2]].concat(), "{text:?}");
            if got != wanted {
                // Several segmentations are equally probable: sums in f32 and in f64 decide otherwise.
                assert!((score(&got) - score(&wanted)).abs() < 1e-4, "{text:?}: {got:?}, {wanted:?}");
                ties += 1;
            }
        }
        assert!(ties < 5, "{ties}");
        let at = metadata.len() - 2;
        metadata[at].1 = Value::U8s(map[..map.len() / 2].to_vec());
        let refused = tokenizer_of(&metadata).expect_err("half a map");
        assert!(refused.to_string().contains("character map"), "{refused}");
    }
}
