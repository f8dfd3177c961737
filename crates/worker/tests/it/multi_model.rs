//! Several models in one server: selection by name, path and task, loading on demand, unloading when idle.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use sconce::EngineId;
use sconce_testkit::fake::{FakeEngine, Fault};
use sconce_worker::{LoadPolicy, Serve, Server, Settings};
use serde_json::json;

use crate::client::{get, metric, post, post_with};
use crate::harness::{METAL, fake_builder, settings, tiny_builder};

/// Two models under the names `early` and `late`, the second on demand.
fn two<T>(settings: Settings, test: impl FnOnce(SocketAddr) -> T) -> T {
    let home = tempfile::tempdir().expect("a folder");
    let serve = |name: &str, load| {
        let builder = fake_builder(FakeEngine::new(EngineId::Candle), Duration::from_secs(5), home.path());
        Serve { name: name.to_owned(), aliases: Vec::new(), builder, load, token_ids: false }
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let both = vec![serve("early", LoadPolicy::Startup), serve("late", LoadPolicy::OnDemand)];
    let server = Server::start(listener, both, settings).expect("it starts");
    let address = server.address();
    let began = Instant::now();
    while get(address, "/readyz").status != 200 {
        assert!(began.elapsed() < Duration::from_mins(4), "{}", get(address, "/readyz").text());
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
        for word in ["x-sconce-model", "/models/NAME/", "`early`", "`late`"] {
            assert!(refused.text().contains(word), "no `{word}` in {}", refused.text());
        }
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
fn a_request_for_a_model_that_is_not_loaded_waits_or_gets_retry_after() {
    two(settings(), |address| {
        let body = json!({"input": "a", "model": "late"});
        let refused = post_with(address, "/v1/embeddings", &[("prefer", "wait=0")], &body);
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.text());
        assert!(refused.text().contains("`late` is not ready: "), "{}", refused.text());
        post_with(address, "/v1/embeddings", &[("prefer", "wait=60")], &body).expect(200);
        post(address, "/v1/embeddings", &body).expect(200);
        let report = get(address, "/v1/report").json();
        assert!(report["models"][1]["memory"]["measured"]["resident"].is_u64(), "{report}");
    });
}

#[test]
fn an_idle_model_is_unloaded_and_loaded_again_on_demand() {
    let idle = Some(Duration::from_millis(300));
    two(Settings { idle_unload: idle, load_wait: Duration::from_mins(1), ..settings() }, |address| {
        let began = Instant::now();
        while metric(address, "sconce_unloads_total") < 0.5 {
            assert!(began.elapsed() < Duration::from_mins(4), "{}", get(address, "/metrics").text());
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(get(address, "/readyz").status, 200, "unloaded is ready");
        let statuses = thread::scope(|scope| {
            let ask = || post(address, "/v1/embeddings", &json!({"input": "a", "model": "early"})).status;
            let all: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            all.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert_eq!(statuses, [200; 8]);
        assert!(metric(address, "sconce_loads_total") > 1.5);
    });
}

/// A model for each of three tasks; the classifier is loaded on demand.
fn three<T>(settings: Settings, test: impl FnOnce(SocketAddr) -> T) -> T {
    let serve = |name: &str, alias: &str, model: &str, load| {
        let (name, aliases) = (name.to_owned(), vec![alias.to_owned()]);
        Serve { name, aliases, builder: tiny_builder(model), load, token_ids: false }
    };
    let all = vec![
        serve("small", "text-embedding-3-small", "tiny-bert", LoadPolicy::Startup),
        serve("ranker", "org/ranker", "tiny-bert-rerank", LoadPolicy::Startup),
        serve("labels", "org/labels", "tiny-bert-classify", LoadPolicy::OnDemand),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = Server::start(listener, all, settings).expect("it starts");
    let address = server.address();
    let began = Instant::now();
    while get(address, "/readyz").status != 200 {
        assert!(began.elapsed() < Duration::from_mins(2), "{}", get(address, "/readyz").text());
        thread::sleep(Duration::from_millis(5));
    }
    // The card of a model on demand is read in the background.
    while get(address, "/v1/models/labels").json()["task"] != "classify" {
        assert!(began.elapsed() < Duration::from_mins(2), "{}", get(address, "/v1/models").text());
        thread::sleep(Duration::from_millis(5));
    }
    let tested = test(address);
    server.stop();
    server.wait().expect("a good end");
    tested
}

fn waiting() -> Settings {
    Settings { load_wait: Duration::from_mins(1), ..settings() }
}

#[test]
fn a_task_that_one_model_alone_has_reaches_it_without_a_name() {
    three(waiting(), |address| {
        let ready = || get(address, "/v1/models/labels").json()["ready"].clone();
        assert_eq!(ready(), false, "it is not loaded yet");
        for (path, body, model) in [
            ("/embed", json!({"inputs": "a"}), "small"),
            ("/", json!({"inputs": "a"}), "small"),
            ("/embed_all", json!({"inputs": "a"}), "small"),
            ("/similarity", json!({"inputs": {"source_sentence": "a", "sentences": ["b"]}}), "small"),
            ("/v1/embeddings", json!({"input": "a"}), "small"),
            ("/embeddings", json!({"input": "a"}), "small"),
            ("/v2/embed", json!({"texts": ["a"]}), "small"),
            ("/rerank", json!({"query": "a", "texts": ["b"]}), "ranker"),
            ("/v1/rerank", json!({"query": "a", "documents": ["b"]}), "ranker"),
            ("/v2/rerank", json!({"query": "a", "documents": ["b"]}), "ranker"),
            ("/predict", json!({"inputs": "a"}), "labels"),
        ] {
            let answer = post(address, path, &body);
            assert_eq!(answer.header("x-sconce-model"), Some(model), "{path}: {}", answer.text());
            answer.expect(200);
        }
        assert_eq!(ready(), true);
        let refused = post(address, "/embed_sparse", &json!({"inputs": "a"}));
        assert!(refused.status == 404 && refused.text().contains("`sparse`"), "{}", refused.text());
        // Every model supports these routes.
        for (path, body) in [("/tokenize", json!({"inputs": "a"})), ("/decode", json!({"ids": [2]}))] {
            let refused = post(address, path, &body);
            assert!(refused.status == 404 && refused.text().contains("/models/NAME/"), "{}", refused.text());
        }
        // A name takes precedence over the task, and an unknown name is refused.
        let headers = [("x-sconce-model", "ranker")];
        assert_eq!(post_with(address, "/embed", &headers, &json!({"inputs": "a"})).status, 424);
        assert_eq!(post(address, "/v1/embeddings", &json!({"input": "a", "model": "gpt"})).status, 404);
    });
    three(Settings { any_model: true, ..waiting() }, |address| {
        let answer = post(address, "/v1/embeddings", &json!({"input": "a", "model": "gpt"}));
        assert_eq!(answer.header("x-sconce-model"), Some("small"));
    });
}

#[test]
fn under_the_name_of_a_model_are_all_routes_for_it_alone() {
    three(waiting(), |address| {
        let own =
            post_with(address, "/embed", &[("x-sconce-model", "small")], &json!({"inputs": "a"})).expect(200);
        for name in ["small", "text-embedding-3-small", "%73mall"] {
            assert_eq!(
                post(address, &format!("/models/{name}/embed"), &json!({"inputs": "a"})).expect(200),
                own
            );
            assert_eq!(post(address, &format!("/models/{name}"), &json!({"inputs": "a"})).expect(200), own);
            assert_eq!(post(address, &format!("/models/{name}/"), &json!({"inputs": "a"})).expect(200), own);
            let answer = post(address, &format!("/models/{name}/v1/embeddings"), &json!({"input": "a"}));
            assert_eq!(answer.header("x-sconce-model"), Some("small"));
            answer.expect(200);
            assert_eq!(get(address, &format!("/models/{name}/info")).json()["model_id"], "small");
            assert_eq!(get(address, &format!("/models/{name}")).json()["model_id"], "small");
            assert_eq!(get(address, &format!("/models/{name}/readyz")).json()["ready"], true);
            let models = get(address, &format!("/models/{name}/v1/models?limit=1")).json();
            assert_eq!(models["data"].as_array().map(Vec::len), Some(1), "{models}");
        }
        let ranked =
            post(address, "/models/org/ranker/v2/rerank", &json!({"query": "a", "documents": ["b"]}));
        assert_eq!(ranked.header("x-sconce-model"), Some("ranker"));
        post(address, "/models/org%2Franker/tokenize", &json!({"inputs": "a"})).expect(200);
        post(address, "/models/org/labels/predict", &json!({"inputs": "a"})).expect(200);
        // No other model is reachable under the prefix, and unknown prefixes are refused.
        assert_eq!(post(address, "/models/ranker/embed", &json!({"inputs": "a"})).status, 424);
        let other = post(address, "/models/ranker/v1/embeddings", &json!({"input": "a", "model": "small"}));
        assert_eq!((other.status, &other.json()["error"]["code"]), (404, &"model_not_found".into()));
        for path in
            ["/models/none/embed", "/models/smaller/embed", "/models/small/models/small/embed", "/models/"]
        {
            assert_eq!(post(address, path, &json!({"inputs": "a"})).status, 404, "{path}");
        }
        let description = get(address, "/openapi.json").expect(200);
        assert_eq!(description["servers"][1]["url"], "/models/{model}");
        let names = &description["servers"][1]["variables"]["model"]["enum"];
        assert_eq!(names, &json!(["small", "ranker", "labels"]));
    });
}

#[test]
fn the_server_is_ready_once_every_startup_model_is_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    for (load, ready) in [(LoadPolicy::OnDemand, 200), (LoadPolicy::Startup, 503)] {
        let runtime = sconce::Runtime::builder().home(crate::harness::shared_home()).offline(true).build();
        let builder = sconce::Model::builder(&missing.to_string_lossy()).runtime(&runtime);
        let builder = builder.engine(EngineId::Candle).dtype(sconce::Dtype::F32);
        let name = |name: &str| (name.to_owned(), Vec::new());
        let (open, aliases) = name("open");
        let open = Serve {
            name: open,
            aliases,
            builder: tiny_builder("tiny-bert"),
            load: LoadPolicy::Startup,
            token_ids: false,
        };
        let (late, aliases) = name("missing");
        let late = Serve { name: late, aliases, builder, load, token_ids: false };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Server::start(listener, vec![open, late], settings()).expect("it starts");
        let address = server.address();
        let until = |path: &str, status: u16| {
            let began = Instant::now();
            while get(address, path).status != status {
                assert!(began.elapsed() < Duration::from_mins(2), "{path}: {}", get(address, path).text());
                thread::sleep(Duration::from_millis(20));
            }
        };
        // Each load has succeeded or failed.
        until("/startupz", 200);
        let readyz = get(address, "/readyz");
        assert_eq!(readyz.status, ready, "{load:?}: {}", readyz.text());
        assert_eq!(get(address, "/health").status, ready);
        assert_eq!(get(address, "/v1/report").json()["ready"], ready == 200);
        assert_eq!(get(address, "/models/open/readyz").status, 200);
        post(address, "/models/open/embed", &json!({"inputs": "a"})).expect(200);
        if ready == 503 {
            let body = readyz.json();
            assert_eq!(body["not_ready"], json!(["missing"]), "{body}");
            let reason = body["reason"].as_str().expect("a reason");
            assert!(reason.starts_with("`missing`: loading failed: "), "{reason}");
            assert_eq!(get(address, "/models/missing/readyz").status, 503);
            // Probes retry the load, which succeeds once the files exist.
            let golden = sconce_testkit::goldens::folder("tiny-bert");
            copy(&golden, &folder.path().join("copy"));
            std::fs::rename(folder.path().join("copy"), &missing).expect("a name");
            until("/readyz", 200);
            post(address, "/models/missing/embed", &json!({"inputs": "a"})).expect(200);
        }
        server.stop();
        server.wait().expect("a good end");
    }
}

#[test]
fn a_model_is_loaded_while_another_is_proved() {
    let homes = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    // A probe on the GPU hangs: the proof takes as long as the timeout of a case.
    let hangs = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Hang);
    let slow = fake_builder(hangs, Duration::from_secs(5), homes[0].path());
    let quick = fake_builder(FakeEngine::new(EngineId::Candle), Duration::from_secs(5), homes[1].path());
    quick.clone().open().expect("it is proved beforehand");
    let serve = |name: &str, builder| {
        let aliases = Vec::new();
        Serve { name: name.to_owned(), aliases, builder, load: LoadPolicy::Startup, token_ids: false }
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let both = vec![serve("slow", slow), serve("quick", quick)];
    let server = Server::start(listener, both, settings()).expect("it starts");
    let address = server.address();
    let began = Instant::now();
    while get(address, "/models/quick/readyz").status != 200 {
        assert!(began.elapsed() < Duration::from_mins(2), "{}", get(address, "/startupz").text());
        thread::sleep(Duration::from_millis(5));
    }
    let startup = get(address, "/startupz").json();
    assert_eq!(startup["models"]["slow"]["phase"], "proving", "{startup}");
    post(address, "/models/quick/embed", &json!({"inputs": "a"})).expect(200);
    server.stop();
    server.wait().expect("a good end");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

#[test]
fn token_ids_are_refused_unless_they_are_enabled() {
    two(settings(), |address| {
        for (path, field) in [("/models/early/v1/embeddings", "input"), ("/models/early/embed", "inputs")] {
            assert_eq!(post(address, path, &json!({ field: "a" })).status, 200, "{path}");
            for ids in [json!([5, 6]), json!([[5, 6], [7]])] {
                let refused = post(address, path, &json!({ field: ids }));
                assert_eq!(refused.header("x-sconce-code"), Some("invalid_request"), "{path}");
                let text = refused.text();
                assert!(text.contains("check_embedding_ctx_length=False"), "{path}: {text}");
            }
        }
    });
}
