//! Models that are added, assessed and removed at run time.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sconce::{EngineId, Model};
use sconce_http::{Keys, Settings as HttpSettings};
use sconce_testkit::fake::{FakeEngine, Fault};
use sconce_testkit::goldens;
use sconce_worker::{Server, Settings};
use serde_json::{Value, json};

use crate::client::{get, metric, post, post_with, request, send};
use crate::harness::{METAL, fake_runtime, settings};

/// Calls `test` with a server without models that may load tiny-bert and models of `nowhere/`.
fn empty<T>(settings: Settings, test: impl FnOnce(&Server, SocketAddr) -> T) -> T {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Late(20));
    let runtime = fake_runtime(engine, Duration::from_secs(10), home.path()).build();
    let loader = Arc::new(move |source: &str| Model::builder(source).runtime(&runtime));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let settings = Settings { model_sources: vec![source(), "./nowhere/*".to_owned()], ..settings };
    let server = Server::start_with(listener, Vec::new(), Some(loader), settings).expect("it starts");
    let tested = test(&server, server.address());
    server.stop();
    server.wait().expect("a good end");
    tested
}

fn source() -> String {
    goldens::folder("tiny-bert").to_string_lossy().into_owned()
}

fn delete(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> crate::client::Answer {
    send(address, &request("DELETE", path, headers, b"")).expect("an answer")
}

#[test]
fn a_model_is_added_once_by_many_requests_serves_and_is_removed() {
    empty(settings(), |_, address| {
        assert_eq!(get(address, "/readyz").json(), json!({"ready": true, "state": "ready"}));
        let embed = || post(address, "/v1/embeddings", &json!({"input": "a", "model": "small"}));
        assert_eq!(embed().header("x-sconce-code"), Some("model_not_found"));
        let body = json!({"source": source(), "name": "small"});
        let first = post(address, "/v1/models", &body);
        let phase = first.expect(202);
        assert_eq!((&phase["id"], &phase["object"]), (&"small".into(), &"model".into()));
        assert!(phase["phase"].is_string(), "{phase}");
        let statuses = thread::scope(|scope| {
            let add = || post_with(address, "/v1/models", &[("prefer", "wait=60")], &body).status;
            let all: Vec<_> = (0..100).map(|_| scope.spawn(add)).collect();
            all.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert_eq!(statuses, [200; 100]);
        assert!((metric(address, "sconce_loads_total") - 1.0).abs() < 0.5, "one load");
        assert_eq!(embed().status, 200);
        assert_eq!(get(address, "/v1/models").json()["data"].as_array().map(Vec::len), Some(1));
        assert_eq!(get(address, "/models/small/readyz").status, 200);
        let other = json!({"source": "./nowhere/else", "name": "small"});
        assert_eq!(post(address, "/v1/models", &other).expect(400)["error"]["code"], "invalid_request");
        let removed = delete(address, "/v1/models/small", &[]).expect(200);
        assert_eq!(removed, json!({"id": "small", "object": "model", "deleted": true}));
        assert_eq!(embed().header("x-sconce-code"), Some("model_not_found"));
        assert_eq!(delete(address, "/v1/models/small", &[]).status, 404);
        let began = Instant::now();
        while metric(address, "sconce_unloads_total") < 0.5 {
            assert!(began.elapsed() < Duration::from_mins(1), "{}", get(address, "/metrics").text());
            thread::sleep(Duration::from_millis(10));
        }
        let again = post_with(address, "/v1/models", &[("prefer", "wait=60")], &body);
        assert_eq!((again.status, embed().status), (200, 200), "{}", again.text());
    });
}

#[test]
fn a_model_that_cannot_be_loaded_does_not_end_the_server() {
    empty(settings(), |_, address| {
        let body = json!({"source": "./nowhere/model"});
        let failed = post_with(address, "/v1/models", &[("prefer", "wait=60")], &body);
        assert_eq!((failed.status, failed.header("x-sconce-code")), (503, Some("not_ready")));
        assert!(failed.text().contains("loading failed"), "{}", failed.text());
        assert_eq!(get(address, "/v1/report").json()["state"], "degraded");
        assert_eq!(delete(address, "/v1/models/model", &[]).status, 200);
        assert_eq!(get(address, "/v1/report").json()["state"], "ready");
        assert!(post(address, "/v1/fit", &body).header("x-sconce-code").is_some());
        for path in ["/v1/models", "/v1/fit"] {
            let refused = post(address, path, &json!({"source": "another/one"}));
            assert_eq!((refused.status, refused.header("x-sconce-code")), (403, Some("forbidden")), "{path}");
            assert_eq!(post(address, path, &json!({"name": "no source"})).status, 400, "{path}");
        }
    });
}

#[test]
fn a_managed_model_that_cannot_be_loaded_is_removed() {
    empty(settings(), |_, address| {
        let body = json!({"source": "./nowhere/model", "managed": true});
        let failed = post_with(address, "/v1/models", &[("prefer", "wait=60")], &body);
        assert_eq!((failed.status, failed.header("x-sconce-code")), (503, Some("not_ready")));
        assert!(failed.text().contains("loading failed"), "{}", failed.text());
        let began = Instant::now();
        while get(address, "/v1/models").json()["data"].as_array().is_none_or(|models| !models.is_empty()) {
            assert!(began.elapsed() < Duration::from_mins(1), "it is still listed");
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(get(address, "/v1/report").json()["state"], "ready");
        let body = json!({"source": source(), "managed": true});
        let loaded = post_with(address, "/v1/models", &[("prefer", "wait=60")], &body);
        assert_eq!(loaded.status, 200, "{}", loaded.text());
    });
}

#[test]
fn only_operators_change_models() {
    let keys = Keys::read("one\ntwo operator\n").expect("keys");
    empty(Settings { http: HttpSettings { keys, ..settings().http }, ..settings() }, |_, address| {
        let (one, two) = ([("x-api-key", "one")], [("x-api-key", "two"), ("prefer", "wait=60")]);
        let body = json!({"source": source()});
        for path in ["/v1/models", "/v1/fit"] {
            assert_eq!(post_with(address, path, &one, &body).status, 403, "{path}");
            assert_eq!(post_with(address, path, &two, &body).status, 200, "{path}");
        }
        assert_eq!(delete(address, "/v1/models/tiny-bert", &one).status, 403);
        assert_eq!(delete(address, "/v1/models/tiny-bert", &two).status, 200);
    });
}

#[test]
fn a_fit_is_estimated_without_a_load() {
    empty(settings(), |server, address| {
        let fit = || -> Value { post(address, "/v1/fit", &json!({"source": source()})).expect(200) };
        let before = fit();
        let flags = |fit: &Value| ["fits", "fits_alone", "loaded", "proved"].map(|name| fit[name] == true);
        assert_eq!(flags(&before), [true, true, false, false], "{before}");
        assert_eq!(before["task"], "embed");
        assert!(before["bytes"]["peak"].as_u64().is_some_and(|bytes| bytes > 0), "{before}");
        assert!(before["free_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{before}");
        assert!(before["tokens_per_second"].is_null() && before["load_seconds"].is_null(), "{before}");
        assert!(before["class"].is_null(), "{before}");
        let codes: Vec<&str> = before["placements"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|one| one["obstacle"]["code"].as_str())
            .collect();
        assert!(!codes.is_empty(), "a fake Mac has no CUDA: {before}");
        assert!(
            metric(address, "sconce_loads_total") < 0.5
                && get(address, "/v1/models").json()["data"] == json!([])
        );
        let sources = vec![source()];
        server.reload(Settings { memory_limit: Some(1), model_sources: sources.clone(), ..settings() });
        assert_eq!(flags(&fit()), [false; 4], "not even the server itself fits");
        server.reload(Settings { model_sources: sources, ..settings() });
        post_with(address, "/v1/models", &[("prefer", "wait=60")], &json!({"source": source()})).expect(200);
        let after = fit();
        assert_eq!(flags(&after), [true, true, true, true], "{after}");
        let report = get(address, "/v1/report").json();
        assert_eq!(after["placement"], report["models"][0]["serving"]["placement"]);
        assert!(
            after["class"].is_string() && after["class"] == report["models"][0]["serving"]["class"],
            "{after}"
        );
        assert!(after["tokens_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{after}");
        assert!(after["load_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{after}");
        let measured = &report["models"][0]["memory"]["measured"];
        assert_eq!(after["bytes"]["resident"], measured["resident"], "the estimate is that of the last load");
    });
}
