//! Log probabilities in OpenAI's formats.

use sconce::{GeneratedToken, Model};
use serde_json::{Map, Value, json};

/// The text of a token, and its bytes where they do not depend on other tokens.
fn token(model: &Model, id: u32) -> (String, Option<Vec<u8>>) {
    match model.token_bytes(id) {
        Some(bytes) if !bytes.is_empty() => (String::from_utf8_lossy(&bytes).into_owned(), Some(bytes)),
        _ => (model.id_to_token(id).unwrap_or_default(), None),
    }
}

/// A token of a chat completion; none without a log probability.
pub(crate) fn chat(model: &Model, generated: &GeneratedToken) -> Option<Value> {
    let one = |id: u32, logprob: f32| {
        let (token, bytes) = token(model, id);
        json!({ "token": token, "logprob": finite(logprob), "bytes": bytes })
    };
    let mut object = one(generated.id, generated.logprob?);
    object["top_logprobs"] = generated.top.iter().map(|&(id, logprob)| one(id, logprob)).collect();
    Some(object)
}

/// Tokens of a text completion that begin at character `offset` of the output, each with the text that it added.
pub(crate) fn completion(model: &Model, tokens: &[(GeneratedToken, String)], mut offset: usize) -> Value {
    let (mut texts, mut logprobs, mut top, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (generated, text) in tokens {
        texts.push(token(model, generated.id).0);
        logprobs.push(generated.logprob.map(finite));
        let sampled = generated.logprob.map(|logprob| (generated.id, logprob));
        let mut all = Map::new();
        // Parts of characters have the same text: the sampled token has its place, and then the likeliest.
        for (id, logprob) in sampled.into_iter().chain(generated.top.iter().copied()) {
            all.entry(token(model, id).0).or_insert_with(|| json!(finite(logprob)));
        }
        top.push(Value::Object(all));
        offsets.push(offset);
        offset += text.chars().count();
    }
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets })
}

/// JSON has no infinity: the log probability of an impossible token is -9999, as vLLM writes it.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
