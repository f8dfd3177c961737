//! Placements that fail while they serve: clients get correct responses, and headers, metrics and report show the
//! incident.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use sconce::{Device, EngineId};
use sconce_http::{LogFormat, Settings as HttpSettings, TelemetryConfig};
use sconce_testkit::fake::{BatchFault, FakeEngine, Fault};
use sconce_worker::Settings;
use serde_json::json;

use crate::client::{get, metric, post};
use crate::harness::{METAL, fake, fake_builder, healthy, settings, start};

const SHORT: Duration = Duration::from_millis(400);
/// Maximum number of warm-up batches on fake engines.
const WARM_UP: usize = 12;

fn vectors(value: &serde_json::Value) -> Vec<Vec<f32>> {
    serde_json::from_value(value.clone()).expect("vectors")
}

#[test]
fn a_placement_that_errs_lies_hangs_or_panics_costs_no_client_its_answer() {
    for (fault, kind) in [
        (BatchFault::Error, "failed"),
        (BatchFault::Nan, "guard"),
        (BatchFault::Zero, "guard"),
        (BatchFault::Norm, "guard"),
        (BatchFault::Rows, "guard"),
        (BatchFault::Panic, "panicked"),
        (BatchFault::Hang, "hung"),
    ] {
        let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::FromBatch(WARM_UP + 5, fault));
        let batches = std::sync::Arc::clone(&engine.batches);
        // Only a hang needs a short timeout; reporting a panic takes time, too.
        let timeout = if fault == BatchFault::Hang { SHORT } else { Duration::from_secs(10) };
        let server = fake(engine, timeout);
        assert!(batches.load(Ordering::SeqCst) <= WARM_UP, "the warm-up is longer than this test thinks");
        let address = *server;
        let clients: Vec<_> = (0..8)
            .map(|client| {
                thread::spawn(move || {
                    let texts: Vec<String> = (0..6).map(|n| format!("client {client} says {n}")).collect();
                    let want = healthy(&texts);
                    let mut incidents = Vec::new();
                    for (text, want) in texts.iter().zip(want) {
                        let answer = post(address, "/embed", &json!({"inputs": [text]}));
                        incidents.extend(answer.header("x-sconce-incidents").map(str::to_owned));
                        let place = answer.header("x-sconce-placement").expect("a placement").to_owned();
                        assert!(place.contains("candle/"), "{place}");
                        assert_eq!(vectors(&answer.expect(200)), [want], "{fault:?}");
                    }
                    incidents
                })
            })
            .collect();
        let incidents: Vec<String> =
            clients.into_iter().flat_map(|client| client.join().expect("no client error")).collect();
        assert!(
            !incidents.is_empty()
                && incidents.iter().all(|incidents| incidents == &format!("candle/metal:0/f32 {kind}")),
            "{incidents:?}"
        );
        let last = post(address, "/embed", &json!({"inputs": "more"}));
        assert_eq!(last.header("x-sconce-placement"), Some("candle/cpu/f32"));
        assert!((metric(address, "sconce_guard_trips_total") - 1.0).abs() < 1e-9, "{fault:?}");
        assert!((metric(address, "sconce_fallbacks_total") - 1.0).abs() < 1e-9, "{fault:?}");
        assert!(get(address, "/metrics").text().contains(&format!("kind=\"{kind}\"")));
        let report = get(address, "/v1/report").text();
        assert!(report.contains("quarantined"), "{report}");
        for part in ["\"message\":\"taken out of service: ", "\"remedy\":\"restart to prove"] {
            assert!(report.contains(part), "no `{part}` in: {report}");
        }
        assert!((metric(address, "te_request_failure")).abs() < 1e-9);
    }
}

#[test]
fn a_batch_that_does_not_fit_is_split_and_its_placement_stays() {
    let engine = FakeEngine::new(EngineId::Candle);
    let server = fake(engine.with(METAL, Fault::OutOfMemory { above: 2000 }), SHORT);
    let texts: Vec<String> = (0..500).map(|n| format!("{n} is one of several hundred texts")).collect();
    let answer = post(*server, "/embed", &json!({"inputs": texts}));
    assert_eq!(answer.header("x-sconce-placement"), Some("candle/metal:0/f32"));
    assert_eq!(vectors(&answer.expect(200)), healthy(&texts));
    assert!(metric(*server, "sconce_batch_splits_total") > 0.5);
}

#[test]
fn a_quarantined_placement_recovers_once_it_is_right_again() {
    let home = tempfile::tempdir().expect("a folder");
    // It fails at its sixth batch after the warm-up, and again after each recovery.
    let engine =
        FakeEngine::new(EngineId::Candle).with(METAL, Fault::FromBatch(WARM_UP + 6, BatchFault::Nan));
    let settings = Settings { recovery_backoff: Duration::from_millis(200), ..settings() };
    let server = start(fake_builder(engine, SHORT, home.path()), settings, Some(home)).ready();
    let place = || {
        let answer = post(*server, "/embed", &json!({"inputs": "a text"}));
        let place = answer.header("x-sconce-placement").expect("a placement").to_owned();
        assert_eq!(vectors(&answer.expect(200)), healthy(&["a text".to_owned()]));
        place
    };
    let until = |want: &str| {
        let began = Instant::now();
        while place() != want {
            assert!(began.elapsed() < Duration::from_mins(4), "never on {want}");
            thread::sleep(Duration::from_millis(10));
        }
    };
    until("candle/metal:0/f32");
    until("candle/cpu/f32");
    until("candle/metal:0/f32");
    let text = get(*server, "/metrics").text();
    let line =
        "sconce_recoveries_total{model=\"model\",outcome=\"recovered\",placement=\"candle/metal:0/f32\"} 1";
    assert!(text.contains(line), "{text}");
    assert!(!get(*server, "/v1/report").text().contains("quarantined"));
}

