//! Several models in one server: asked by name, loaded on demand, unloaded when idle.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use sconce::EngineId;
use sconce_server::{Serve, Server, Settings, When};
use sconce_testkit::fake::FakeEngine;
use serde_json::json;

use crate::client::{get, metric, post, post_with};
use crate::stage::{fake_builder, settings};

/// Two models under the names `early` and `late`, the second on demand.
fn two<T>(settings: Settings, test: impl FnOnce(SocketAddr) -> T) -> T {
    let home = tempfile::tempdir().expect("a folder");
    let serve = |name: &str, when| {
        let builder = fake_builder(FakeEngine::new(EngineId::Candle), Duration::from_secs(5), home.path());
        Serve { name: name.to_owned(), aliases: Vec::new(), builder, when, token_ids: false }
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let both = vec![serve("early", When::Start), serve("late", When::Demand)];
    let server = Server::start(listener, both, settings).expect("it starts");
    let address = server.address();
    let began = Instant::now();
    while get(address, "/readyz").status != 200 {
        assert!(began.elapsed() < Duration::from_mins(1), "{}", get(address, "/readyz").text());
        thread::sleep(Duration::from_millis(5));
    }
    let tested = test(address);
    server.stop();
    server.wait().expect("a good end");
    tested
}

#[test]
fn models_go_by_their_names_and_one_must_be_named() {
    two(Settings { load_wait: Duration::from_mins(1), ..settings() }, |address| {
        let answer = post(address, "/v1/embeddings", &json!({"input": "a", "model": "early"}));
        assert_eq!(answer.header("x-sconce-model"), Some("early"));
        assert_eq!(answer.expect(200)["model"], "early");
        let refused = post(address, "/embed", &json!({"inputs": "a"}));
        assert!(refused.text().contains("x-sconce-model"), "{}", refused.text());
        assert_eq!(refused.status, 404);
        for path in ["/embed", "/"] {
            let named = post_with(address, path, &[("x-sconce-model", "late")], &json!({"inputs": "a"}));
            assert_eq!(named.header("x-sconce-model"), Some("late"), "{path}");
            named.expect(200);
        }
        assert_eq!(post(address, "/v1/embeddings", &json!({"input": "a", "model": "none"})).status, 404);
        let metrics = get(address, "/metrics").text();
        assert!(metrics.contains("sconce_answers_total{method=\"embed\",model=\"late\"} 2"), "{metrics}");
        let models = get(address, "/v1/models").json();
        assert_eq!(models["data"].as_array().map(Vec::len), Some(2));
    });
}

#[test]
fn a_request_for_a_model_that_is_not_loaded_waits_or_is_told_to_come_back() {
    two(settings(), |address| {
        let body = json!({"input": "a", "model": "late"});
        let refused = post_with(address, "/v1/embeddings", &[("prefer", "wait=0")], &body);
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.text());
        assert!(refused.text().contains("`late` is not ready: it"), "{}", refused.text());
        post_with(address, "/v1/embeddings", &[("prefer", "wait=60")], &body).expect(200);
        post(address, "/v1/embeddings", &body).expect(200);
        let report = get(address, "/v1/report").json();
        assert!(report["models"][1]["memory"]["measured"]["stays"].is_u64(), "{report}");
    });
}

#[test]
fn a_model_that_nobody_asks_is_unloaded_and_comes_back() {
    let idle = Some(Duration::from_millis(300));
    two(Settings { idle_unload: idle, load_wait: Duration::from_mins(1), ..settings() }, |address| {
        let began = Instant::now();
        while metric(address, "sconce_unloads_total") < 0.5 {
            assert!(began.elapsed() < Duration::from_secs(30), "{}", get(address, "/metrics").text());
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(get(address, "/readyz").status, 200, "asleep is ready");
        let asked = thread::scope(|scope| {
            let ask = || post(address, "/v1/embeddings", &json!({"input": "a", "model": "early"})).status;
            let all: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            all.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert_eq!(asked, [200; 8]);
        assert!(metric(address, "sconce_loads_total") > 1.5);
    });
}
