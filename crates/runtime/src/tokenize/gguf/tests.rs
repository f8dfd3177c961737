//! Tokenizers of GGUF files against published ones.

use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{env, fs};

use sconce_testkit::gguf::{self, Value};

use super::*;

/// The tokenizer of a file with these metadata.
pub(super) fn tokenizer_of(metadata: &[(&str, Value)]) -> Result<Tokenizer, TokenizerError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    fs::write(&path, gguf::file(metadata, &[])).expect("writes");
    load(&path)
}

#[test]
fn tokens_have_the_notation_of_word_piece() {
    for (token, expected) in
        [("\u{2581}the", "the"), ("ing", "##ing"), ("[CLS]", "[CLS]"), ("\u{2581}[", "[")]
    {
        assert_eq!(piece(token), expected);
    }
}

#[test]
fn another_tokenizer_is_rejected_by_name() {
    let error = tokenizer_of(&[("tokenizer.ggml.model", Value::String("rwkv".to_owned()))]);
    let error = error.expect_err("no pieces").to_string();
    assert!(error.contains("`rwkv`"), "{error}");
}

/// The metadata that describe a `tokenizer.json` of byte-level BPE.
fn metadata_of(json: &serde_json::Value, pre: &str) -> Vec<(&'static str, Value)> {
    let text = |value: &serde_json::Value| value.as_str().expect("a string").to_owned();
    let added = json["added_tokens"].as_array().expect("a list");
    let vocabulary = json["model"]["vocab"].as_object().expect("a vocabulary");
    let id = |value: &serde_json::Value| value.as_u64().expect("an id") as usize;
    let last = vocabulary.values().map(id).chain(added.iter().map(|token| id(&token["id"]))).max();
    let mut tokens: Vec<String> = (0..=last.expect("tokens")).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![5; tokens.len()];
    for (token, at) in vocabulary {
        (tokens[id(at)], types[id(at)]) = (token.clone(), 1);
    }
    for token in added {
        let kind = if token["special"].as_bool() == Some(true) { 3 } else { 4 };
        (tokens[id(&token["id"])], types[id(&token["id"])]) = (text(&token["content"]), kind);
    }
    let merges = json["model"]["merges"].as_array().expect("merges").iter();
    let merges = merges.map(|merge| match merge.as_array() {
        Some(pair) => format!("{} {}", text(&pair[0]), text(&pair[1])),
        None => text(merge),
    });
    let merges = merges.collect();
    let processors = json["post_processor"]["processors"].as_array().cloned().unwrap_or_default();
    let template = processors.last().unwrap_or(&json["post_processor"]);
    let begin = template["single"][0]["SpecialToken"]["id"].as_str();
    let begin = begin.and_then(|begin| tokens.iter().position(|token| token == begin));
    vec![
        ("tokenizer.ggml.model", Value::String("gpt2".to_owned())),
        ("tokenizer.ggml.pre", Value::String(pre.to_owned())),
        ("tokenizer.ggml.tokens", Value::Strings(tokens)),
        ("tokenizer.ggml.token_type", Value::I32s(types)),
        ("tokenizer.ggml.merges", Value::Strings(merges)),
        ("tokenizer.ggml.bos_token_id", Value::U32(begin.unwrap_or(0) as u32)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(begin.is_some())),
    ]
}

/// Compares the ids of all texts, with and without special tokens, and the texts of these ids.
fn compare(name: &str, ours: &Tokenizer, theirs: &Tokenizer, texts: &[String]) {
    for text in texts {
        for special in [false, true] {
            let ids = |tokenizer: &Tokenizer| {
                tokenizer.encode(text.as_str(), special).expect("it is text").get_ids().to_vec()
            };
            let wanted = ids(theirs);
            assert_eq!(ids(ours), wanted, "{name}: {text:?}");
            let decode = |tokenizer: &Tokenizer| tokenizer.decode(&wanted, false).expect("they are tokens");
            assert_eq!(decode(ours), decode(theirs), "{name}: {text:?}");
        }
    }
}

#[test]
#[ignore = "needs 200 MB of packages: `scripts/check-tokenizers` downloads them and runs it"]
fn published_vocabularies_give_the_ids_of_their_tokenizer_files() {
    let folder = PathBuf::from(env::var_os("SCONCE_TOKENIZERS").expect("a folder"));
    let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let texts: Vec<String> = serde_json::from_slice(&read(&folder.join("texts.json"))).expect("a list");
    let mut compared = 0;
    for (name, pre) in [
        ("qwen2_5", "qwen2"),
        ("qwen3", "qwen2"),
        ("llama3", "llama-bpe"),
        ("llama3_1", "llama-bpe"),
        ("llama3_2", "llama-bpe"),
        ("mistral_nemo", "tekken"),
        ("gptoss", "gpt-4o"),
        ("deepseek_v3", "deepseek-v3"),
        ("gemma3", "llama"),
    ] {
        let path = folder.join(name).join("tokenizer.json");
        if !path.exists() {
            println!("{name} is not there");
            continue;
        }
        let json: serde_json::Value = serde_json::from_slice(&read(&path)).expect("JSON");
        let start = Instant::now();
        let theirs = Tokenizer::from_file(&path).expect("a tokenizer");
        let theirs_took = start.elapsed();
        let start = Instant::now();
        let ours = if pre == "llama" {
            load(&folder.join(name).join("model.gguf"))
        } else {
            tokenizer_of(&metadata_of(&json, pre))
        };
        println!(
            "{name}: {} texts, loaded in {:?}, the published one in {theirs_took:?}",
            texts.len(),
            start.elapsed()
        );
        compare(name, &ours.expect("it is known"), &theirs, &texts);
        compared += 1;
    }
    assert!(compared > 0, "no package is there");
}