#[test]
fn without_a_healthy_placement_requests_are_refused_and_livez_answers() {
    let broken = Fault::FromBatch(WARM_UP + 1, BatchFault::Nan);
    let engine = FakeEngine::new(EngineId::Candle)
        .with(METAL, broken)
        .with(Device::Cpu, Fault::FromBatch(1, BatchFault::Nan));
    let server = fake(engine, SHORT);
    let refused = post(*server, "/v1/embeddings", &json!({"input": "a"}));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "no_placement");
    assert_eq!(post(*server, "/embed", &json!({"inputs": "a"})).status, 424);
    assert_eq!(get(*server, "/livez").status, 200);
    let ready = get(*server, "/readyz");
    assert_eq!(ready.status, 503, "{}", ready.text());
    assert!((metric(*server, "sconce_guard_trips_total") - 2.0).abs() < 1e-9, "both are counted");
    let reason = ready.json()["reason"].as_str().expect("a reason").to_owned();
    for part in ["`model`: all placements are quarantined", "candle/cpu/f32", "a value that is not finite"] {
        assert!(reason.contains(part), "`{part}` is missing in: {reason}");
    }
    assert_eq!(get(*server, "/health").status, 503);
    assert_eq!(get(*server, "/v1/report").json()["ready"], false);
}

#[test]
fn a_placement_that_drifts_is_demoted_within_three_checks_and_no_client_hears_of_it() {
    let drift = Fault::FromBatch(WARM_UP + 3, BatchFault::Drift);
    let home = tempfile::tempdir().expect("a folder");
    let builder = fake_builder(FakeEngine::new(EngineId::Candle).with(METAL, drift), SHORT, home.path());
    let checked = Settings { shadow_every: 1, ..settings() };
    let server = start(builder, checked, Some(home)).ready();
    let checks = |outcome: &str| {
        let text = get(*server, "/metrics").text();
        let line = text.lines().find(|line| {
            line.starts_with("sconce_shadow_checks_total") && line.contains(&format!("outcome=\"{outcome}\""))
        });
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let began = Instant::now();
    while checks("demoted") == 0 {
        post(*server, "/embed", &json!({"inputs": "a text"})).expect(200);
        assert!(began.elapsed() < Duration::from_mins(4), "{}", get(*server, "/metrics").text());
        // Each batch is checked before the next one.
        thread::sleep(Duration::from_millis(30));
    }
    assert!(checks("agrees") > 0, "it was healthy at first");
    assert!(checks("drifts") + checks("demoted") <= 3, "{}", get(*server, "/metrics").text());
    let answer = post(*server, "/embed", &json!({"inputs": "a text"}));
    assert_eq!(answer.header("x-sconce-placement"), Some("candle/cpu/f32"));
    assert_eq!(vectors(&answer.expect(200)), healthy(&["a text".to_owned()]));
    let text = get(*server, "/metrics").text();
    assert!(
        text.contains("sconce_shadow_cosine_bucket{model=\"model\",placement=\"candle/metal:0/f32\""),
        "{text}"
    );
    assert!(text.contains("kind=\"drift\""), "{text}");
    let report = get(*server, "/v1/report").text();
    assert!(report.contains("it drifted: 2 batches in a row"), "{report}");
    assert!(metric(*server, "te_request_failure").abs() < 1e-9);
}

/// Environment variable that is set for the process whose log is read.
const LOGS: &str = "SCONCE_TEST_LOGS";

#[test]
fn a_shadow_check_that_fails_says_why_in_the_log() {
    if std::env::var_os(LOGS).is_none() {
        let this = std::env::current_exe().expect("this binary has a path");
        let name = "faults::a_shadow_check_that_fails_says_why_in_the_log";
        let output = std::process::Command::new(this)
            .args([name, "--exact", "--nocapture"])
            .env(LOGS, "1")
            .output()
            .expect("it runs");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        let line = log.lines().find(|line| line.contains("shadow check failed"));
        let line = line.unwrap_or_else(|| panic!("nothing is said in:\n{log}"));
        assert!(line.contains("the fake fails as configured"), "{line}");
        return;
    }
    let fails = Fault::FromBatch(1, BatchFault::Error);
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(Device::Cpu, fails);
    let builder = fake_builder(engine, Duration::from_secs(10), home.path());
    let telemetry = TelemetryConfig { log: Some(LogFormat::Human), ..TelemetryConfig::default() };
    let checked =
        Settings { http: HttpSettings { telemetry, ..settings().http }, shadow_every: 1, ..settings() };
    let server = start(builder, checked, Some(home)).ready();
    for _ in 0..1000 {
        post(*server, "/embed", &json!({"inputs": "a text"})).expect(200);
        if get(*server, "/metrics").text().contains("outcome=\"failed\"") {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("no check failed");
}
