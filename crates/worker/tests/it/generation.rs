//! Text generation over HTTP: OpenAI's routes, streams, cancellation, limits, faults and shutdown.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sconce::{EngineId, GenerateOptions, Message, Model, ModelBuilder, Task};
use sconce_http::{Keys, Settings as HttpSettings};
use sconce_testkit::chat_model;
use sconce_testkit::fake::{BatchFault, FakeEngine, Fault};
use sconce_worker::Settings;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Answer, Connection, get, metric, post, post_with, request};
use crate::harness::{METAL, TestServer, fake_runtime, settings, shared_home, start};

/// A tiny language model whose words are `w0`, `w1`, …, with a chat template.
pub(crate) fn folder() -> TempDir {
    folder_with_context(4096)
}

/// The same with another context length.
pub(crate) fn folder_with_context(length: usize) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    chat_model::write(folder.path(), length);
    folder
}

fn builder(folder: &Path) -> ModelBuilder {
    let runtime = sconce::Runtime::builder().home(shared_home()).offline(true).build();
    let builder = Model::builder(&folder.to_string_lossy()).runtime(&runtime).engine(EngineId::Native);
    builder.task(Task::Generate).dtype(sconce::Dtype::F32)
}

pub(crate) fn serve(folder: &Path, settings: Settings) -> TestServer {
    start(builder(folder), settings, None).ready()
}

/// A server with a fake Mac, whose batches block while the flag is set.
fn serve_fake(engine: FakeEngine, settings: Settings) -> (TestServer, Arc<AtomicBool>) {
    let (home, held) = (tempfile::tempdir().expect("a folder"), Arc::clone(&engine.held));
    let folder = folder().keep();
    let runtime = fake_runtime(engine, Duration::from_secs(20), home.path()).build();
    let builder = Model::builder(&folder.to_string_lossy()).runtime(&runtime).task(Task::Generate);
    (start(builder, settings, Some(home)).ready(), held)
}

/// The values of the events of a stream, and whether it ended with `[DONE]`.
pub(crate) fn events(answer: &Answer) -> (Vec<Value>, bool) {
    assert_eq!(answer.header("content-type"), Some("text/event-stream"), "{}", answer.text());
    let (text, mut values, mut done) = (answer.text(), Vec::new(), 0);
    for event in text.split_terminator("\n\n") {
        let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event}"));
        match data {
            "[DONE]" => done += 1,
            json => {
                assert_eq!(done, 0, "nothing follows the end");
                values.push(serde_json::from_str(json).expect("JSON"));
            }
        }
    }
    assert!(done <= 1, "{text}");
    (values, done == 1)
}

/// The values of named events, whose names are their types.
pub(crate) fn named_events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), Some("text/event-stream"), "{}", answer.text());
    let text = answer.text();
    let value = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("{event}"));
        let data = data.strip_prefix("data: ").unwrap_or_else(|| panic!("{event}"));
        let value: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), value["type"].as_str());
        value
    };
    text.split_terminator("\n\n").map(value).collect()
}

/// The text of a choice in a stream of chat chunks.
fn streamed(values: &[Value], choice: u64) -> String {
    let chunks = values.iter().flat_map(|value| value["choices"].as_array().expect("choices"));
    let own = chunks.filter(|chunk| chunk["index"] == choice);
    own.filter_map(|chunk| chunk["delta"]["content"].as_str().or(chunk["text"].as_str())).collect()
}

/// A body with further fields, or other values of its own.
pub(crate) fn with_fields(mut body: Value, fields: &Value) -> Value {
    let fields = fields.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}

fn chat(extra: &Value) -> Value {
    let body = json!({
        "model": "model", "messages": [{"role": "user", "content": "w4 w5 w6"}], "max_tokens": 12, "temperature": 0,
        "ignore_eos": true,
    });
    with_fields(body, extra)
}

