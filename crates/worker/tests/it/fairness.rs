//! Fairness between tenants: a flooding key does not starve another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sconce::EngineId;
use sconce_http::{Keys, Settings as HttpSettings};
use sconce_testkit::fake::{FakeEngine, Fault};
use sconce_worker::Settings;
use serde_json::json;

use crate::client::{Connection, post_with, request, send};
use crate::harness::{METAL, TestServer, fake_builder, settings, start};

/// Number of sequential requests of the quiet key.
const REQUESTS: usize = 25;
/// Maximum number of batches between a request and its response: one in flight, its own, and some for a slow machine. A
/// queue without fairness has about forty.
const MAX_BATCHES: usize = 10;

/// A server with tiny-bert at 50,000 tokens per second, and the counter of its batches.
fn server_with(keys: &str) -> (TestServer, Arc<AtomicUsize>) {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Slow(20));
    let batches = Arc::clone(&engine.batches);
    let builder = fake_builder(engine, Duration::from_secs(10), home.path());
    let keys = Keys::read(keys).expect("keys");
    (
        start(builder, Settings { http: HttpSettings { keys, ..settings().http }, ..settings() }, Some(home))
            .ready(),
        batches,
    )
}

/// The median number of batches that are computed while a short request is in flight.
fn batches_in_flight(server: &TestServer, batches: &AtomicUsize) -> usize {
    let body = json!({"inputs": "a short question"});
    let ask = |_| {
        let before = batches.load(Ordering::SeqCst);
        let answer = post_with(**server, "/embed", &[("x-api-key", "quiet")], &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        batches.load(Ordering::SeqCst) - before
    };
    let mut counts: Vec<usize> = (0..REQUESTS).map(ask).collect();
    counts.sort_unstable();
    println!("batches per request: {counts:?}");
    counts[REQUESTS / 2]
}

#[test]
fn a_key_that_floods_does_not_starve_another() {
    let (server, batches) = server_with("quiet\nloud\n");
    assert!(batches_in_flight(&server, &batches) <= 1);
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let flood: Vec<_> = (0..24)
        .map(|_| {
            let (address, stop, answered) = (*server, Arc::clone(&stop), Arc::clone(&answered));
            thread::spawn(move || {
                let body =
                    json!({"inputs": vec!["one of very many texts of somebody who has no mercy"; 256]});
                let headers = [("x-api-key", "loud"), ("x-sconce-priority", "interactive")];
                let bytes = request("POST", "/embed", &headers, body.to_string().as_bytes());
                let mut connection = Connection::open(address).expect("a connection");
                while !stop.load(Ordering::Relaxed) {
                    let answer = connection.ask(&bytes).expect("an answer");
                    answered.fetch_add(usize::from(answer.status == 200), Ordering::Relaxed);
                    if answer.status == 429 {
                        thread::sleep(Duration::from_millis(20));
                    }
                }
            })
        })
        .collect();
    while metric_with_key(&server, "te_queue_size") < 300.0 {
        thread::sleep(Duration::from_millis(5));
    }
    let beside = batches_in_flight(&server, &batches);
    while answered.load(Ordering::Relaxed) < 10 {
        thread::sleep(Duration::from_millis(5));
    }
    stop.store(true, Ordering::Relaxed);
    for one in flood {
        one.join().expect("no panic");
    }
    assert!(beside <= MAX_BATCHES, "{beside} batches before an answer");
}

fn metric_with_key(server: &TestServer, name: &str) -> f64 {
    let request = request("GET", "/metrics", &[("x-api-key", "quiet")], b"");
    let text = send(**server, &request).expect("metrics").text();
    let line = text.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with([' ', '{']));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

#[test]
fn a_key_beyond_its_rate_limit_is_refused() {
    let (server, _) = server_with("slow rate=100\nfree\n");
    let ask = |key: &str| {
        let body = json!({"inputs": vec!["some ten tokens of a text that somebody has asked about"; 20]});
        post_with(*server, "/embed", &[("x-api-key", key)], &body)
    };
    assert_eq!(ask("slow").status, 200);
    let refused = ask("slow");
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.header("retry-after").is_some() && refused.text().contains("rate limit"));
    assert_eq!(ask("free").status, 200);
}

#[test]
fn a_key_whose_bodies_fill_the_memory_budget_leaves_others_their_share() {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Slow(1));
    let builder = fake_builder(engine, Duration::from_secs(10), home.path());
    let keys = Keys::read("quiet\nloud\n").expect("keys");
    let server = start(
        builder,
        Settings { http: HttpSettings { keys, max_bodies: 1 << 20, ..settings().http }, ..settings() },
        Some(home),
    )
    .ready();
    // Incomplete bodies hold their memory.
    let half = vec![b' '; 700 << 10];
    let mut open: Vec<Connection> = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::open(*server).expect("a connection");
        let head =
            "POST /embed HTTP/1.1\r\nhost: localhost\r\nx-api-key: loud\r\ncontent-length: 4000000\r\n\r\n";
        // The second one is refused before its body ends.
        let _ = connection.write(&[head.as_bytes(), &half].concat());
        open.push(connection);
        thread::sleep(Duration::from_millis(300));
    }
    let body = json!({"inputs": vec!["a text of somebody who waits"; 200]});
    assert_eq!(post_with(*server, "/embed", &[("x-api-key", "quiet")], &body).status, 200);
}
