//! `sconce bench --task chat`: levels of concurrency, other servers, the plot.

use std::fs;

use sconce_testkit::chat_model;
use serde_json::Value;

use crate::embedding_server::{EmbeddingServer, Manner};
use crate::harness::{CommandOutput, Sandbox};

/// Three tokens in two events.
const STREAM: &str = "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}\n\n\
    data: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\n\
    data: {\"choices\": [{\"delta\": {\"content\": \"b\"}}]}\n\n\
    data: {\"choices\": [], \"usage\": {\"completion_tokens\": 3}}\n\ndata: [DONE]\n\n";

/// Benchmarks a tiny model on Native in f32, with more arguments.
fn run(sandbox: &Sandbox, more: &[&str]) -> CommandOutput {
    let folder = sandbox.file("model");
    fs::create_dir_all(&folder).expect("a folder");
    chat_model::write(&folder, 4096);
    let model = sandbox.name("model");
    let fixed = ["bench", &model, "--task", "chat", "--engine", "native", "--dtype", "f32", "--rounds", "2"];
    let sizes = ["--input-tokens", "24", "--output-tokens", "5", "--concurrency", "1,3"];
    sandbox.run(&[&fixed[..], &sizes, more].concat())
}

#[test]
fn chats_are_measured_by_concurrency_beside_another_server() {
    let sandbox = Sandbox::new();
    let server = EmbeddingServer::start(Manner::Nonsense(STREAM));
    let against = format!("openai={}/v1", server.url);
    let plot = sandbox.name("a.svg");
    let other = ["--against", &against, "--against-model", "that one", "--json", "--plot", &plot];
    let json = run(&sandbox, &other).succeeds().json();
    assert_eq!(
        (&json["input_tokens"], &json["output_tokens"], &json["rounds"]),
        (&24.into(), &5.into(), &2.into())
    );
    let (own, other) = (&json["placements"][0], &json["servers"][0]);
    assert_eq!((&own["placement"]["engine"], &other["url"]), (&"native".into(), &server.url.as_str().into()));
    for (measured, tokens) in [(own, 5), (other, 3)] {
        let levels = measured["levels"].as_array().expect("levels");
        let facts = |level: &Value| {
            ["concurrency", "requests", "output_tokens"].map(|key| level[key].as_u64().expect("a number"))
        };
        let facts: Vec<[u64; 3]> = levels.iter().map(facts).collect();
        assert_eq!(facts, [[1, 2, 2 * tokens], [3, 6, 6 * tokens]], "{measured}");
        for level in levels {
            assert!(level["output_tokens_per_s"].as_f64() > Some(0.0), "{level}");
            let first = &level["time_to_first_token_ms"];
            assert!(
                first["p50"].as_f64() > Some(0.0) && first["p95"].as_f64() >= first["p50"].as_f64(),
                "{level}"
            );
            assert!(level["inter_token_latency_ms"]["p95"].is_f64(), "{level}");
        }
    }
    let svg = fs::read_to_string(plot).expect("a plot");
    for words in ["<svg", "inter-token latency, p95", "concurrency", "native/cpu/f32", "</svg>"] {
        assert!(svg.contains(words), "no `{words}` in it");
    }
    let requests = server.requests();
    // One request before, then two and six.
    assert_eq!(requests.len(), 9);
    let mut prompts = Vec::new();
    for (path, _, body) in &requests[1..] {
        assert_eq!((path.as_str(), &body["model"]), ("/v1/chat/completions", &"that one".into()));
        assert_eq!(
            (&body["max_tokens"], &body["ignore_eos"], &body["stream"]),
            (&5.into(), &true.into(), &true.into())
        );
        prompts.push(body["messages"][0]["content"].as_str().expect("a text").to_owned());
    }
    prompts.sort();
    prompts.dedup();
    assert_eq!(prompts.len(), 8, "each prompt is its own");

    let page = run(&sandbox, &[]).succeeds().stdout;
    assert!(page.contains("chats of 24 tokens and 5 tokens of output, 2 per client"), "{page}");
    assert!(page.contains("output tokens/s") && page.contains("native/cpu/f32"), "{page}");
}

#[test]
fn chats_that_cannot_be_measured_are_explained() {
    let sandbox = Sandbox::new();
    let refusing = |status, words| EmbeddingServer::start(Manner::Refusing { after: 0, status, words });
    for (server, words) in [
        (refusing(404, ""), ["returned 404", "`--against-model`"]),
        (refusing(429, ""), ["returned 429", "lower `--concurrency`"]),
        (
            refusing(400, r#"{"error": {"message": "ignore_eos?"}}"#),
            ["400: ignore_eos?", "must accept `ignore_eos`"],
        ),
        (EmbeddingServer::start(Manner::Nonsense("data: 1\n\n")), ["invalid stream", "without `[DONE]`"]),
    ] {
        run(&sandbox, &["--against", &format!("openai={}", server.url)]).fails(2, &words);
    }
    run(&sandbox, &["--against", "tei=http://127.0.0.1:1"]).fails(2, &["has no chats", "openai=URL"]);
    run(&sandbox, &["--input", "texts.txt"]).fails(2, &["`--input`", "`--input-tokens`"]);
    run(&sandbox, &["--max-length", "28"]).fails(2, &["exceed the context of the model: 28 tokens"]);
    run(&sandbox, &["--concurrency", "0"]).fails(2, &["--concurrency"]);
}