#[test]
fn a_chat_is_what_the_library_answers_as_a_whole_and_as_a_stream() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    let (temperature, ignore_eos) = (0.0, true);
    let options =
        GenerateOptions { max_tokens: Some(12), temperature, ignore_eos, ..GenerateOptions::default() };
    let model = builder(folder.path()).open().expect("it opens");
    let expected =
        model.chat(&[Message::user("w4 w5 w6")], &options).expect("a chat").text().expect("a text");
    let whole = post(*server, "/v1/chat/completions", &chat(&json!({})));
    assert_eq!(whole.header("x-sconce-model"), Some("model"));
    assert_eq!(whole.header("x-sconce-placement"), Some("native/cpu/f32"));
    let whole = whole.expect(200);
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": expected, "refusal": null}));
    assert_eq!((&whole["object"], &choice["finish_reason"]), (&json!("chat.completion"), &json!("length")));
    let usage = json!({
        "prompt_tokens": 6, "completion_tokens": 12, "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    });
    assert_eq!(whole["usage"], usage);
    let body = chat(&json!({"stream": true, "stream_options": {"include_usage": true}, "n": 2}));
    let (values, done) = events(&post(*server, "/v1/chat/completions", &body));
    assert!(done);
    assert_eq!([streamed(&values, 0), streamed(&values, 1)], [expected.clone(), expected]);
    assert!(
        values
            .iter()
            .all(|value| value["object"] == "chat.completion.chunk" && value["id"] == values[0]["id"])
    );
    let last = values.last().expect("a chunk");
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(24)));
    let reasons = values.iter().flat_map(|value| value["choices"].as_array().expect("choices"));
    let reasons: Vec<&Value> = reasons.filter(|choice| !choice["finish_reason"].is_null()).collect();
    assert_eq!(reasons.len(), 2, "each output ends once");
}

#[test]
fn completions_continue_several_prompts_with_log_probabilities() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    let body = |extra: Value| {
        let body = json!({"prompt": ["w4 w5", "w7"], "max_tokens": 5, "temperature": 0, "logprobs": 2});
        with_fields(body, &extra)
    };
    let whole = post(*server, "/v1/completions", &body(json!({}))).expect(200);
    let choices = whole["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 2);
    let alone = post(*server, "/v1/completions", &json!({"prompt": "w7", "max_tokens": 5, "temperature": 0}));
    let alone = alone.expect(200);
    assert_eq!(alone["choices"][0]["text"], choices[1]["text"]);
    assert_eq!(alone["choices"][0]["logprobs"], Value::Null);
    for choice in choices {
        let logprobs = &choice["logprobs"];
        let [tokens, chosen, top, offsets] =
            ["tokens", "token_logprobs", "top_logprobs", "text_offset"].map(|name| logprobs[name].as_array());
        let (tokens, chosen, top) = (tokens.expect("5"), chosen.expect("5"), top.expect("5"));
        assert_eq!((tokens.len(), chosen.len(), top.len(), offsets.expect("5").len()), (5, 5, 5, 5));
        for ((token, logprob), top) in tokens.iter().zip(chosen).zip(top) {
            assert_eq!(&top[token.as_str().expect("a token")], logprob, "greedy tokens are the most likely");
        }
    }
    // The sampled token is among them, however unlikely.
    for count in [0, 1] {
        let random = body(json!({"temperature": 2, "seed": 3, "logprobs": count, "max_tokens": 20}));
        let whole = post(*server, "/v1/completions", &random).expect(200);
        let logprobs = &whole["choices"][0]["logprobs"];
        for (at, token) in logprobs["tokens"].as_array().expect("20").iter().enumerate() {
            let top = logprobs["top_logprobs"][at].as_object().expect("an object");
            assert_eq!(top[token.as_str().expect("a token")], logprobs["token_logprobs"][at]);
            assert!((1..=count + 1).contains(&top.len()), "{top:?}");
        }
    }
    let (values, done) = events(&post(*server, "/v1/completions", &body(json!({"stream": true}))));
    assert!(done);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(json!(streamed(&values, index as u64)), choice["text"]);
    }
    let ids = post(*server, "/v1/completions", &json!({"prompt": [7], "max_tokens": 5, "temperature": 0}));
    assert_eq!(ids.expect(200)["choices"][0]["text"], choices[1]["text"]);
}

