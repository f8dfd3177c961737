//! Second opinions: texts with unusual results neither affect other requests nor quarantine healthy placements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sconce::{Device, EngineId};
use sconce_testkit::fake::{BatchFault, FakeEngine, Fault, ODD_TEXT};
use sconce_worker::Settings;
use serde_json::{Value, json};

use crate::client::{get, metric, post};
use crate::harness::{METAL, fake, fake_builder, healthy, settings, start};

const TIMEOUT: Duration = Duration::from_secs(20);
const REPEATS: usize = 50;
const CLIENTS: usize = 16;
/// Maximum number of warm-up batches on fake engines.
const WARM_UP: usize = 12;

/// Sends `unusual` repeatedly beside clients whose requests must all get the correct embedding.
fn beside_normal_clients(engine: FakeEngine, unusual: &Value, judge: impl Fn(u16, &Value)) {
    let server = fake(engine, TIMEOUT);
    let address = *server;
    let texts: Vec<String> = (0..CLIENTS).map(|client| format!("client {client} asks as ever")).collect();
    let want = healthy(&texts);
    let place = post(address, "/embed", &json!({"inputs": texts[0]}));
    let place = place.header("x-sconce-placement").expect("a placement").to_owned();
    let over = Arc::new(AtomicBool::new(false));
    let answers = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = texts
        .into_iter()
        .zip(want)
        .map(|(text, want)| {
            let (over, answers) = (Arc::clone(&over), Arc::clone(&answers));
            thread::spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    let answer = post(address, "/embed", &json!({"inputs": [text]}));
                    let got: Vec<Vec<f32>> = serde_json::from_value(answer.expect(200)).expect("vectors");
                    assert_eq!(got, std::slice::from_ref(&want));
                    answers.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for _ in 0..REPEATS {
        let before = answers.load(Ordering::SeqCst);
        let answer = post(address, "/v1/embeddings", unusual);
        judge(answer.status, &answer.json());
        let ready = get(address, "/readyz");
        assert_eq!(ready.status, 200, "{}", ready.text());
        // Both run concurrently.
        while answers.load(Ordering::SeqCst) == before {
            assert!(clients.iter().all(|client| !client.is_finished()), "a client failed");
            thread::sleep(Duration::from_millis(1));
        }
    }
    over.store(true, Ordering::SeqCst);
    for client in clients {
        client.join().expect("every normal request is answered");
    }
    let last = post(address, "/embed", &json!({"inputs": "more"}));
    assert_eq!(last.header("x-sconce-placement"), Some(place.as_str()), "no placement is retired");
    assert!(metric(address, "sconce_guard_trips_total").abs() < 1e-9);
    assert!(!get(address, "/v1/report").text().contains("quarantined"));
}

#[test]
fn an_unusual_text_that_two_placements_agree_on_is_answered_beside_16_clients() {
    let engine =
        || FakeEngine::new(EngineId::Candle).with(METAL, Fault::OddNorm).with(Device::Cpu, Fault::OddNorm);
    let want = healthy(&[ODD_TEXT.to_owned()]).remove(0);
    let vector = |body: &Value| -> Vec<f32> {
        serde_json::from_value(body["data"][0]["embedding"].clone()).expect("a vector")
    };
    beside_normal_clients(engine(), &json!({"input": ODD_TEXT}), |status, body| {
        assert_eq!(status, 200, "{body}");
        assert_eq!(vector(body), want);
    });
    beside_normal_clients(engine(), &json!({"input": [255, 255, 255, 255]}), |status, body| {
        assert_eq!(status, 200, "{body}");
        assert_eq!(vector(body).len(), want.len());
    });
}

#[test]
fn an_unusual_text_that_nobody_can_vouch_for_is_refused_alone_beside_16_clients() {
    let refused = |status: u16, body: &Value| {
        assert_eq!((status, &body["error"]["code"]), (422, &json!("unusual_input")), "{body}");
    };
    // Both placements fail on the text.
    let both =
        FakeEngine::new(EngineId::Candle).with(METAL, Fault::OddNan).with(Device::Cpu, Fault::OddFails);
    beside_normal_clients(both, &json!({"input": ODD_TEXT}), refused);
    // There is only one placement.
    let alone =
        FakeEngine::new(EngineId::Candle).with(METAL, Fault::NotBuilt).with(Device::Cpu, Fault::OddNorm);
    beside_normal_clients(alone, &json!({"input": [255, 255, 255, 255]}), refused);
}

#[test]
fn a_placement_that_another_contradicts_is_quarantined_and_its_text_answered() {
    let server = fake(FakeEngine::new(EngineId::Candle).with(METAL, Fault::OddNan), TIMEOUT);
    let answer = post(*server, "/embed", &json!({"inputs": [ODD_TEXT]}));
    assert_eq!(answer.header("x-sconce-incidents"), Some("candle/metal:0/f32 guard"));
    assert_eq!(answer.header("x-sconce-placement"), Some("candle/cpu/f32"));
    let got: Vec<Vec<f32>> = serde_json::from_value(answer.expect(200)).expect("vectors");
    assert_eq!(got, healthy(&[ODD_TEXT.to_owned()]));
    assert!((metric(*server, "sconce_guard_trips_total") - 1.0).abs() < 1e-9);
}

#[test]
fn a_second_placement_that_is_quarantined_over_a_refused_text_is_counted() {
    let broken = Fault::FromBatch(1, BatchFault::Nan);
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::OddNorm).with(Device::Cpu, broken);
    let server = fake(engine, TIMEOUT);
    let refused = post(*server, "/v1/embeddings", &json!({"input": ODD_TEXT}));
    assert_eq!(refused.status, 422, "{}", refused.text());
    let trips = get(*server, "/metrics").text();
    let trips: Vec<&str> =
        trips.lines().filter(|line| line.starts_with("sconce_guard_trips_total")).collect();
    let line = "sconce_guard_trips_total{kind=\"guard\",model=\"model\",placement=\"candle/cpu/f32\"} 1";
    assert_eq!(trips, [line]);
    assert_eq!(get(*server, "/readyz").status, 200);
}

#[test]
fn without_memory_for_a_second_placement_an_unusual_text_is_refused_and_no_model_is_unloaded() {
    let server = fake(
        FakeEngine::new(EngineId::Candle).with(METAL, Fault::OddNorm).with(Device::Cpu, Fault::OddNorm),
        TIMEOUT,
    );
    let used = sconce::resident().expect("this system tells");
    // The next placement does not fit into the remaining memory.
    server.running().reload(Settings { memory_limit: Some(used), ..settings() });
    let refused = post(*server, "/v1/embeddings", &json!({"input": ODD_TEXT}));
    if refused.status == 422 {
        assert_eq!(refused.json()["error"]["code"], "unusual_input");
    } else {
        assert_eq!(refused.status, 503, "the model itself may be over the limit: {}", refused.text());
    }
}

#[test]
fn a_recovery_in_progress_keeps_no_unloaded_model_in_memory() {
    let home = tempfile::tempdir().expect("a folder");
    let engine =
        FakeEngine::new(EngineId::Candle).with(METAL, Fault::FromBatch(WARM_UP + 1, BatchFault::Nan));
    let gates = Arc::clone(&engine.gates);
    let returning = Settings { recovery_backoff: Duration::from_secs(2), ..settings() };
    let server = start(fake_builder(engine, TIMEOUT, home.path()), returning.clone(), Some(home)).ready();
    let answer = post(*server, "/embed", &json!({"inputs": "a text"}));
    assert_eq!(answer.header("x-sconce-placement"), Some("candle/cpu/f32"), "{}", answer.text());
    gates.hold_canaries.store(true, Ordering::SeqCst);
    let until = |what: &str, reached: &dyn Fn() -> bool| {
        for _ in 0..6000 {
            if reached() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("not within a minute: {what}");
    };
    until("the placement is tried anew", &|| gates.waiting.load(Ordering::SeqCst) == 1);
    server.running().reload(Settings { idle_unload: Some(Duration::from_millis(10)), ..returning });
    until("the model is unloaded", &|| gates.loaded.load(Ordering::SeqCst) == 0);
    assert_eq!(gates.waiting.load(Ordering::SeqCst), 1, "the trial was to be under way still");
    gates.hold_canaries.store(false, Ordering::SeqCst);
}
