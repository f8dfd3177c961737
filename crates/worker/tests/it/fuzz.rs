//! Fuzzing: mutated requests to every route cause no crash and no 5xx response.

use sconce_http::Settings as HttpSettings;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sconce_worker::Settings;
use serde_json::{Value, json};

use crate::client::{get, post, request, send};
use crate::generation::{folder_with_context, serve};
use crate::harness::{TestServer, settings, tiny_with};

/// Parts of paths that need a language model.
const GENERATING: [&str; 6] =
    ["completions", "/v1/responses", "/v1/messages", "/apply-template", "/api/chat", "/api/generate"];

/// Environment variable with the duration in seconds.
const SECONDS: &str = "SCONCE_FUZZ_SECONDS";

/// A seeded pseudo-random generator, so that failures are reproducible.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides.max(1)
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.roll(list.len())]
    }

    /// A random JSON value.
    fn value(&mut self, depth: usize) -> Value {
        match self.roll(if depth > 3 { 8 } else { 10 }) {
            0 => Value::Null,
            1 => json!(true),
            2 => json!(-1),
            3 => json!(1e308),
            4 => json!(u64::MAX),
            5 => json!(""),
            6 => json!("\u{0}\u{feff}\u{202e}é𝒳\n\t\\\""),
            7 => json!("word ".repeat(self.roll(700))),
            8 => Value::Array((0..self.roll(5)).map(|_| self.value(depth + 1)).collect()),
            _ => json!({"text": self.value(depth + 1), "source_sentence": self.value(depth + 1)}),
        }
    }

    /// Mutates `body`.
    fn mutate(&mut self, body: &mut Value) {
        if let Value::Object(fields) = body
            && !fields.is_empty()
            && self.roll(3) > 0
        {
            let names: Vec<String> = fields.keys().cloned().collect();
            let name = self.pick(&names).clone();
            match self.roll(4) {
                0 => drop(fields.remove(&name)),
                1 => drop(fields.insert(format!("{name}s"), json!(1))),
                2 => drop(fields.insert(name, self.value(0))),
                _ => self.mutate(&mut fields[&name]),
            }
            return;
        }
        *body = self.value(0);
    }
}