#[test]
fn invalid_requests_are_refused_before_anything_is_generated() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    let long = "w4 ".repeat(5000);
    for (extra, status, code) in [
        (json!({"messages": []}), 400, "invalid_request"),
        (json!({"messages": [{"content": "w1"}]}), 400, "invalid_request"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), 400, "invalid_request"),
        (json!({"messages": [{"role": "user", "content": long}]}), 400, "context_length_exceeded"),
        (json!({"temperature": -1}), 400, "invalid_request"),
        (json!({"max_tokens": 0}), 400, "invalid_request"),
        (json!({"n": 1000}), 400, "invalid_request"),
        (json!({"top_logprobs": 3}), 400, "invalid_request"),
        (json!({"logit_bias": {"200": 1}}), 400, "invalid_request"),
        (json!({"functions": []}), 400, "invalid_request"),
        (json!({"suffix": "b"}), 400, "invalid_request"),
        (json!({"stop": vec!["a"; 100]}), 400, "invalid_request"),
        (json!({"response_format": {"type": "json_object"}}), 400, "invalid_request"),
        (json!({"model": "other"}), 404, "model_not_found"),
    ] {
        for stream in [false, true] {
            let mut body = chat(&extra);
            body["stream"] = json!(stream);
            let answer = post(*server, "/v1/chat/completions", &body);
            assert_eq!(
                (answer.status, answer.header("x-sconce-code")),
                (status, Some(code)),
                "{extra}: {}",
                answer.text()
            );
            assert!(answer.json()["error"]["message"].is_string());
        }
    }
    let embedding = post(*server, "/v1/embeddings", &json!({"input": "w1"})).expect(400);
    let message = embedding["error"]["message"].as_str().expect("a message");
    assert!(message.contains("/v1/chat/completions"), "{message}");
    assert!(metric(*server, "vllm:generation_tokens_total") < 0.5);
}

#[test]
fn a_client_that_leaves_frees_its_blocks() {
    let (server, held) = serve_fake(FakeEngine::new(EngineId::Candle), settings());
    held.store(true, Ordering::SeqCst);
    let body = chat(&json!({"stream": true, "max_tokens": 100})).to_string();
    let mut connection = Connection::open(*server).expect("a connection");
    connection.write(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).expect("it is sent");
    thread::sleep(Duration::from_millis(100));
    drop(connection);
    // Waiting for the first token, as a whole answer does.
    let mut whole = Connection::open(*server).expect("a connection");
    let body = chat(&json!({"max_tokens": 100})).to_string();
    whole.write(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).expect("it is sent");
    thread::sleep(Duration::from_millis(100));
    drop(whole);
    wait_until(|| metric(*server, "sconce_cancelled_total") >= 2.0);
    held.store(false, Ordering::SeqCst);
    wait_until(|| {
        metric(*server, "vllm:num_requests_running") + metric(*server, "vllm:num_requests_waiting") == 0.0
            && metric(*server, "vllm:kv_cache_usage_perc") == 0.0
    });
    assert!(metric(*server, "vllm:generation_tokens_total") < 150.0, "neither was generated to its end");
    post(*server, "/v1/chat/completions", &chat(&json!({}))).expect(200);
}

