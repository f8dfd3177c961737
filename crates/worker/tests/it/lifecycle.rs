//! The lifecycle of a server: startup, probes, API keys, shutdown.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use sconce::EngineId;
use sconce_http::{Keys, Settings as HttpSettings};
use sconce_testkit::fake::{FakeEngine, Fault};
use sconce_worker::{LoadPolicy, Serve, ServeError, Server, Settings};
use serde_json::json;

use crate::client::{Connection, get, metric, post, post_with, request};
use crate::harness::{METAL, fake_builder, settings, start, tiny_builder, tiny_with};

#[test]
fn the_port_is_open_before_the_model_and_reports_its_phase() {
    let home = tempfile::tempdir().expect("a folder");
    // Slow warm-up batches keep the model in its startup phases for a while.
    let engine = FakeEngine::new(EngineId::Candle).with(sconce::Device::Cpu, Fault::Late(40));
    let engine = engine.with(crate::harness::METAL, Fault::Late(40));
    let builder = fake_builder(engine, Duration::from_secs(5), home.path());
    let server = start(builder, settings(), Some(home));
    let mut phases = Vec::new();
    assert_eq!(get(*server, "/livez").status, 200);
    let began = Instant::now();
    loop {
        let startup = get(*server, "/startupz");
        let phase = startup.json()["models"]["model"]["phase"].as_str().expect("a phase").to_owned();
        if phases.last() != Some(&phase) {
            phases.push(phase.clone());
        }
        if phase == "ready" {
            break;
        }
        let ready = get(*server, "/readyz");
        if ready.status == 503 {
            assert!(ready.json()["reason"].as_str().expect("a reason").starts_with("`model`: "));
            let refused = post(*server, "/v1/embeddings", &json!({"input": "a"}));
            if refused.status != 200 {
                assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
            }
        }
        assert!(began.elapsed() < Duration::from_mins(4), "{phases:?}");
    }
    assert!(phases.contains(&"warming_up".to_owned()), "{phases:?}");
    assert_eq!(get(*server, "/startupz").status, 200);
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server_with_its_reason() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let builder = sconce::Model::builder("./no such folder").offline(true);
    let serve = Serve {
        name: "none".to_owned(),
        aliases: Vec::new(),
        builder,
        load: LoadPolicy::Startup,
        token_ids: false,
    };
    let ended = Server::start(listener, vec![serve], settings()).expect("it starts").wait();
    assert!(matches!(ended, Err(ServeError::Model(_))), "{ended:?}");
}

#[test]
fn without_a_key_only_probes_are_answered() {
    let keys = Keys::read("one\ntwo\n").expect("two keys");
    let server =
        tiny_with("tiny-bert", Settings { http: HttpSettings { keys, ..settings().http }, ..settings() });
    for path in ["/livez", "/readyz", "/startupz", "/health"] {
        assert_eq!(get(*server, path).status, 200, "{path}");
    }
    for path in ["/metrics", "/info", "/v1/models", "/v1/report", "/openapi.json", "/no_such_route"] {
        assert_eq!(get(*server, path).status, 401, "{path}");
    }
    let body = json!({"input": "a"});
    let refused = post(*server, "/v1/embeddings", &body);
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    assert!(refused.text().contains("requires an API key"), "{}", refused.text());
    for wrong in [("authorization", "Bearer three"), ("x-api-key", "on"), ("authorization", "Bearer onetwo")]
    {
        let refused = post_with(*server, "/v1/embeddings", &[wrong], &body);
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")), "{wrong:?}");
        assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
        assert!(refused.text().contains("does not know the key"), "{}", refused.text());
    }
    for key in ["Bearer one", "bearer two"] {
        post_with(*server, "/v1/embeddings", &[("authorization", key)], &body).expect(200);
    }
}

