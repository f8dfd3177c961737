//! Two keys, one of which floods: the other has its share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sconce::EngineId;
use sconce_server::{Keys, Settings};
use sconce_testkit::fake::{FakeEngine, Fault};
use serde_json::json;

use crate::client::{Connection, post_with, request};
use crate::stage::{METAL, Stage, fake_builder, settings, start};

/// How often the quiet one asks, how long it waits at most, and for how long it goes on.
const PACE: Duration = Duration::from_millis(40);
const PATIENCE: Duration = Duration::from_millis(400);
const ROUND: Duration = Duration::from_secs(4);

/// tiny-bert at fifty thousand tokens a second.
fn stage(keys: &str) -> Stage {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Slow(20));
    let builder = fake_builder(engine, Duration::from_secs(10), home.path());
    let keys = Keys::read(keys).expect("keys");
    start(builder, Settings { keys, ..settings() }, Some(home)).ready()
}

/// The share of requests at a steady pace that are answered in time.
fn goodput(stage: &Stage) -> f64 {
    let (address, began) = (**stage, Instant::now());
    let mut asked = Vec::new();
    while began.elapsed() < ROUND {
        asked.push(thread::spawn(move || {
            let sent = Instant::now();
            let body = json!({"inputs": "a short question"});
            let status = post_with(address, "/embed", &[("x-api-key", "quiet")], &body).status;
            status == 200 && sent.elapsed() < PATIENCE
        }));
        thread::sleep(PACE);
    }
    let all = asked.len() as f64;
    let good = asked.into_iter().filter_map(|one| one.join().expect("no panic").then_some(())).count();
    good as f64 / all
}

#[test]
fn a_key_that_floods_does_not_starve_another() {
    let stage = stage("quiet\nloud\n");
    let lone = goodput(&stage);
    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let flood: Vec<_> = (0..24)
        .map(|_| {
            let (address, stop, served) = (*stage, Arc::clone(&stop), Arc::clone(&served));
            thread::spawn(move || {
                let body = json!({"inputs": vec!["one of very many texts of somebody who has no mercy"; 64]});
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
    thread::sleep(Duration::from_millis(500));
    let beside = goodput(&stage);
    stop.store(true, Ordering::Relaxed);
    for one in flood {
        one.join().expect("no panic");
    }
    println!("goodput alone {lone:.3}, beside a flood {beside:.3}, {served:?} of the flood served");
    assert!(beside >= 0.8 * lone, "{beside} of {lone}");
    assert!(served.load(Ordering::Relaxed) > 10, "the flood is served as well");
}

#[test]
fn a_key_that_is_good_for_so_many_tokens_gets_no_more() {
    let stage = stage("slow rate=100\nfree\n");
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
    let stage = start(builder, Settings { keys, max_bodies: 1 << 20, ..settings() }, Some(home)).ready();
    // Bodies that are never ended.
    let half = vec![b' '; 700 << 10];
    let mut open: Vec<Connection> = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::open(*stage).expect("a connection");
        let head = "POST /embed HTTP/1.1\r\nhost: x\r\nx-api-key: loud\r\ncontent-length: 4000000\r\n\r\n";
        // The second is cut off amid its body.
        let _ = connection.write(&[head.as_bytes(), &half].concat());
        open.push(connection);
        thread::sleep(Duration::from_millis(300));
    }
    let body = json!({"inputs": vec!["a text of somebody who waits"; 200]});
    assert_eq!(post_with(*stage, "/embed", &[("x-api-key", "quiet")], &body).status, 200);
}