/// Waits until a condition holds.
#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "it never holds");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn more_outputs_than_the_limit_are_refused_until_others_end() {
    let limited = Settings { max_generations: 2, ..settings() };
    let (server, held) = serve_fake(FakeEngine::new(EngineId::Candle), limited);
    held.store(true, Ordering::SeqCst);
    let address = *server;
    let two = thread::spawn(move || post(address, "/v1/chat/completions", &chat(&json!({"n": 2}))));
    wait_until(|| metric(address, "te_request_count") >= 1.0);
    wait_until(|| post(address, "/v1/chat/completions", &chat(&json!({}))).status == 429);
    let refused = post(address, "/v1/chat/completions", &chat(&json!({})));
    assert_eq!(refused.header("x-sconce-code"), Some("overloaded"));
    assert!(refused.header("retry-after").is_some());
    held.store(false, Ordering::SeqCst);
    two.join().expect("no panic").expect(200);
    wait_until(|| post(address, "/v1/chat/completions", &chat(&json!({}))).status == 200);
}

#[test]
fn wrong_logits_are_never_streamed() {
    let expected = {
        let (server, _) = serve_fake(FakeEngine::new(EngineId::Candle), settings());
        post(*server, "/v1/chat/completions", &chat(&json!({}))).expect(200)["choices"][0]["message"].clone()
    };
    for fault in [BatchFault::Nan, BatchFault::Zero] {
        // The accelerator fails in the middle of the answer: the CPU computes it again.
        for nth in [7, 12] {
            let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::FromBatch(nth, fault));
            let (server, _) = serve_fake(engine, settings());
            let answer = post(*server, "/v1/chat/completions", &chat(&json!({"stream": true})));
            let (values, done) = events(&answer);
            assert!(done, "{fault:?} from batch {nth}: {}", answer.text());
            assert_eq!(json!(streamed(&values, 0)), expected["content"], "{fault:?} from batch {nth}");
        }
        // Every placement fails: one error ends the stream, after right text only.
        let mut engine = FakeEngine::new(EngineId::Candle);
        for (device, nth) in [(METAL, 9), (sconce::Device::Cpu, 4)] {
            engine = engine.with(device, Fault::FromBatch(nth, fault));
        }
        let (server, _) = serve_fake(engine, settings());
        let answer = post(*server, "/v1/chat/completions", &chat(&json!({"stream": true})));
        let (values, done) = events(&answer);
        assert!(!done, "an error is the only terminal event: {}", answer.text());
        let errors = values.iter().filter(|value| !value["error"].is_null()).count();
        assert_eq!((errors, values.last().map(|last| last["error"].is_object())), (1, Some(true)));
        let text = values[..values.len() - 1].to_vec();
        let expected = expected["content"].as_str().expect("a text");
        assert!(expected.starts_with(&streamed(&text, 0)), "{}", answer.text());
    }
}

#[test]
fn shutdown_ends_a_stream_with_one_event() {
    let http = HttpSettings { grace: Duration::from_millis(1500), ..settings().http };
    let (server, held) = serve_fake(FakeEngine::new(EngineId::Candle), Settings { http, ..settings() });
    let body = chat(&json!({"stream": true, "max_tokens": 3000})).to_string();
    let mut connection = Connection::open(*server).expect("a connection");
    connection.write(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).expect("it is sent");
    loop {
        let line = connection.line().expect("a line");
        assert!(!line.is_empty(), "the stream ended");
        if line.contains("\"content\":") && !line.contains("\"content\":\"\"") {
            break;
        }
    }
    held.store(true, Ordering::SeqCst);
    server.running().stop();
    let mut rest = String::new();
    while let Ok(line) = connection.line() {
        if line.is_empty() {
            break;
        }
        rest += &line;
    }
    held.store(false, Ordering::SeqCst);
    assert_eq!(rest.matches("\"error\"").count(), 1, "{rest}");
    assert!(rest.contains("shutting down") && !rest.contains("[DONE]"), "{rest}");
}

#[test]
fn a_request_has_no_more_outputs_than_may_be_generated() {
    let folder = folder();
    let server = serve(folder.path(), Settings { max_generations: 6, ..settings() });
    let prompts = |count: usize| json!({"prompt": vec!["w4"; count], "n": 2, "max_tokens": 1});
    assert_eq!(post(*server, "/v1/completions", &prompts(3)).expect(200)["choices"][5]["index"], 5);
    let refused = post(*server, "/v1/completions", &prompts(4));
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("at most 6 outputs, and this one 8"), "{}", refused.text());
}

