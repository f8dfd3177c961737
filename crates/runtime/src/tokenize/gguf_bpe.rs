//! Byte-level BPE tokenizers of GGUF files. `tokenizer.ggml.pre` names the rules that split a text before merges.

use sconce_engines::gguf::added_tokens::{AddedToken, added_tokens};
use sconce_engines::gguf::metadata::{self, Metadata, StringArray};
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use super::error::TokenizerError;

/// The split of Qwen 2 and later: digits one by one.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The split of Llama 3: digits in groups of three.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Loads a tokenizer with this vocabulary.
pub(super) fn load(metadata: &Metadata, tokens: &StringArray) -> Result<Tokenizer, TokenizerError> {
    let vocabulary: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.to_owned(), id.into())).collect();
    let merges = metadata.get("tokenizer.ggml.merges").and_then(|value| value.as_strings());
    let merges = merges.ok_or(TokenizerError::NoMerges)?.iter().collect::<Vec<&str>>();
    let rules = Rules::named(metadata.string("tokenizer.ggml.pre").unwrap_or("none"))?;
    let json = json!({
        "version": "1.0",
        "added_tokens": added(metadata),
        "normalizer": rules.normalizer,
        "pre_tokenizer": rules.pre_tokenizer,
        "post_processor": template(metadata, |id| tokens.get(id), rules.adds_begin),
        "decoder": byte_level(false),
        "model": {
            "type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": rules.ignores_merges,
        },
    });
    let text = json.to_string();
    text.parse().map_err(TokenizerError::Tokenizer)
}

fn byte_level(splits: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": splits })
}

/// The rules that `tokenizer.ggml.pre` names.
struct Rules {
    pre_tokenizer: Value,
    normalizer: Value,
    /// Whether a word of the vocabulary is one token, whatever the merges say.
    ignores_merges: bool,
    /// Whether the begin token is added if no key decides it.
    adds_begin: bool,
}

impl Rules {
    fn named(pre: &str) -> Result<Rules, TokenizerError> {
        let by = |expression: &str| {
            let pattern = json!({ "Regex": expression });
            let split =
                json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false });
            json!({ "type": "Sequence", "pretokenizers": [split, byte_level(false)] })
        };
        let plain = |pre_tokenizer| Rules {
            pre_tokenizer,
            normalizer: Value::Null,
            ignores_merges: false,
            adds_begin: false,
        };
        Ok(match pre {
            "gpt-2" | "gpt2" => plain(byte_level(true)),
            "smollm" => {
                let digits = json!({ "type": "Digits", "individual_digits": true });
                plain(json!({ "type": "Sequence", "pretokenizers": [digits, byte_level(true)] }))
            }
            "qwen2" => Rules { normalizer: json!({ "type": "NFC" }), ..plain(by(QWEN2)) },
            "llama-bpe" | "llama3" | "llama-v3" => {
                Rules { ignores_merges: true, adds_begin: true, ..plain(by(LLAMA3)) }
            }
            _ => {
                let known = vec!["gpt-2", "smollm", "qwen2", "llama-bpe"];
                return Err(TokenizerError::UnknownPreTokenizer { pre: pre.to_owned(), known });
            }
        })
    }
}

