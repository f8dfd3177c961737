//! Requests and responses in the dialects of TEI, OpenAI, Cohere and Jina.

use std::fmt::Write;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{Answer, get, post, post_with};
use crate::harness::{settings, tiny, tiny_with};

/// Headers in snapshots.
const SHOWN: [&str; 7] = [
    "x-sconce-ignored",
    "x-sconce-placement",
    "x-sconce-tokens",
    "x-sconce-truncated",
    "x-compute-type",
    "retry-after",
    "allow",
];

/// Rounds numbers, and shortens long lists and values that change between runs.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            json!(format!("{:.3}", number.as_f64().unwrap_or_default()))
        }
        Value::Array(list) if list.len() > 6 => {
            let mut few: Vec<Value> = list.iter().take(2).map(plain).collect();
            few.push(json!(format!("… {} in all", list.len())));
            Value::Array(few)
        }
        Value::Array(list) => Value::Array(list.iter().map(plain).collect()),
        Value::Object(fields) => {
            let changing = ["created", "id", "max_batch_tokens", "model_sha", "tokenization_workers"];
            let field = |(name, value): (&String, &Value)| {
                let value = match value {
                    // The last bits of the values differ between processors.
                    Value::String(text) if name == "embedding" => json!(format!("… {} letters", text.len())),
                    Value::Number(_) | Value::String(_) if changing.contains(&name.as_str()) => json!("…"),
                    Value::Null
                    | Value::Bool(_)
                    | Value::Number(_)
                    | Value::String(_)
                    | Value::Array(_)
                    | Value::Object(_) => plain(value),
                };
                (name.clone(), value)
            };
            Value::Object(fields.iter().map(field).collect())
        }
        Value::String(text) if text.len() > 400 => json!(format!("… {} letters", text.len())),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other.clone(),
    }
}

fn tell(page: &mut String, what: &str, answer: &Answer) {
    let body = serde_json::from_slice(&answer.body)
        .map_or_else(|_| answer.text(), |value: Value| plain(&value).to_string());
    let _ = writeln!(page, "{what}\n{}", answer.status);
    for name in SHOWN {
        if let Some(value) = answer.header(name) {
            let _ = writeln!(page, "{name}: {value}");
        }
    }
    let _ = writeln!(page, "{body}\n");
}

fn asked(address: SocketAddr, questions: &[(&str, Value)]) -> String {
    let mut page = String::new();
    for (path, body) in questions {
        let answer = if body.is_null() { get(address, path) } else { post(address, path, body) };
        let words: String = body.to_string().chars().take(160).collect();
        tell(&mut page, &format!("{path} {words}"), &answer);
    }
    page
}

const A: &str = "a candle in its place";
const B: &str = "how do I place a model?";

#[test]
fn a_model_of_vectors_answers_tei_and_openai() {
    let server = tiny("tiny-bert");
    let long = "candle ".repeat(600);
    insta::assert_snapshot!(asked(
        *server,
        &[
            ("/embed", json!({"inputs": A})),
            ("/embed", json!({"inputs": [A, B], "truncate": true, "normalize": false, "prompt_name": null})),
            ("/embed", json!({"inputs": [[2, 17, 3]], "user": "me"})),
            ("/embed", json!({"inputs": []})),
            ("/embed", json!({"inputs": 1})),
            ("/embed", json!({"input": A})),
            ("/embed", json!({"inputs": A, "prompt_name": "query"})),
            ("/embed", json!({"inputs": A, "dimensions": 8})),
            ("/embed", json!({"inputs": A, "truncation_direction": "left"})),
            ("/embed", json!({"inputs": long})),
            ("/embed", json!({"inputs": long, "truncate": false})),
            ("/", json!({"inputs": A})),
            ("/", json!({"inputs": {"source_sentence": A, "sentences": [A, B]}})),
            ("/embed_all", json!({"inputs": [A]})),
            ("/similarity", json!({"inputs": {"source_sentence": A, "sentences": [A, B]}})),
            ("/tokenize", json!({"inputs": "a candle"})),
            ("/tokenize", json!({"inputs": "a candle", "add_special_tokens": false})),
            ("/decode", json!({"ids": [2, 17, 3]})),
            ("/rerank", json!({"query": A, "texts": [B]})),
            ("/predict", json!({"inputs": A})),
            ("/embed_sparse", json!({"inputs": A})),
            ("/info", Value::Null),
            ("/health", Value::Null),
            ("/v1/embeddings", json!({"input": A, "model": "model"})),
            (
                "/v1/embeddings",
                json!({"input": [A, B], "model": "alias", "encoding_format": "base64", "user": "me"})
            ),
            ("/v1/embeddings", json!({"input": [[2, 17, 3], [2, 3]], "model": "model"})),
            ("/v1/embeddings", json!({"input": [999_999], "model": "model"})),
            ("/v1/embeddings", json!({"input": A, "model": "other"})),
            ("/v1/embeddings", json!({"input": A, "model": "model", "encoding_format": "int8"})),
            ("/v1/embeddings", json!({"input": A, "model": "model", "dimensions": 8})),
            ("/v1/embeddings", json!({"input": A, "model": "model", "dimension": 8})),
            ("/v1/embeddings", json!({"input": long, "model": "model"})),
            ("/v1/embeddings", json!({"input": long, "model": "model", "truncate": true})),
            ("/v1/models", Value::Null),
            ("/v1/models/model", Value::Null),
            ("/v1/models/none", Value::Null),
            ("/v1/nothing", Value::Null),
            ("/embed", Value::Null),
        ]
    ));
}