#[test]
fn prefixes_are_shared_within_a_tenant_only() {
    let folder = folder();
    let keys = Keys::read("first-key\nother-key\n").expect("keys");
    let http = HttpSettings { keys, ..settings().http };
    let server = serve(folder.path(), Settings { http, ..settings() });
    let words: Vec<String> = (0..100).map(|word| format!("w{word}")).collect();
    let body = chat(&json!({"messages": [{"role": "user", "content": words.join(" ")}]}));
    let cached = |key: &str| {
        let authorization = format!("Bearer {key}");
        let answer = post_with(*server, "/v1/chat/completions", &[("authorization", &authorization)], &body);
        answer.expect(200)["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!(cached("first-key"), 0);
    assert_eq!(cached("other-key"), 0, "another tenant's prompt");
    assert_eq!(cached("first-key"), 96, "all whole blocks of 103 tokens");
}

#[test]
fn prompts_are_rendered_and_tokenized_as_llama_cpp_does() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    let body = json!({"messages": [{"role": "user", "content": "w4 w5"}]});
    let prompt = post(*server, "/apply-template", &body).expect(200)["prompt"].clone();
    assert_eq!(prompt, "<|user|> w4 w5<|end|><|assistant|>");
    let ids = |text: &Value| {
        let tei =
            post(*server, "/tokenize", &json!({"inputs": text, "add_special_tokens": false})).expect(200);
        let tokens = tei[0].as_array().expect("tokens").iter();
        tokens.map(|token| token["id"].clone()).collect::<Vec<Value>>()
    };
    assert_eq!(ids(&prompt).len(), 5, "control tokens are recognized");
    let tokens = post(*server, "/tokenize", &json!({"content": prompt})).expect(200);
    assert_eq!(tokens, json!({"tokens": ids(&prompt)}));
    let pieces = post(*server, "/tokenize", &json!({"content": "w4", "with_pieces": true})).expect(200);
    assert_eq!(pieces, json!({"tokens": [{"id": 4, "piece": "w4"}]}));
    for wrong in
        [json!({}), json!({"inputs": "a", "content": "a"}), json!({"content": "a", "parse_special": false})]
    {
        post(*server, "/tokenize", &wrong).expect(422);
    }
    post(*server, "/apply-template", &json!({"messages": []})).expect(400);
}

#[test]
fn metrics_have_the_names_of_vllm() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    for stream in [false, true] {
        let answer = post(*server, "/v1/chat/completions", &chat(&json!({"stream": stream})));
        assert_eq!(answer.status, 200);
    }
    let expected = [
        "vllm:prompt_tokens_total{model_name=\"model\"} 12",
        "vllm:generation_tokens_total{model_name=\"model\"} 24",
        "vllm:request_success_total{finished_reason=\"length\",model_name=\"model\"} 2",
        "vllm:time_to_first_token_seconds_count{model_name=\"model\"} 2",
        "vllm:inter_token_latency_seconds_count{model_name=\"model\"} 22",
        "vllm:e2e_request_latency_seconds_count{model_name=\"model\"} 2",
        "vllm:num_requests_running{model_name=\"model\"} 0",
        "te_request_success{method=\"chat\"} 2",
    ];
    // A stream is counted just after its last event.
    let start = Instant::now();
    let text = loop {
        let text = get(*server, "/metrics").text();
        let Some(missing) = expected.iter().find(|line| !text.lines().any(|known| known == **line)) else {
            break text;
        };
        assert!(start.elapsed() < Duration::from_secs(10), "{missing} in\n{text}");
        thread::sleep(Duration::from_millis(10));
    };
    // Two prompts of six tokens and 11 steps after each; a load also computes some steps.
    assert!(metric(*server, "sconce_tokens_computed_total") >= 34.0, "{text}");
    assert!(metric(*server, "sconce_generation_steps_total") >= 24.0, "{text}");
}