/// Paths with valid bodies.
fn bodies() -> Vec<(&'static str, Value)> {
    let embeddings = json!({"input": "a", "model": "model", "encoding_format": "base64", "dimensions": 8});
    let similarity =
        json!({"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"truncate": true}});
    let cohere = json!({
        "model": "model", "texts": ["a", "b"], "input_type": "search_document", "truncate": "END",
        "embedding_types": ["float", "int8", "uint8", "binary", "ubinary", "base64"], "output_dimension": 8,
        "max_tokens": 4096,
    });
    let contents =
        json!({"inputs": [{"content": [{"type": "text", "text": "a"}]}], "embedding_types": ["int8"]});
    let chat = json!({
        "model": "model", "messages": [{"role": "user", "content": "w1 w2"}], "max_tokens": 4, "temperature": 0.5,
        "top_p": 0.9, "seed": 1, "stop": ["w9"], "n": 2, "logprobs": true, "top_logprobs": 2, "tool_choice": "auto",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "response_format": {"type": "text"}, "logit_bias": {"3": 1}, "chat_template_kwargs": {"a": 1},
    });
    let streamed = json!({
        "messages": [{"role": "user", "content": [{"type": "text", "text": "w1"}]}], "max_completion_tokens": 4,
        "stream": true, "stream_options": {"include_usage": true},
    });
    let completion =
        json!({"prompt": ["w1", "w2"], "max_tokens": 3, "logprobs": 1, "stream": true, "min_tokens": 1});
    let mut bodies = vec![
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", streamed),
        ("/v1/completions", completion),
        ("/", json!({"inputs": "a", "truncate": true})),
        ("/", json!({"inputs": {"source_sentence": "a", "sentences": ["b"]}})),
        ("/embed", json!({"inputs": ["a", "b"], "normalize": false, "dimensions": 4, "prompt_name": "x"})),
        ("/embed_all", json!({"inputs": [[2, 3]]})),
        ("/embed_sparse", json!({"inputs": "a"})),
        ("/rerank", json!({"query": "a", "texts": ["b", "c"], "raw_scores": true, "return_text": true})),
        ("/predict", json!({"inputs": [["a", "b"], ["c"]], "raw_scores": true})),
        ("/similarity", similarity),
        ("/tokenize", json!({"inputs": "a", "add_special_tokens": false})),
        ("/decode", json!({"ids": [[1, 2], [3]], "skip_special_tokens": false})),
        ("/v1/embeddings", embeddings.clone()),
        ("/embeddings", embeddings.clone()),
        ("/models/alias/v1/embeddings", embeddings),
        (
            "/v1/rerank",
            json!({"model": "model", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
        ),
        (
            "/v2/rerank",
            json!({"model": "model", "query": "a", "documents": ["b"], "max_tokens_per_doc": 4096}),
        ),
        ("/v1/responses", json!({"input": "a", "instructions": "b", "max_output_tokens": 3})),
        ("/apply-template", json!({"messages": [{"role": "user", "content": "a"}]})),
        ("/tokenize", json!({"content": "a", "with_pieces": true})),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3})),
        ("/v1/messages/count_tokens", json!({"messages": [{"role": "user", "content": "a"}], "system": "b"})),
        ("/api/chat", json!({"messages": [{"role": "user", "content": "a"}], "options": {"num_predict": 3}})),
        (
            "/api/generate",
            json!({"prompt": "a", "raw": true, "options": {"num_predict": 3}, "format": "json"}),
        ),
        ("/api/embed", json!({"model": "model:latest", "input": ["a", "b"], "truncate": false})),
        ("/api/embeddings", json!({"model": "model:latest", "prompt": "a"})),
        ("/api/show", json!({"model": "model"})),
        ("/v2/embed", cohere),
        ("/v2/embed", contents),
        ("/v1/fit", json!({"source": "model", "name": "a"})),
        ("/v1/models", json!({"source": "model", "name": "a"})),
        ("/v1/resume", json!({})),
    ];
    let plain = [
        "/api/ps",
        "/api/tags",
        "/api/version",
        "/docs",
        "/health",
        "/info",
        "/livez",
        "/metrics",
        "/openapi.json",
        "/readyz",
        "/startupz",
        "/v1/models",
        "/v1/models/model",
        "/v1/report",
    ];
    bodies.extend(plain.map(|path| (path, json!({}))));
    bodies
}

/// Asserts that every route of the `OpenAPI` description has a body here. Another test compares the description with the
/// routes.
fn check_coverage(bodies: &[(&str, Value)], address: std::net::SocketAddr) {
    let description = get(address, "/openapi.json").expect(200);
    for path in description["paths"].as_object().expect("paths").keys() {
        // Draining stops the server, and pausing refuses all requests.
        let known = ["/v1/drain", "/v1/pause"].contains(&path.as_str())
            || bodies.iter().any(|(known, _)| *known == path.replace("{id}", "model"));
        assert!(known, "no body for `{path}`: add one to `bodies`");
    }
}

#[test]
fn no_body_kills_the_process_or_is_answered_with_a_fault_of_ours() {
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    // A short timeout for bodies that are shorter than announced.
    let settings = || Settings {
        http: HttpSettings { read_limit: Duration::from_millis(300), ..settings().http },
        ..settings()
    };
    let servers = ["tiny-bert", "tiny-bert-rerank", "tiny-bert-classify", "tiny-bert-sparse"]
        .map(|name| tiny_with(name, settings()));
    // Outputs without a maximum are short.
    let folder = folder_with_context(64);
    let servers: Vec<TestServer> = servers.into_iter().chain([serve(folder.path(), settings())]).collect();
    let bodies = bodies();
    check_coverage(&bodies, *servers[0]);
    let before = post(*servers[0], "/embed", &json!({"inputs": "before and after"})).expect(200);
    let mut dice = Dice(20_261_115);
    let began = Instant::now();
    let (mut asked, mut refused) = (0, 0);
    let mut asked_at = BTreeMap::new();
    while began.elapsed() < Duration::from_secs(seconds) {
        let (path, body) = dice.pick(&bodies);
        *asked_at.entry(*path).or_insert(0) += 1;
        let mut body = body.clone();
        for _ in 0..dice.roll(3) {
            dice.mutate(&mut body);
        }
        let mut bytes = body.to_string().into_bytes();
        for _ in 0..dice.roll(40).saturating_sub(34) {
            let (at, byte) = (dice.roll(bytes.len()), dice.roll(256));
            if let Some(place) = bytes.get_mut(at) {
                *place = byte as u8;
            }
        }
        let method = *dice.pick(&["POST", "POST", "POST", "POST", "GET", "PUT", "DELETE", "OPTIONS", "HEAD"]);
        let header = *dice.pick(&["bulk", "interactive", "?", "\u{e9}", ""]);
        let headers =
            [("x-sconce-priority", header), ("x-sconce-truncate", *dice.pick(&["error", "truncate", "x"]))];
        let headers = &headers[..dice.roll(3)];
        if method == "HEAD" {
            continue;
        }
        let generates = GENERATING.iter().any(|known| path.contains(known));
        let server = if generates { &servers[servers.len() - 1] } else { dice.pick(&servers) };
        let mut bytes = request(method, path, headers, &bytes);
        asked += 1;
        if dice.roll(8) == 0 {
            // A malformed head is refused or the connection closed, without a 5xx response.
            let head = bytes.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(bytes.len());
            for _ in 0..=dice.roll(3) {
                bytes[dice.roll(head)] = dice.roll(256) as u8;
            }
            let status = send(**server, &bytes).map_or(400, |answer| answer.status);
            assert!((200..500).contains(&status), "{status}: {}", String::from_utf8_lossy(&bytes));
            refused += usize::from(status >= 400);
            continue;
        }
        let answer = send(**server, &bytes);
        let answer = answer.unwrap_or_else(|error| panic!("{error}: {method} {path} {body}"));
        let fault = answer.status >= 500 || answer.status < 200;
        assert!(!fault, "{}: {method} {path} {body}: {}", answer.status, answer.text());
        refused += usize::from(answer.status >= 400);
    }
    println!("{asked} requests in {seconds} s, {refused} of them refused, by path: {asked_at:?}");
    assert!(asked > 50 && refused > 0 && refused < asked);
    for server in &servers {
        assert_eq!(get(**server, "/livez").status, 200);
    }
    assert_eq!(post(*servers[0], "/embed", &json!({"inputs": "before and after"})).expect(200), before);
}