/// The added tokens in the notation of `tokenizer.json`.
fn added(metadata: &Metadata) -> Vec<Value> {
    let json = |token: AddedToken<'_>| {
        json!({
            "id": token.id, "content": token.text, "special": token.is_control, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    added_tokens(metadata).map(json).collect()
}

/// The post-processor that puts the begin token before a text, and the end token after it, as the metadata demands.
fn template<'a>(metadata: &Metadata, tokens: impl Fn(usize) -> Option<&'a str>, adds_begin: bool) -> Value {
    let token = |name: &str, default: bool| {
        let demanded = metadata.get(&format!("tokenizer.ggml.add_{name}_token"));
        let id = metadata.integer(&format!("tokenizer.ggml.{name}_token_id"));
        let id = id.and_then(|id| usize::try_from(id).ok())?;
        let demanded = demanded.and_then(metadata::Value::as_bool).unwrap_or(default);
        Some((id, tokens(id).filter(|_| demanded)?))
    };
    let (begin, end) = (token("bos", adds_begin), token("eos", false));
    if begin.is_none() && end.is_none() {
        return Value::Null;
    }
    let special =
        |(_, token): (usize, &str), kind: u32| json!({ "SpecialToken": { "id": token, "type_id": kind } });
    let text = |name: &str, kind: u32| {
        let begin = begin.map(|token| special(token, kind));
        let end = end.map(|token| special(token, kind));
        let text = json!({ "Sequence": { "id": name, "type_id": kind } });
        begin.into_iter().chain([text]).chain(end).collect::<Vec<Value>>()
    };
    let named = [begin, end]
        .into_iter()
        .flatten()
        .map(|(id, token)| (token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] })));
    let pair = [text("A", 0), text("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": pair,
        "special_tokens": named.collect::<Map<String, Value>>(),
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
        let rules = Rules::named(pre)?;
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
            "normalizer": rules.normalizer, "pre_tokenizer": rules.pre_tokenizer, "decoder": byte_level(false),
            "model": { "type": "BPE", "vocab": vocabulary, "merges": ["h e", "l l", "he ll"] },
        });
        json.to_string().parse().map_err(TokenizerError::Tokenizer)
    }

    #[test]
    fn every_known_split_keeps_the_text_and_finds_control_tokens() {
        for pre in ["gpt-2", "smollm", "qwen2", "llama-bpe"] {
            let tokenizer = tokenizer(pre).expect("it is known");
            for text in ["hello 1234", "  a\n\nb\t", "naïve 中文 🙂", "don't STOP", "x<|end|>hell"] {
                let encoding = tokenizer.encode(text, false).expect("it is text");
                let decoded = tokenizer.decode(encoding.get_ids(), false).expect("they are tokens");
                assert_eq!(decoded, text, "{pre}");
            }
            let ids = tokenizer.encode("x<|end|>hell", false).expect("it is text").get_ids().to_vec();
            assert_eq!(ids[1..], [259, 258], "{pre}");
        }
        for unknown in ["poro", "default", "none"] {
            let refused = tokenizer(unknown).expect_err("it is not known").to_string();
            assert!(refused.contains(&format!("`{unknown}`")) && refused.contains("smollm"), "{refused}");
        }
    }

    #[test]
    fn begin_and_end_tokens_are_those_that_the_metadata_demand() {
        use metadata::Value::{Bool, Unsigned};
        let tokens = |id: usize| ["a", "<s>", "</s>"].get(id).copied();
        let added = |entries: &[(&str, metadata::Value)], adds_begin: bool| {
            let key = |name: &str| format!("tokenizer.ggml.{name}");
            let metadata = entries.iter().map(|(name, value)| (key(name), value.clone())).collect();
            let template = template(&metadata, tokens, adds_begin);
            let single = template["single"].as_array().cloned().unwrap_or_default();
            single
                .iter()
                .map(|part| part["SpecialToken"]["id"].as_str().unwrap_or("text").to_owned())
                .collect::<Vec<String>>()
        };
        let ids = [("bos_token_id", Unsigned(1)), ("eos_token_id", Unsigned(2))];
        let with = |more: &[(&'static str, metadata::Value)]| [&ids[..], more].concat();
        let none: Vec<String> = Vec::new();
        assert_eq!(added(&ids, false), none);
        assert_eq!(added(&ids, true), ["<s>", "text"]);
        assert_eq!(added(&with(&[("add_bos_token", Bool(false))]), true), none);
        assert_eq!(added(&with(&[("add_eos_token", Bool(true))]), true), ["<s>", "text", "</s>"]);
        assert_eq!(added(&with(&[("add_eos_token", Bool(true))]), false), ["text", "</s>"]);
    }
}
