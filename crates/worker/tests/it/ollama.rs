//! Ollama's API over HTTP.

use serde_json::{Value, json};

use crate::client::{Answer, get, post};
use crate::generation::{folder, serve, with_fields};
use crate::harness::{settings, tiny};

/// The lines of a stream.
fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"), "{}", answer.text());
    answer.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A request for 12 greedy tokens.
fn body(extra: &Value) -> Value {
    let body = json!({"model": "model", "options": {"temperature": 0, "num_predict": 12}, "stream": false});
    with_fields(body, extra)
}

#[test]
fn chats_and_prompts_are_answered_as_openai_answers_them() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    let messages = json!([{"role": "system", "content": "w9"}, {"role": "user", "content": "w4 w5 w6"}]);
    let openai = json!({"messages": messages, "max_tokens": 12, "temperature": 0});
    let expected = post(*server, "/v1/chat/completions", &openai).expect(200);
    let text = &expected["choices"][0]["message"]["content"];
    let whole = post(*server, "/api/chat", &body(&json!({"messages": messages}))).expect(200);
    assert_eq!(whole["message"], json!({"role": "assistant", "content": text}));
    assert_eq!((&whole["model"], &whole["done"]), (&json!("model"), &json!(true)));
    assert_eq!(whole["done_reason"], expected["choices"][0]["finish_reason"]);
    assert_eq!(whole["prompt_eval_count"], expected["usage"]["prompt_tokens"]);
    assert_eq!(whole["eval_count"], expected["usage"]["completion_tokens"]);
    let [total, load, prompt, eval] =
        ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"]
            .map(|name| whole[name].as_u64().unwrap_or_else(|| panic!("{name}")));
    assert!(load + prompt + eval <= total && prompt > 0, "{whole}");
    // A stream is the default.
    let mut stream = body(&json!({"messages": messages, "model": "model:latest"}));
    stream.as_object_mut().expect("fields").remove("stream");
    let lines = lines(&post(*server, "/api/chat", &stream));
    let (last, parts) = lines.split_last().expect("lines");
    let streamed: String =
        parts.iter().map(|line| line["message"]["content"].as_str().expect("a text")).collect();
    assert_eq!(json!(streamed), *text);
    assert!(parts.iter().all(|line| line["done"] == false) && last["done"] == true);
    assert_eq!((&last["done_reason"], &last["eval_count"]), (&whole["done_reason"], &whole["eval_count"]));

    let generate = body(&json!({"prompt": "w4 w5 w6", "system": "w9"}));
    let generated = post(*server, "/api/generate", &generate).expect(200);
    assert_eq!(generated["response"], *text);
    let raw = post(*server, "/api/generate", &body(&json!({"prompt": "w4 w5 w6", "raw": true}))).expect(200);
    let openai = json!({"prompt": "w4 w5 w6", "max_tokens": 12, "temperature": 0});
    let expected = post(*server, "/v1/completions", &openai).expect(200);
    assert_eq!(raw["response"], expected["choices"][0]["text"]);
    let load = post(*server, "/api/generate", &body(&json!({}))).expect(200);
    assert_eq!((&load["response"], &load["done_reason"]), (&json!(""), &json!("load")));
}

#[test]
fn what_would_change_the_answer_and_is_not_supported_is_refused() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    let message = json!([{"role": "user", "content": "w4"}]);
    for (path, extra, status) in [
        ("/api/chat", json!({"messages": message, "model": "other"}), 404),
        ("/api/chat", json!({"messages": message, "think": true}), 400),
        ("/api/chat", json!({"messages": message, "format": "yaml"}), 400),
        ("/api/chat", json!({"messages": message, "options": {"num_ctx": 1_000_000}}), 400),
        ("/api/chat", json!({"messages": [{"role": "user", "images": ["eA=="]}]}), 400),
        ("/api/generate", json!({"prompt": "w4", "suffix": "w5"}), 400),
        ("/api/generate", json!({"prompt": "w4", "template": "{{ .Prompt }}"}), 400),
        ("/api/generate", json!({"prompt": "w4", "context": [1]}), 400),
        ("/api/embed", json!({"input": "w4"}), 400),
    ] {
        let answer = post(*server, path, &body(&extra)).expect(status);
        assert!(answer["error"].is_string(), "{extra}: {answer}");
    }
    let unknown = get(*server, "/api/none").expect(404);
    assert!(unknown["error"].is_string(), "{unknown}");
}

#[test]
fn models_are_listed_and_described() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    for path in ["/api/tags", "/api/ps"] {
        let list = get(*server, path).expect(200);
        assert_eq!(list["models"].as_array().map(Vec::len), Some(1));
        let model = &list["models"][0];
        assert_eq!((&model["name"], &model["model"]), (&json!("model"), &json!("model")));
        assert_eq!(model["details"]["family"], "llama");
        assert!(model["size"].as_u64().is_some_and(|bytes| bytes > 1000), "{model}");
    }
    assert_eq!(get(*server, "/api/ps").expect(200)["models"][0]["size_vram"], 0);
    let show = post(*server, "/api/show", &json!({"model": "model:latest"})).expect(200);
    assert_eq!(show["capabilities"], json!(["completion"]));
    assert_eq!(show["model_info"]["general.architecture"], "llama");
    assert!(show["template"].as_str().is_some_and(|template| template.contains("<|user|>")));
    assert_eq!(get(*server, "/api/version").expect(200)["version"], env!("CARGO_PKG_VERSION"));
    post(*server, "/api/show", &json!({"model": "other"})).expect(404);
}

#[test]
fn embeddings_are_normalized() {
    let server = tiny("tiny-bert");
    let embedded = post(*server, "/api/embed", &json!({"model": "model", "input": ["a text", "other"]}));
    let embedded = embedded.expect(200);
    let vectors: Vec<Vec<f64>> = serde_json::from_value(embedded["embeddings"].clone()).expect("vectors");
    assert_eq!(vectors.len(), 2);
    for vector in &vectors {
        assert!((vector.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-4);
    }
    assert!(embedded["prompt_eval_count"].as_u64().is_some_and(|tokens| tokens >= 4), "{embedded}");
    assert!(embedded["total_duration"].is_u64());
    let old =
        post(*server, "/api/embeddings", &json!({"model": "model:latest", "prompt": "a text"})).expect(200);
    let vector: Vec<f64> = serde_json::from_value(old["embedding"].clone()).expect("a vector");
    assert_eq!(vector, vectors[0], "the model normalizes");
    post(*server, "/api/embeddings", &json!({"model": "model"})).expect(400);
    let long = json!({"input": "word ".repeat(5000)});
    post(*server, "/api/embed", &long).expect(200);
    post(*server, "/api/embed", &json!({"input": "word ".repeat(5000), "truncate": false})).expect(400);
}