#[test]
fn requests_in_flight_are_finished_and_later_ones_get_connection_close() {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle);
    let (held, batches) = (Arc::clone(&engine.held), Arc::clone(&engine.batches));
    let builder = fake_builder(engine, Duration::from_mins(4), home.path());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let serve = Serve {
        name: "model".to_owned(),
        aliases: Vec::new(),
        builder,
        load: LoadPolicy::Startup,
        token_ids: false,
    };
    let server = Server::start(
        listener,
        vec![serve],
        Settings {
            http: HttpSettings {
                linger: Duration::from_secs(2),
                grace: Duration::from_mins(4),
                ..settings().http
            },
            ..settings()
        },
    )
    .expect("it starts");
    let address = server.address();
    while get(address, "/readyz").status != 200 {
        thread::sleep(Duration::from_millis(20));
    }
    let mut idle = Connection::open(address).expect("a connection");
    held.store(true, Ordering::SeqCst);
    let before = batches.load(Ordering::SeqCst);
    let asking = thread::spawn(move || post(address, "/embed", &json!({"inputs": "a text"})));
    while batches.load(Ordering::SeqCst) == before {
        thread::sleep(Duration::from_millis(5));
    }
    server.stop();
    // Still answered, with `connection: close` once shutdown has begun.
    let mut ask = || idle.ask(&request("GET", "/readyz", &[], b"")).expect("an answer");
    let mut late = ask();
    while late.status == 200 {
        late = ask();
    }
    assert_eq!((late.status, late.header("connection")), (503, Some("close")));
    held.store(false, Ordering::SeqCst);
    let answer = asking.join().expect("no panic");
    assert_eq!(answer.status, 200, "{}", answer.text());
    server.wait().expect("a good end");
    assert!(Connection::open(address).is_err(), "the listener is closed");
}

#[test]
fn a_model_that_is_still_loading_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let serve = Serve {
        name: "model".to_owned(),
        aliases: Vec::new(),
        builder: tiny_builder("tiny-bert"),
        load: LoadPolicy::Startup,
        token_ids: false,
    };
    let server = Server::start(listener, vec![serve], settings()).expect("it starts");
    server.stop();
    server.wait().expect("a good end");
}

#[test]
fn a_server_whose_models_fail_to_load_is_not_ready_and_recovers_by_itself() {
    let server = tiny_with("tiny-bert", settings());
    // Not even the server itself fits into this limit.
    server.running().reload(Settings {
        memory_limit: Some(1),
        idle_unload: Some(Duration::ZERO),
        ..settings()
    });
    let until = |status: u16| {
        let began = Instant::now();
        while get(*server, "/readyz").status != status {
            assert!(began.elapsed() < Duration::from_mins(4), "{}", get(*server, "/readyz").text());
            let _ = post(*server, "/embed", &json!({"inputs": "a"}));
            thread::sleep(Duration::from_millis(100));
        }
    };
    until(503);
    let reason = get(*server, "/readyz").text();
    assert!(reason.contains("loading failed") && !reason.contains("hint"), "{reason}");
    server.running().reload(settings());
    let began = Instant::now();
    while get(*server, "/readyz").status != 200 {
        assert!(began.elapsed() < Duration::from_mins(4), "{}", get(*server, "/readyz").text());
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(post(*server, "/embed", &json!({"inputs": "a"})).status, 200);
}

#[test]
fn a_request_that_a_full_queue_refuses_keeps_its_connection() {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Slow(1000));
    let (held, batches) = (Arc::clone(&engine.held), Arc::clone(&engine.batches));
    let builder = fake_builder(engine, Duration::from_mins(4), home.path());
    let server = start(builder, Settings { queue_seconds: 0.001, ..settings() }, Some(home)).ready();
    let address = *server;
    // One text is held in flight, and another one waits behind it.
    held.store(true, Ordering::SeqCst);
    let before = batches.load(Ordering::SeqCst);
    let send = || thread::spawn(move || post(address, "/embed", &json!({"inputs": "some words"})).status);
    let computed = send();
    while batches.load(Ordering::SeqCst) == before {
        thread::sleep(Duration::from_millis(5));
    }
    let waiting = send();
    while metric(address, "te_queue_size") < 0.5 {
        thread::sleep(Duration::from_millis(5));
    }
    let mut connection = Connection::open(address).expect("a connection");
    let mut ask = || {
        let body = br#"{"inputs": "a"}"#;
        let bytes = request("POST", "/embed", &[("content-type", "application/json")], body);
        // Many clients send the body after the headers.
        connection.write(&bytes[..bytes.len() - body.len()]).expect("writes");
        thread::sleep(Duration::from_millis(30));
        connection.write(body).expect("writes");
        connection.read().expect("an answer").status
    };
    assert_eq!([ask(), ask()], [429, 429]);
    held.store(false, Ordering::SeqCst);
    assert_eq!([computed, waiting].map(|one| one.join().expect("no panic")), [200, 200]);
    assert_eq!(ask(), 200);
}
