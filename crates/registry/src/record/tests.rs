//! Tests of the records.

use super::*;

/// A worker with eight accelerators, near the end of long counters.
fn largest() -> Heartbeat {
    let mut free_memory: BTreeMap<String, u64> =
        (0..8).map(|index| (format!("cuda:{index}"), 196_608)).collect();
    free_memory.insert("cpu".to_owned(), 6_291_456);
    Heartbeat {
        boot_id: BootId::random(),
        sequence: 9_999_999_999,
        state: WorkerState::Degraded,
        load: Load { requests: 100_000, tokens: 9_999_999_999, latency: 0.123_456_79 },
        rates: Rates { small: 123_456.79, medium: 1_234_567.9, large: 9_876_543.0 },
        free_memory,
    }
}

#[test]
fn the_largest_heartbeat_is_within_the_limit() {
    let heartbeat = largest();
    let json = heartbeat.encode().unwrap();
    assert!(json.len() <= MAX_HEARTBEAT_BYTES, "{} bytes", json.len());
    assert_eq!(Heartbeat::decode(&json).unwrap(), heartbeat);
}

#[test]
fn a_larger_heartbeat_is_refused() {
    let mut heartbeat = largest();
    heartbeat.free_memory.extend((8..32).map(|index| (format!("cuda:{index}"), 196_608)));
    let error = heartbeat.encode().unwrap_err();
    assert!(matches!(error, RecordError::TooLarge { max: 400, .. }), "{error}");
}

#[test]
fn rates_are_finite() {
    for rate in [f32::NAN, f32::INFINITY, -1.0] {
        let mut heartbeat = largest();
        heartbeat.rates.medium = rate;
        let error = heartbeat.encode().unwrap_err();
        assert_eq!(error.to_string(), format!("`{rate}` is not a valid rates.medium"));
    }
}

#[test]
fn states_are_lowercase_words() {
    let states = [
        (WorkerState::Starting, "starting"),
        (WorkerState::Ready, "ready"),
        (WorkerState::Paused, "paused"),
        (WorkerState::Draining, "draining"),
        (WorkerState::Degraded, "degraded"),
    ];
    for (state, word) in states {
        assert_eq!(serde_json::to_value(state).unwrap(), word);
    }
}

#[test]
fn a_registration_of_a_newer_version_is_read() {
    let json = format!(
        r#"{{"worker_id": "seven", "boot_id": "{}", "url": "http://seven:8080", "version": "9.0.0",
            "ttl_ms": 3000, "colour": "blue", "models": [{{"model": "minilm", "task": "dream",
            "max_length": 256, "placements": [{{"placement": "candle/rocm:0/f16", "active": false,
            "obstacle": {{"code": "unheard_of", "message": "no", "extra": 1}}}}]}}]}}"#,
        BootId::random()
    );
    let registration = Registration::decode(json.as_bytes()).unwrap();
    assert_eq!(registration.models[0].task, "dream");
    assert_eq!(registration.retention(), MIN_RETENTION);
    let again = Registration::decode(&registration.encode().unwrap()).unwrap();
    assert_eq!(again, registration);
}

#[test]
fn times_to_live_are_bounded() {
    for ttl in [Duration::ZERO, MAX_TTL + Duration::from_nanos(1), Duration::MAX] {
        assert!(check_ttl(ttl).is_err());
    }
    let json = format!(
        r#"{{"worker_id": "seven", "boot_id": "{}", "url": "", "version": "", "ttl_ms": {}}}"#,
        BootId::random(),
        u64::MAX
    );
    let registration = Registration::decode(json.as_bytes()).unwrap();
    assert_eq!((registration.ttl(), registration.retention()), (MAX_TTL, MAX_TTL * 10));
    assert!(registration.encode().is_err());
}

#[test]
fn a_worker_id_is_neither_empty_nor_long() {
    for id in [String::new(), "x".repeat(129)] {
        assert!(check_id("worker id", &id).is_err());
    }
    assert!(check_id("worker id", "Büro 7 / links").is_ok());
}
