//! Every query of the Grafana dashboard matches metrics that the server exports.

use std::time::Duration;

use sconce::EngineId;
use sconce_testkit::dashboard::check;
use sconce_testkit::fake::{BatchFault, FakeEngine, Fault};
use sconce_worker::Settings;
use serde_json::json;

use crate::client::{Connection, get, metric, post, post_with, request};
use crate::generation;
use crate::harness::{METAL, fake, fake_builder, settings, start};

const DASHBOARD: &str = include_str!("../../../../packaging/grafana/sconce.json");

/// The metrics of servers on which every metric was recorded.
fn pages() -> Vec<String> {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::FromBatch(13, BatchFault::Nan));
    let engine = engine.with(sconce::Device::Cpu, Fault::Late(60));
    let builder = fake_builder(engine, Duration::from_secs(5), home.path());
    let quick = Settings { recovery_backoff: Duration::from_millis(100), ..settings() };
    let server = start(builder, quick, Some(home)).ready();
    post(*server, "/embed", &json!({"inputs": "a text"})).expect(200);
    post(*server, "/embed", &json!({"inputs": "word ".repeat(500), "truncate": true})).expect(200);
    assert_eq!(post(*server, "/embed", &json!({"inputs": []})).status, 400);
    // A client that disconnects while the tokens of its request wait.
    let texts: Vec<String> = (0..200).map(|n| format!("{n} of many texts that nobody waits for")).collect();
    let body = json!({"inputs": texts}).to_string();
    let mut pause = Duration::from_millis(50);
    while !get(*server, "/metrics").text().contains("sconce_cancelled_tokens_total{") {
        let mut leaving = Connection::open(*server).expect("a connection");
        leaving.write(&request("POST", "/embed", &[], body.as_bytes())).expect("writes");
        std::thread::sleep(pause);
        drop(leaving);
        std::thread::sleep(Duration::from_millis(50));
        // A busy machine takes longer to tokenize; too late, the request is answered.
        pause = if pause > Duration::from_secs(1) { pause / 16 } else { pause * 2 };
    }
    // Batches until the placement fails: the number of warm-up batches depends on the speed of the machine.
    while metric(*server, "sconce_recoveries_total") < 0.5 {
        post(*server, "/embed", &json!({"inputs": "a text"})).expect(200);
        std::thread::sleep(Duration::from_millis(20));
    }
    let small = FakeEngine::new(EngineId::Candle).with(METAL, Fault::OutOfMemory { above: 2000 });
    let small = fake(small, Duration::from_secs(5));
    let texts: Vec<String> = (0..500).map(|n| format!("{n} is one of several hundred texts")).collect();
    post(*small, "/embed", &json!({"inputs": texts})).expect(200);
    // A model with shadow checks that is unloaded when idle.
    let home = tempfile::tempdir().expect("a folder");
    let builder = fake_builder(FakeEngine::new(EngineId::Candle), Duration::from_secs(5), home.path());
    let idle_unload = Some(Duration::from_millis(500));
    let watched = start(builder, Settings { shadow_every: 1, idle_unload, ..settings() }, Some(home)).ready();
    while metric(*watched, "sconce_shadow_checks_total") < 0.5 {
        let (patient, body) = ([("prefer", "wait=60")], json!({"inputs": "a text"}));
        post_with(*watched, "/embed", &patient, &body).expect(200);
        std::thread::sleep(Duration::from_millis(20));
    }
    while metric(*watched, "sconce_unloads_total") < 0.5 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let folder = generation::folder();
    let language = generation::serve(folder.path(), settings());
    post(*language, "/v1/completions", &json!({"prompt": "w4 w5", "max_tokens": 4})).expect(200);
    [*server, *small, *watched, *language].map(|address| get(address, "/metrics").text()).to_vec()
}

#[test]
fn every_query_of_the_dashboard_is_answered() {
    check(DASHBOARD, &pages(), "sconce_");
}
