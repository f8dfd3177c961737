//! Byte-level BPE tokenizers of GGUF files. `tokenizer.ggml.pre` names the rules that split a text before merges.

use sconce_engines::gguf::metadata::{self, Metadata, StringArray};
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use super::error::TokenizerError;

/// Token types in `tokenizer.ggml.token_type`.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// The split of Qwen 2 and later: digits one by one.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The split of Llama 3: digits in groups of three.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Loads a tokenizer with this vocabulary.
pub(super) fn load(metadata: &Metadata, tokens: &StringArray) -> Result<Tokenizer, TokenizerError> {
    let vocabulary: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.to_owned(), id.into())).collect();
    let merges = metadata.get("tokenizer.ggml.merges").and_then(|value| value.as_strings());
    let merges: Vec<&str> = merges.into_iter().flat_map(StringArray::iter).collect();
    let (pre_tokenizer, normalizer) = split(metadata.string("tokenizer.ggml.pre").unwrap_or("default"))?;
    let json = json!({
        "version": "1.0",
        "added_tokens": added_tokens(metadata, tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": begin_token(metadata, tokens),
        "decoder": byte_level(false),
        "model": { "type": "BPE", "vocab": vocabulary, "merges": merges },
    });
    let text = json.to_string();
    text.parse().map_err(TokenizerError::Tokenizer)
}

fn byte_level(splits: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": splits })
}

/// The pre-tokenizer and normalizer that `pre` names.
fn split(pre: &str) -> Result<(Value, Value), TokenizerError> {
    let by = |expression: &str| {
        let pattern = json!({ "Regex": expression });
        let split = json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false });
        json!({ "type": "Sequence", "pretokenizers": [split, byte_level(false)] })
    };
    Ok(match pre {
        "default" | "gpt-2" | "gpt2" => (byte_level(true), Value::Null),
        "smollm" | "refact" | "starcoder" | "command-r" => {
            let digits = json!({ "type": "Digits", "individual_digits": true });
            (json!({ "type": "Sequence", "pretokenizers": [digits, byte_level(true)] }), Value::Null)
        }
        "qwen2" | "deepseek-r1-qwen" => (by(QWEN2), json!({ "type": "NFC" })),
        "llama-bpe" | "llama3" | "llama-v3" => (by(LLAMA3), Value::Null),
        _ => {
            let known = vec!["default", "gpt-2", "smollm", "starcoder", "qwen2", "llama-bpe"];
            return Err(TokenizerError::UnknownPreTokenizer { pre: pre.to_owned(), known });
        }
    })
}

/// Tokens that are found in a text before it is split: control tokens, and those of the user.
fn added_tokens(metadata: &Metadata, tokens: &StringArray) -> Vec<Value> {
    let types = metadata.get("tokenizer.ggml.token_type").and_then(|value| value.as_numbers());
    let types = types.into_iter().flat_map(|types| types.iter().collect::<Vec<_>>());
    let added = types.zip(tokens.iter()).enumerate().filter_map(|(id, (kind, token))| {
        let kind = kind.as_u64()?;
        let special = kind == CONTROL;
        (special || kind == USER_DEFINED).then(|| {
            json!({
                "id": id, "content": token, "special": special, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
    });
    added.collect()
}

/// The post-processor that puts the begin token before a text, if the metadata demands it.
fn begin_token(metadata: &Metadata, tokens: &StringArray) -> Value {
    let demanded = metadata.get("tokenizer.ggml.add_bos_token").and_then(metadata::Value::as_bool);
    let id = metadata.integer("tokenizer.ggml.bos_token_id").and_then(|id| usize::try_from(id).ok());
    let Some((id, token)) = id.and_then(|id| Some((id, tokens.get(id)?))).filter(|_| demanded == Some(true))
    else {
        return Value::Null;
    };
    let special = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let text = |name: &str, kind: u32| json!({ "Sequence": { "id": name, "type_id": kind } });
    json!({
        "type": "TemplateProcessing",
        "single": [special, text("A", 0)],
        "pair": [special, text("A", 0), special, text("B", 1)],
        "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The characters that stand for bytes, in the order of their ids here.
    fn alphabet() -> Vec<String> {
        let mut all: Vec<char> =
            tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
        all.sort_unstable();
        all.into_iter().map(String::from).collect()
    }

    fn tokenizer(pre: &str) -> Result<Tokenizer, TokenizerError> {
        let (pre_tokenizer, normalizer) = split(pre)?;
        let mut tokens = alphabet();
        tokens.extend(["he", "ll", "hell", "<|end|>"].map(str::to_owned));
        let vocabulary: Map<String, Value> =
            tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
        let json = json!({
            "version": "1.0",
            "added_tokens": [{
                "id": 259, "content": "<|end|>", "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            }],
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": byte_level(false),
            "model": { "type": "BPE", "vocab": vocabulary, "merges": ["h e", "l l", "he ll"] },
        });
        json.to_string().parse().map_err(TokenizerError::Tokenizer)
    }

    #[test]
    fn every_known_split_keeps_the_text_and_finds_control_tokens() {
        for pre in ["default", "gpt-2", "smollm", "starcoder", "qwen2", "llama-bpe"] {
            let tokenizer = tokenizer(pre).expect("it is known");
            for text in ["hello 1234", "  a\n\nb\t", "naïve 中文 🙂", "don't STOP", "x<|end|>hell"] {
                let encoding = tokenizer.encode(text, false).expect("it is text");
                let decoded = tokenizer.decode(encoding.get_ids(), false).expect("they are tokens");
                assert_eq!(decoded, text, "{pre}");
            }
            let ids = tokenizer.encode("x<|end|>hell", false).expect("it is text").get_ids().to_vec();
            assert_eq!(ids[1..], [259, 258], "{pre}");
        }
        let refused = tokenizer("poro").expect_err("it is not known").to_string();
        assert!(refused.contains("`poro`") && refused.contains("smollm"), "{refused}");
    }
}
