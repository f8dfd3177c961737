//! Pause and resume: new requests are refused, requests in flight finish, and none is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sconce::EngineId;
use sconce_http::{Keys, Settings as HttpSettings};
use sconce_testkit::fake::FakeEngine;
use sconce_worker::Settings;
use serde_json::json;

use crate::client::{Connection, get, metric, post, request, send};
use crate::harness::{fake, fake_builder, settings, start, tiny_with};

/// Number of cycles, unless `SCONCE_TEST_CYCLES` sets it.
const CYCLES: usize = 100;
const CLIENTS: usize = 6;

#[test]
fn no_request_is_lost_while_a_worker_is_paused_and_resumed() {
    let server = fake(FakeEngine::new(EngineId::Candle), Duration::from_secs(10));
    let (address, ended) = (*server, AtomicBool::new(false));
    let cycles = std::env::var("SCONCE_TEST_CYCLES").ok().and_then(|cycles| cycles.parse().ok());
    let cycles: usize = cycles.unwrap_or(CYCLES);
    let client = || {
        let mut connection = Connection::open(address).expect("a connection");
        let bytes = request("POST", "/embed", &[], br#"{"inputs": "a text"}"#);
        let (mut answered, mut refused) = (0, 0);
        while !ended.load(Ordering::Relaxed) {
            let answer = connection.ask(&bytes).expect("an answer");
            match (answer.status, answer.header("x-sconce-code")) {
                (200, None) => answered += 1,
                (503, Some("paused")) => {
                    assert_eq!(answer.header("retry-after"), Some("1"));
                    refused += 1;
                }
                other => panic!("{other:?}: {}", answer.text()),
            }
        }
        (answered, refused)
    };
    let totals = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        for _ in 0..cycles {
            assert_eq!(post(address, "/v1/pause", &json!({})).expect(200)["state"], "paused");
            thread::sleep(Duration::from_millis(1));
            assert_eq!(post(address, "/v1/resume", &json!({})).expect(200)["state"], "ready");
            thread::sleep(Duration::from_millis(1));
        }
        ended.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("no panic")).collect::<Vec<(u32, u32)>>()
    });
    let (answered, refused) = totals.iter().fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    println!("{cycles} cycles: {answered} answered, {refused} refused");
    assert!(answered > 0 && refused > 0);
    assert!((metric(address, "sconce_answers_total") - f64::from(answered)).abs() < 0.5);
    let counted = get(address, "/metrics").text();
    assert!(counted.contains(&format!("te_request_failure{{err=\"paused\"}} {refused}")), "{counted}");
}

#[test]
fn requests_in_flight_finish_while_a_worker_is_paused() {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle);
    let (held, batches) = (Arc::clone(&engine.held), Arc::clone(&engine.batches));
    let builder = fake_builder(engine, Duration::from_mins(4), home.path());
    let server = start(builder, settings(), Some(home)).ready();
    let address = *server;
    held.store(true, Ordering::SeqCst);
    let before = batches.load(Ordering::SeqCst);
    let asking = thread::spawn(move || post(address, "/embed", &json!({"inputs": "a text"})));
    while batches.load(Ordering::SeqCst) == before {
        thread::sleep(Duration::from_millis(5));
    }
    let load = get(address, "/v1/models");
    let load = load.header("x-sconce-load").expect("a load").to_owned();
    let tokens = load.strip_prefix("requests=1, tokens=").and_then(|tokens| tokens.parse().ok());
    assert!(tokens.is_some_and(|tokens: u64| tokens > 2), "{load}");
    let paused = post(address, "/v1/pause", &json!({})).expect(200);
    assert_eq!(paused, json!({"state": "paused", "requests": 1}));
    let ready = get(address, "/readyz");
    assert_eq!((ready.status, ready.header("x-sconce-code")), (503, Some("paused")));
    let ready = ready.json();
    assert_eq!((&ready["state"], &ready["reason"]), (&"paused".into(), &"the worker is paused".into()));
    assert_eq!(get(address, "/health").header("x-sconce-code"), Some("paused"));
    assert_eq!(get(address, "/livez").status, 200);
    assert_eq!(get(address, "/v1/report").json()["state"], "paused");
    assert_eq!(post(address, "/embed", &json!({"inputs": "b"})).status, 503);
    held.store(false, Ordering::SeqCst);
    assert_eq!(asking.join().expect("no panic").status, 200);
    post(address, "/v1/resume", &json!({})).expect(200);
    assert_eq!(get(address, "/readyz").json(), json!({"ready": true, "state": "ready"}));
    let answer = post(address, "/embed", &json!({"inputs": "b"}));
    assert_eq!(answer.status, 200);
    assert!(answer.header("x-sconce-load").is_some_and(|load| load.starts_with("requests=0, ")));
}

#[test]
fn only_operators_pause_a_worker() {
    let keys = Keys::read("one\ntwo operator\n").expect("keys");
    let server =
        tiny_with("tiny-bert", Settings { http: HttpSettings { keys, ..settings().http }, ..settings() });
    let ask = |path: &str, key: &str| {
        send(*server, &request("POST", path, &[("x-api-key", key)], b"")).expect("an answer")
    };
    for path in ["/v1/pause", "/v1/resume"] {
        let refused = ask(path, "one");
        assert_eq!((refused.status, refused.header("x-sconce-code")), (403, Some("forbidden")), "{path}");
        assert_eq!(ask(path, "two").status, 200, "{path}");
    }
}
