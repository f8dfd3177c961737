//! Two keys, one of which floods: the other has its share.

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
use crate::stage::{METAL, Stage, fake_builder, settings, start};

/// Questions of the quiet key, one after the other.
const QUESTIONS: usize = 25;
/// Batches that a question may see computed before its answer: one in flight, its own, and some for a slow machine.
/// A queue without fairness has about forty in front of it.
const FEW: usize = 10;

/// tiny-bert at fifty thousand tokens a second, and the count of its batches.
fn stage(keys: &str) -> (Stage, Arc<AtomicUsize>) {
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

/// The batches that are computed while a short question waits for its answer, in the middle of many questions.
fn batches_in_flight(stage: &Stage, batches: &AtomicUsize) -> usize {
    let body = json!({"inputs": "a short question"});
    let ask = |_| {
        let before = batches.load(Ordering::SeqCst);
        let answer = post_with(**stage, "/embed", &[("x-api-key", "quiet")], &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        batches.load(Ordering::SeqCst) - before
    };
    let mut counts: Vec<usize> = (0..QUESTIONS).map(ask).collect();
    counts.sort_unstable();
    println!("batches in flight of a question: {counts:?}");
    counts[QUESTIONS / 2]
}

#[test]
fn a_key_that_floods_does_not_starve_another() {
    let (stage, batches) = stage("quiet\nloud\n");
    assert!(batches_in_flight(&stage, &batches) <= 1);
    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let flood: Vec<_> = (0..24)
        .map(|_| {
            let (address, stop, served) = (*stage, Arc::clone(&stop), Arc::clone(&served));
            thread::spawn(move || {
                let body =
                    json!({"inputs": vec!["one of very many texts of somebody who has no mercy"; 256]});
                let headers = [("x-api-key", "loud"), ("x-sconce-priority", "interactive")];
                let bytes = request("POST", "/embed", &headers, body.to_string().as_bytes());
                let mut connection = Connection::open(address).expect("a connection");
                while !stop.load(Ordering::Relaxed) {
                    let answer = connection.ask(&bytes).expect("an answer");
                    served.fetch_add(usize::from(answer.status == 200), Ordering::Relaxed);
                    if answer.status == 429 {
                        thread::sleep(Duration::from_millis(20));
                    }
                }
            })
        })
        .collect();
    while metric_with_key(&stage, "te_queue_size") < 300.0 {
        thread::sleep(Duration::from_millis(5));
    }
    let beside = batches_in_flight(&stage, &batches);
    while served.load(Ordering::Relaxed) < 10 {
        thread::sleep(Duration::from_millis(5));
    }
    stop.store(true, Ordering::Relaxed);
    for one in flood {
        one.join().expect("no panic");
    }
    assert!(beside <= FEW, "{beside} batches before an answer");
}

fn metric_with_key(stage: &Stage, name: &str) -> f64 {
    let request = request("GET", "/metrics", &[("x-api-key", "quiet")], b"");
    let text = send(**stage, &request).expect("metrics").text();
    let line = text.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with([' ', '{']));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

#[test]
fn a_key_that_is_good_for_so_many_tokens_gets_no_more() {
    let (stage, _) = stage("slow rate=100\nfree\n");
    let ask = |key: &str| {
        let body = json!({"inputs": vec!["some ten tokens of a text that somebody has asked about"; 20]});
        post_with(*stage, "/embed", &[("x-api-key", key)], &body)
    };
    assert_eq!(ask("slow").status, 200);
    let refused = ask("slow");
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.header("retry-after").is_some() && refused.text().contains("tokens that it is good for"));
    assert_eq!(ask("free").status, 200);
}

#[test]
fn a_key_whose_bodies_fill_all_the_room_leaves_others_theirs() {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Slow(1));
    let builder = fake_builder(engine, Duration::from_secs(10), home.path());
    let keys = Keys::read("quiet\nloud\n").expect("keys");
    let stage = start(
        builder,
        Settings { http: HttpSettings { keys, max_bodies: 1 << 20, ..settings().http }, ..settings() },
        Some(home),
    )
    .ready();
    // Bodies that are never ended.
    let half = vec![b' '; 700 << 10];
    let mut open: Vec<Connection> = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::open(*stage).expect("a connection");
        let head =
            "POST /embed HTTP/1.1\r\nhost: localhost\r\nx-api-key: loud\r\ncontent-length: 4000000\r\n\r\n";
        // The second is cut off amid its body.
        let _ = connection.write(&[head.as_bytes(), &half].concat());
        open.push(connection);
        thread::sleep(Duration::from_millis(300));
    }
    let body = json!({"inputs": vec!["a text of somebody who waits"; 200]});
    assert_eq!(post_with(*stage, "/embed", &[("x-api-key", "quiet")], &body).status, 200);
}
