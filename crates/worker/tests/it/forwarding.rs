//! What a gateway relies on: codes of refusals, load, deadlines, tenants.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sconce::EngineId;
use sconce_http::{Keys, Settings as HttpSettings};
use sconce_testkit::fake::FakeEngine;
use sconce_worker::Settings;
use serde_json::json;

use crate::client::{get, post, post_with, request, send};
use crate::generation;
use crate::harness::{TestServer, fake_builder, settings, start, tiny, tiny_with};

fn with_keys(keys: &str) -> TestServer {
    let keys = Keys::read(keys).expect("keys");
    tiny_with("tiny-bert", Settings { http: HttpSettings { keys, ..settings().http }, ..settings() })
}

#[test]
fn every_refusal_of_every_route_has_a_code() {
    let server = tiny("tiny-bert");
    let paths = get(*server, "/openapi.json").json()["paths"].as_object().expect("paths").clone();
    // The last request ends the server.
    let drain = "/v1/drain";
    let walk = |body: &[u8], headers: &[(&str, &str)]| {
        let mut refused = 0;
        for (path, operations) in &paths {
            let path = path.replace("{id}", "none");
            for method in ["GET", "POST"] {
                if path == drain || (path == "/v1/resume" && method == "POST") {
                    continue;
                }
                let answer = send(*server, &request(method, &path, headers, body)).expect("an answer");
                let code = answer.header("x-sconce-code");
                assert_eq!(code.is_some(), answer.status >= 400, "{method} {path}: {}", answer.text());
                let known = operations[method.to_lowercase()].is_object();
                assert!(!known || code != Some("method_not_allowed"), "{method} {path}");
                refused += usize::from(answer.status >= 400);
            }
        }
        refused
    };
    let (syntax, empty) = (walk(b"{", &[]), walk(b"{}", &[("x-sconce-priority", "late")]));
    // `/v1/pause` was called on the way.
    let paused = walk(br#"{"inputs": "a", "input": "a", "model": "model"}"#, &[]);
    println!("refused: {syntax} for syntax, {empty} for a header, {paused} while paused");
    assert!(paused > 40, "{paused}");
    let unknown = get(*server, "/no_such_route");
    assert_eq!((unknown.status, unknown.header("x-sconce-code")), (404, Some("no_such_route")));
}

#[test]
fn answers_to_authorized_requests_have_the_load() {
    let server = with_keys("one\n");
    let key = [("x-api-key", "one")];
    for answer in [
        post_with(*server, "/embed", &key, &json!({"inputs": "a"})),
        post_with(*server, "/embed", &key, &json!({})),
        send(*server, &request("GET", "/livez", &key, b"")).expect("an answer"),
        send(*server, &request("GET", "/no_such_route", &key, b"")).expect("an answer"),
    ] {
        // A batch ends after its texts are answered.
        let load = answer.header("x-sconce-load");
        assert!(load.is_some_and(|load| load.starts_with("requests=0, tokens=")), "{load:?}");
    }
    for answer in [get(*server, "/livez"), get(*server, "/v1/models")] {
        assert_eq!(answer.header("x-sconce-load"), None, "{}", answer.text());
    }
}

#[test]
fn a_stream_is_in_flight_until_it_ends() {
    let folder = generation::folder();
    let server = generation::serve(folder.path(), settings());
    let body = json!({"prompt": "w1 w2", "max_tokens": 8, "ignore_eos": true, "stream": true});
    let answer = post(*server, "/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let load = answer.header("x-sconce-load").expect("a load");
    assert!(load.starts_with("requests=1, "), "{load}");
    let began = Instant::now();
    while get(*server, "/v1/models").header("x-sconce-load") != Some("requests=0, tokens=0") {
        assert!(began.elapsed() < Duration::from_secs(20), "the stream has ended");
    }
}

#[test]
fn a_deadline_shortens_the_time_limit() {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle);
    let held = Arc::clone(&engine.held);
    let builder = fake_builder(engine, Duration::from_mins(4), home.path());
    let server = start(builder, settings(), Some(home)).ready();
    let ask = |deadline: &str| {
        post_with(*server, "/embed", &[("x-sconce-deadline-ms", deadline)], &json!({"inputs": "a"}))
    };
    assert_eq!(ask("60000").status, 200);
    held.store(true, Ordering::SeqCst);
    for deadline in ["150", "0"] {
        let began = Instant::now();
        let late = ask(deadline);
        assert_eq!((late.status, late.header("x-sconce-code")), (503, Some("timed_out")), "{}", late.text());
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
    held.store(false, Ordering::SeqCst);
    let invalid = ask("soon");
    assert_eq!((invalid.status, invalid.header("x-sconce-code")), (422, Some("invalid_request")));
}

#[test]
fn a_gateway_names_the_tenants_of_its_requests_and_nobody_else_does() {
    let server = with_keys("gate rate=1 pool\nplain\n");
    let ask = |key: &str, tenant: &str| {
        let headers = [("x-api-key", key), ("x-sconce-tenant", tenant)];
        post_with(*server, "/embed", &headers, &json!({"inputs": "some words of a text"}))
    };
    // Each tenant has a token bucket of its own.
    for tenant in ["a", "b", "c"] {
        assert_eq!(ask("gate", tenant).status, 200, "{tenant}");
    }
    for tenant in ["a", "b"] {
        assert_eq!(ask("gate", tenant).status, 429, "{tenant}");
    }
    let refused = ask("plain", "a");
    assert_eq!((refused.status, refused.header("x-sconce-code")), (403, Some("forbidden")));
    let invalid = ask("gate", " ");
    assert_eq!((invalid.status, invalid.header("x-sconce-code")), (422, Some("invalid_request")));
    post_with(*server, "/embed", &[("x-api-key", "plain")], &json!({"inputs": "a"})).expect(200);
    // Without keys all requests have one tenant.
    let open = tiny("tiny-bert");
    post_with(*open, "/embed", &[("x-sconce-tenant", "a")], &json!({"inputs": "a"})).expect(200);
}
