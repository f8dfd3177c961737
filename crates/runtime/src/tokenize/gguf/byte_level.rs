//! Byte-level BPE tokenizers of GGUF files. `tokenizer.ggml.pre` names the rules that split a text before merges.

use sconce_engines::gguf::metadata::{Metadata, StringArray, Value};
use serde_json::json;
use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::parts::{self, Parts};
use crate::tokenize::error::TokenizerError;

/// The split of Qwen 2 and later: digits one by one.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The split of Llama 3: digits in groups of three.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The split of Mistral's Tekken: words end where upper case begins, and digits are one by one.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The split of GPT-4o and gpt-oss: words as in Tekken with their contractions, and digits in groups of three.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The splits of `DeepSeek` V3, one after the other: digits in groups of three, Chinese and Japanese, all other text.
const DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥\x{3040}-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
/// The names that `tokenizer.ggml.pre` may have.
const KNOWN: [&str; 7] = ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "gpt-4o", "deepseek-v3"];

/// Loads a tokenizer with this vocabulary.
pub(super) fn load(metadata: &Metadata, tokens: &StringArray) -> Result<Tokenizer, TokenizerError> {
    let rules = Rules::named(metadata.string("tokenizer.ggml.pre").unwrap_or("none"))?;
    let merges = parts::value(metadata, "merges").and_then(Value::as_strings);
    let merges = merges.ok_or(TokenizerError::Incomplete { key: "tokenizer.ggml.merges" })?;
    let pair = |merge: &str| {
        let (first, second) = merge.split_once(' ')?;
        Some((first.to_owned(), second.to_owned()))
    };
    let merges: Option<Merges> = merges.iter().map(pair).collect();
    let merges = merges.ok_or(TokenizerError::Incomplete { key: "tokenizer.ggml.merges" })?;
    let vocabulary: Vocab = tokens.iter().map(str::to_owned).zip(0..).collect();
    let model = BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(rules.ignores_merges);
    let parts = Parts {
        normalizer: rules.normalizer,
        pre_tokenizer: rules.pre_tokenizer,
        decoder: byte_level(false),
        adds_begin: rules.adds_begin,
        added: parts::added(metadata),
    };
    parts::assemble(model.build().map_err(TokenizerError::Tokenizer)?, parts, metadata, tokens)
}

fn byte_level(splits: bool) -> serde_json::Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": splits })
}

/// The rules that `tokenizer.ggml.pre` names.
struct Rules {
    pre_tokenizer: serde_json::Value,
    normalizer: serde_json::Value,
    /// Whether a word of the vocabulary is one token, whatever the merges say.
    ignores_merges: bool,
    /// Whether the begin token is added if no key decides it.
    adds_begin: bool,
}

