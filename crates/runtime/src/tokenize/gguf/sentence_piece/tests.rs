//! `SentencePiece` tokenizers of GGUF files against `sentencepiece`.

use sconce_testkit::gguf::Value;
use sconce_testkit::goldens;
use serde_json::Value as Json;

use super::super::tests::tokenizer_of;
use super::*;

/// A vocabulary with the ids that `sentencepiece` gives.
pub(in crate::tokenize::gguf) fn golden(name: &str) -> Json {
    let path = goldens::folder("sentencepiece").join(name);
    serde_json::from_slice(&std::fs::read(path).expect("the golden is there")).expect("JSON")
}

fn strings(golden: &Json) -> Vec<String> {
    golden["tokens"].as_array().expect("a list").iter().filter_map(Json::as_str).map(str::to_owned).collect()
}

pub(in crate::tokenize::gguf) type Entries = Vec<(&'static str, Value)>;

pub(in crate::tokenize::gguf) fn metadata(golden: &Json) -> Entries {
    let numbers = |key: &str| golden[key].as_array().expect("a list").iter().filter_map(Json::as_f64);
    vec![
        ("tokenizer.ggml.model", Value::String("llama".to_owned())),
        ("tokenizer.ggml.tokens", Value::Strings(strings(golden))),
        ("tokenizer.ggml.scores", Value::F32s(numbers("scores").map(|score| score as f32).collect())),
        ("tokenizer.ggml.token_type", Value::I32s(numbers("types").map(|kind| kind as i32).collect())),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(golden["space_prefix"] == true)),
    ]
}

pub(in crate::tokenize::gguf) fn ids(tokenizer: &Tokenizer, text: &str, special: bool) -> Vec<u32> {
    tokenizer.encode(text, special).expect("it is text").get_ids().to_vec()
}

#[test]
fn ids_and_texts_are_those_of_sentence_piece() {
    for name in ["llama.json", "gemma.json"] {
        let golden = golden(name);
        let tokenizer = tokenizer_of(&metadata(&golden)).expect("it loads");
        let texts = golden["texts"].as_array().expect("a list");
        assert!(texts.len() > 150, "{name}");
        for entry in texts {
            let text = entry["text"].as_str().expect("a text");
            let wanted: Vec<u32> = serde_json::from_value(entry["ids"].clone()).expect("ids");
            assert_eq!(ids(&tokenizer, text, false), wanted, "{name}: {text:?}");
            assert_eq!(ids(&tokenizer, text, true), [&[1], &wanted[..]].concat(), "{name}: {text:?}");
            let decoded = tokenizer.decode(&wanted, true).expect("they are tokens");
            assert_eq!(decoded, entry["decoded"].as_str().expect("a text"), "{name}: {text:?}");
        }
    }
}

#[test]
fn control_tokens_are_found_and_each_text_between_them_has_a_prefix() {
    let golden = golden("llama.json");
    let tokenizer = tokenizer_of(&metadata(&golden)).expect("it loads");
    let of = |text| ids(&tokenizer, text, false);
    assert_eq!(of("<s>"), [1]);
    assert_eq!(of("<unk>"), [0]);
    assert_eq!(of("the</s>the"), [of("the"), vec![2], of("the")].concat());
    assert_eq!(of("<s> the"), [vec![1], of(" the")].concat());
    let without = tokenizer_of(&metadata(&self::golden("gemma.json"))).expect("it loads");
    let of = |text| ids(&without, text, false);
    assert_ne!(of("the"), of(" the"));
    assert_eq!(of("a</s>the"), [of("a"), vec![2], of("the")].concat());
    assert_eq!(of("x   y"), [of("x"), of("   "), of("y")].concat(), "runs of spaces are tokens");
}

#[test]
fn special_tokens_of_phi_3_remove_the_whitespace_after_them() {
    let mut metadata = metadata(&golden("llama.json"));
    let plain = tokenizer_of(&metadata).expect("it loads");
    metadata.push(("general.name", Value::String("Phi-3 Mini".to_owned())));
    let phi3 = tokenizer_of(&metadata).expect("it loads");
    assert_eq!(ids(&phi3, "the</s>\n the", false), ids(&plain, "the</s>the", false));
    assert_eq!(ids(&phi3, "<s>\nthe", false), ids(&plain, "<s>\nthe", false));
}

#[test]
fn incomplete_vocabularies_are_refused() {
    let golden = golden("llama.json");
    let refused = |change: &dyn Fn(&mut Entries)| {
        let mut metadata = metadata(&golden);
        change(&mut metadata);
        tokenizer_of(&metadata).expect_err("it is incomplete").to_string()
    };
    let without = refused(&|metadata| metadata.retain(|(key, _)| !key.ends_with("scores")));
    assert_eq!(without, "the GGUF file has no valid `tokenizer.ggml.scores`: its tokenizer is incomplete");
    let short = refused(&|metadata| metadata[3].1 = Value::I32s(vec![1; 3]));
    assert_eq!(short, "the GGUF file has 700 tokens, and 3 values of `tokenizer.ggml.token_type`");
    let long = refused(&|metadata| {
        let mut tokens = strings(&golden);
        tokens[600] = "a".repeat(2000);
        metadata[1].1 = Value::Strings(tokens);
    });
    assert!(long.contains("bytes of the longest token: 2000, limit: 1024"), "{long}");
}