#[test]
fn a_reranker_answers_tei_cohere_and_jina() {
    let server = tiny("tiny-bert-rerank");
    let mut page = asked(
        *server,
        &[
            ("/rerank", json!({"query": A, "texts": [B, A]})),
            ("/rerank", json!({"query": A, "texts": [B, A], "raw_scores": true, "return_text": true})),
            ("/", json!({"query": A, "texts": [B, A]})),
            ("/rerank", json!({"query": A, "texts": []})),
            ("/embed", json!({"inputs": A})),
            ("/info", Value::Null),
            (
                "/v1/rerank",
                json!({"model": "model", "query": A, "documents": [B, {"text": A, "title": "t"}], "top_n": 1}),
            ),
            (
                "/v1/rerank",
                json!({"model": "model", "query": A, "documents": [B, A], "return_documents": false}),
            ),
            ("/v1/rerank", json!({"model": "model", "query": A, "documents": [B], "rank_fields": ["title"]})),
            ("/v1/rerank", json!({"model": "none", "query": A, "documents": [B]})),
            (
                "/v2/rerank",
                json!({"model": "model", "query": A, "documents": [B, A], "max_tokens_per_doc": 4096}),
            ),
            (
                "/v2/rerank",
                json!({"model": "model", "query": A, "documents": [B, A], "max_tokens_per_doc": 3}),
            ),
            ("/v2/rerank", json!({"model": "model", "query": A, "documents": [B, A], "instruction": "find"})),
        ],
    );
    let body = json!({"model": "model", "query": A, "documents": [B, A]});
    let answer = post_with(*server, "/v1/rerank", &[("x-fern-sdk-name", "cohere")], &body);
    tell(&mut page, "/v1/rerank by Cohere's client", &answer);
    insta::assert_snapshot!(page);
}

#[test]
fn classifiers_sparse_models_and_vectors_of_tokens_answer_tei() {
    let mut page = String::new();
    let server = tiny("tiny-bert-classify");
    page += &asked(
        *server,
        &[
            ("/predict", json!({"inputs": A})),
            ("/predict", json!({"inputs": [A, B], "raw_scores": true})),
            ("/predict", json!({"inputs": [[A], [A, B]]})),
            ("/", json!({"inputs": A})),
            ("/predict", json!({"inputs": [A, B, A]})),
            ("/info", Value::Null),
        ],
    );
    let server = tiny("tiny-bert-sparse");
    page += &asked(
        *server,
        &[
            ("/embed_sparse", json!({"inputs": [A, B]})),
            ("/", json!({"inputs": A})),
            ("/similarity", json!({"inputs": {"source_sentence": A, "sentences": [A, B]}})),
        ],
    );
    let server = tiny("tiny-bert-tokens-plain");
    page += &asked(
        *server,
        &[("/embed_all", json!({"inputs": A})), ("/rerank", json!({"query": A, "texts": [B, A]}))],
    );
    insta::assert_snapshot!(page);
}

#[test]
fn answers_through_the_queue_are_the_librarys_own() {
    let model = crate::harness::tiny_builder("tiny-bert-tokens-plain").open().expect("it opens");
    let texts = [B.to_owned(), A.to_owned()];
    let library = model.rerank(A, &texts, &sconce::RerankOptions::default()).expect("it ranks");
    let server = tiny("tiny-bert-tokens-plain");
    let ranks = post(*server, "/rerank", &json!({"query": A, "texts": texts})).expect(200);
    for (rank, ranked) in ranks.as_array().expect("a list").iter().zip(&library.ranked) {
        assert_eq!(rank["index"], ranked.index);
        assert!((rank["score"].as_f64().expect("a score") - f64::from(ranked.score)).abs() < 1e-4);
    }
}

#[test]
fn strict_rejects_unknown_fields_and_any_model_accepts_every_name() {
    let server =
        tiny_with("tiny-bert", sconce_worker::Settings { strict: true, any_model: true, ..settings() });
    let refused =
        post(*server, "/v1/embeddings", &json!({"input": A, "model": "x", "user": "me"})).expect(400);
    assert_eq!(refused["error"]["message"], "unknown field: `user`");
    post(*server, "/v1/embeddings", &json!({"input": A, "model": "x"})).expect(200);
}

#[test]
fn the_description_names_every_route() {
    let server = tiny("tiny-bert");
    let description = get(*server, "/openapi.json").expect(200);
    let paths: Vec<&String> = description["paths"].as_object().expect("paths").keys().collect();
    insta::assert_snapshot!(format!("{paths:#?}"));
}