impl Rules {
    fn named(pre: &str) -> Result<Rules, TokenizerError> {
        let split = |expression: &&str| {
            let pattern = json!({ "Regex": expression });
            json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false })
        };
        let by = |expressions: &[&str]| {
            let parts: Vec<_> = expressions.iter().map(split).chain([byte_level(false)]).collect();
            json!({ "type": "Sequence", "pretokenizers": parts })
        };
        let plain = |pre_tokenizer| Rules {
            pre_tokenizer,
            normalizer: serde_json::Value::Null,
            ignores_merges: false,
            adds_begin: false,
        };
        Ok(match pre {
            "gpt-2" | "gpt2" => plain(byte_level(true)),
            "smollm" => {
                let digits = json!({ "type": "Digits", "individual_digits": true });
                plain(json!({ "type": "Sequence", "pretokenizers": [digits, byte_level(true)] }))
            }
            "qwen2" => Rules { normalizer: json!({ "type": "NFC" }), ..plain(by(&[QWEN2])) },
            "llama-bpe" | "llama3" | "llama-v3" => {
                Rules { ignores_merges: true, adds_begin: true, ..plain(by(&[LLAMA3])) }
            }
            "tekken" => Rules { ignores_merges: true, adds_begin: true, ..plain(by(&[TEKKEN])) },
            "gpt-4o" => Rules { ignores_merges: true, ..plain(by(&[GPT4O])) },
            "deepseek-v3" => plain(by(&DEEPSEEK3)),
            _ => {
                let known = KNOWN.to_vec();
                return Err(TokenizerError::UnknownPreTokenizer { pre: pre.to_owned(), known });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use sconce_testkit::gguf::Value;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::super::tests::tokenizer_of;
    use super::*;

    /// The characters that stand for bytes, in the order of their ids here.
    fn alphabet() -> Vec<String> {
        let mut all: Vec<char> =
            tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
        all.sort_unstable();
        all.into_iter().map(String::from).collect()
    }

    fn tokenizer(pre: &str) -> Result<Tokenizer, TokenizerError> {
        let mut tokens = alphabet();
        tokens.extend(["he", "ll", "hell", "<|end|>"].map(str::to_owned));
        let types = (0..tokens.len()).map(|id| if id == 259 { 3 } else { 1 }).collect();
        let merges = ["h e", "l l", "he ll"].map(str::to_owned).to_vec();
        tokenizer_of(&[
            ("tokenizer.ggml.model", Value::String("gpt2".to_owned())),
            ("tokenizer.ggml.pre", Value::String(pre.to_owned())),
            ("tokenizer.ggml.tokens", Value::Strings(tokens)),
            ("tokenizer.ggml.token_type", Value::I32s(types)),
            ("tokenizer.ggml.merges", Value::Strings(merges)),
        ])
    }

    #[test]
    fn every_known_split_keeps_the_text_and_finds_control_tokens() {
        for pre in KNOWN {
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
    fn texts_are_split_as_by_the_published_tokenizers() {
        const TEXT: &str =
            "I'LL don'tSTOP ABCdef-Ghi 12345 中文かな１２ été\u{301}!\n\n/x  //\n <br>\t#tag .5";
        // By the `pre_tokenizer` of the published `tokenizer.json`.
        let expected = [
            (
                "qwen2",
                "I|'LL| don|'t|STOP| ABCdef|-Ghi| |1|2|3|4|5| 中文かな|１|２| été|\u{301}!\n\n|/x| | //\n| <|br|>|\t|#tag| .|5",
            ),
            (
                "llama-bpe",
                "I|'LL| don|'t|STOP| ABCdef|-Ghi| |123|45| 中文かな|１２| été|\u{301}!\n\n|/x| | //\n| <|br|>|\t|#tag| .|5",
            ),
            (
                "tekken",
                "I|'LL| don|'t|STOP| ABCdef|-Ghi| |1|2|3|4|5| 中文かな|１|２| été\u{301}|!\n\n/|x| | //\n| <|br|>|\t|#tag| .|5",
            ),
            (
                "gpt-4o",
                "I'LL| don't|STOP| ABCdef|-Ghi| |123|45| 中文かな|１２| été\u{301}|!\n\n/|x| | //\n| <|br|>|\t|#tag| .|5",
            ),
            (
                "deepseek-v3",
                "I|'LL| don|'tSTOP| ABCdef|-Ghi| |123|45| |中文かな|１２| été\u{301}|!\n\n|/x| | //\n| <|br|>|\t|#tag| .|5",
            ),
        ];
        for (pre, expected) in expected {
            let tokenizer = tokenizer(pre).expect("it is known");
            let mut text = PreTokenizedString::from(TEXT);
            let splitter = tokenizer.get_pre_tokenizer().expect("it splits");
            splitter.pre_tokenize(&mut text).expect("it is text");
            let splits = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let splits: Vec<&str> = splits.iter().map(|(_, (start, end), _)| &TEXT[*start..*end]).collect();
            assert_eq!(splits.join("|"), expected, "{pre}");
        }
    }

    #[test]
    fn names_decide_about_merges_and_the_begin_token() {
        for pre in ["llama-bpe", "tekken", "gpt-4o"] {
            assert!(Rules::named(pre).expect("it is known").ignores_merges, "{pre}");
        }
        let adds_begin = |pre: &&str| Rules::named(pre).is_ok_and(|rules| rules.adds_begin);
        assert_eq!(KNOWN.iter().filter(|pre| adds_begin(pre)).collect::<Vec<_>>(), [&"llama-bpe", &"tekken"]);
    }
}
