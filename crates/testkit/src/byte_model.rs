//! A tiny language model with random weights that can write any text.

use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

use crate::draws::Draws;
use crate::goldens;

/// Tokens of the model: the bytes, [`WORDS`], control tokens, and unused ones.
pub const TOKENS: usize = 320;
/// The end token.
pub const END: usize = 300;
/// Tokens of several bytes.
pub const WORDS: [&str; 14] =
    ["{\"", "\":", "\",", "\"}", "true", "false", "null", "é", "中", "ab", "10", "}]", " [", ", \""];
/// The control tokens.
const CONTROL: [(usize, &str); 2] = [(END, "<|im_end|>"), (END + 1, "<|im_start|>")];

/// Writes a Llama with random embeddings of a byte-complete vocabulary to `folder`.
///
/// # Panics
///
/// If files can't be read or written.
pub fn write(folder: &Path, chat_template: Option<&str>) {
    let put =
        |name: &str, value: &Value| fs::write(folder.join(name), value.to_string()).expect("it is written");
    let golden = |name: &str| fs::read(goldens::folder("tiny-llama").join(name)).expect("a golden");
    let mut config: Value = serde_json::from_slice(&golden("config.json")).expect("JSON");
    config["tie_word_embeddings"] = json!(true);
    config["vocab_size"] = json!(TOKENS);
    config["eos_token_id"] = json!(END);
    config["architectures"] = json!(["LlamaForCausalLM"]);
    put("config.json", &config);
    put("tokenizer.json", &tokenizer());
    if let Some(template) = chat_template {
        put(
            "tokenizer_config.json",
            &json!({ "chat_template": template, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>" }),
        );
    }
    let weights = golden("model.safetensors");
    let weights = SafeTensors::deserialize(&weights).expect("weights");
    let mut draws = Draws(1);
    let hidden = config["hidden_size"].as_u64().expect("a size") as usize;
    let random = (0..TOKENS * hidden).map(|_| draws.below(2000) as f32 / 1000.0 - 1.0);
    let random: Vec<u8> = random.flat_map(f32::to_le_bytes).collect();
    let tensors = weights.iter().map(|(name, view)| {
        let is_random = name == "embed_tokens.weight";
        let random = || TensorView::new(Dtype::F32, vec![TOKENS, hidden], &random).expect("the shape fits");
        (name, if is_random { random() } else { view })
    });
    let path = folder.join("model.safetensors");
    safetensors::serialize_to_file(tensors, None, &path).expect("it is written");
}

/// A byte-level tokenizer.
fn tokenizer() -> Value {
    let mut tokens: Vec<String> = (0..=u8::MAX).map(|byte| stands_for(byte).to_string()).collect();
    tokens.sort_by_key(|token| token.chars().next());
    tokens.extend(WORDS.map(|word| word.bytes().map(stands_for).collect()));
    tokens.extend((tokens.len()..TOKENS).map(|id| format!("<unused{id}>")));
    for (id, content) in CONTROL {
        content.clone_into(&mut tokens[id]);
    }
    let added = (256 + WORDS.len()..TOKENS).map(|id| {
        json!({
            "id": id, "content": tokens[id], "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        })
    });
    let added: Vec<Value> = added.collect();
    let vocabulary: Map<String, Value> =
        tokens.into_iter().zip(0..).map(|(token, id)| (token, json!(id))).collect();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    json!({
        "version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    })
}

/// The character of a byte in a byte-level vocabulary.
fn stands_for(byte: u8) -> char {
    let shifted = match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => return char::from(byte),
        0..=0x20 => u32::from(byte),
        0x7F..=0xA0 => 0x21 + u32::from(byte - 0x7F),
        0xAD => 0x43,
    };
    char::from_u32(0x100 + shifted).expect("a character")
}
