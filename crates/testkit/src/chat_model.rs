//! A tiny language model with a chat template.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::goldens;

/// Writes a language model whose words are `w0`, `w1`, …, with a chat template and a context of
/// `length` tokens, to `folder`.
///
/// # Panics
///
/// If files can't be read or written.
pub fn write(folder: &Path, length: usize) {
    let vocabulary: Map<String, Value> = (0..110).map(|id| (format!("w{id}"), json!(id))).collect();
    let token = |(id, content): (u32, &str)| {
        json!({
            "id": id, "content": content, "special": true, "normalized": false, "lstrip": false, "rstrip": false,
            "single_word": false,
        })
    };
    let tokens = [(111, "<|user|>"), (112, "<|assistant|>"), (113, "<|end|>")].map(token);
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": tokens,
        "pre_tokenizer": { "type": "Whitespace" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "w3" },
    });
    let template = "{% for message in messages %}{% if message.role == 'user' %}<|user|>{% else %}<|assistant|>{% endif %} \
                    {{ message.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    let config = json!({ "chat_template": template, "eos_token": "<|end|>" });
    let write = |name: &str, bytes: Vec<u8>| fs::write(folder.join(name), bytes).expect("it is written");
    let golden = |name: &str| fs::read(goldens::folder("tiny-llama").join(name)).expect("a golden");
    write("model.safetensors", golden("model.safetensors"));
    let mut model: Value = serde_json::from_slice(&golden("config.json")).expect("JSON");
    model["tie_word_embeddings"] = json!(true);
    model["max_position_embeddings"] = json!(length);
    write("config.json", model.to_string().into_bytes());
    write("tokenizer.json", tokenizer.to_string().into_bytes());
    write("tokenizer_config.json", config.to_string().into_bytes());
}
