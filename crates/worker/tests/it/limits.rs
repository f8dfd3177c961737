//! Limits: the largest legal requests and slow readers neither delay other requests nor exceed the memory budget.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sconce::EngineId;
use sconce_http::{Keys, Settings as HttpSettings};
use sconce_testkit::fake::{FakeEngine, Fault};
use sconce_worker::{LoadPolicy, Serve, Server, Settings};
use serde_json::{Value, json};

use crate::client::{Connection, get, post, post_with, request, send};
use crate::generation;
use crate::harness::{METAL, TestServer, fake_builder, settings, start, tiny_builder, tiny_with};

/// Maximum body in the test of all routes.
const BODY: usize = 2 << 20;
/// Maximum inputs of a request.
const INPUTS: usize = 2048;

/// Texts that just fit into a body.
fn texts() -> Vec<String> {
    vec!["a ".repeat(BODY / INPUTS / 2 - 8); INPUTS]
}

/// Model, route and its largest body.
fn largest() -> Vec<(&'static str, &'static str, Value)> {
    let texts = texts();
    let long = "a ".repeat(8 << 10);
    let ids = vec![vec![7; BODY / INPUTS / 2 - 8]; INPUTS];
    let types: Vec<&str> =
        ["float", "int8", "uint8", "binary", "ubinary", "base64"].into_iter().cycle().take(60).collect();
    let pairs: Vec<[&String; 1]> = texts.iter().map(|text| [text]).collect();
    let sentences = json!({"source_sentence": long, "sentences": &texts[1..]});
    // Token embeddings are limited by their number of values.
    let (tokens, matched) = (vec!["a ".repeat(130); 1000], vec!["a ".repeat(60); 450]);
    vec![
        ("tiny-bert", "/", json!({"inputs": texts})),
        ("tiny-bert", "/embed", json!({"inputs": texts, "normalize": false})),
        ("tiny-bert", "/embed_all", json!({"inputs": tokens})),
        ("tiny-bert", "/similarity", json!({"inputs": sentences})),
        ("tiny-bert", "/tokenize", json!({"inputs": texts})),
        ("tiny-bert", "/decode", json!({"ids": ids})),
        (
            "tiny-bert",
            "/v1/embeddings",
            json!({"input": texts, "truncate": true, "encoding_format": "base64"}),
        ),
        ("tiny-bert", "/api/embed", json!({"input": texts})),
        ("tiny-bert", "/api/embeddings", json!({"prompt": long})),
        ("tiny-bert", "/api/show", json!({"model": "model", "unknown": texts})),
        ("tiny-bert", "/embeddings", json!({"input": texts, "truncate": true})),
        ("tiny-bert", "/v2/embed", json!({"texts": texts, "embedding_types": types})),
        ("tiny-bert-sparse", "/embed_sparse", json!({"inputs": texts})),
        ("tiny-bert-classify", "/predict", json!({"inputs": pairs})),
        ("tiny-bert-rerank", "/rerank", json!({"query": "a", "texts": texts, "return_text": true})),
        ("tiny-bert-rerank", "/v1/rerank", json!({"query": "a", "documents": texts})),
        (
            "tiny-bert-rerank",
            "/v2/rerank",
            json!({"query": "a", "documents": texts, "return_documents": true}),
        ),
        ("tiny-bert-tokens-plain", "/embed_all", json!({"inputs": matched})),
        ("tiny-bert-tokens-plain", "/rerank", json!({"query": long, "texts": matched})),
    ]
}

/// Latencies of `/livez` until `stop`.
fn probe(address: SocketAddr, stop: &AtomicBool) -> Vec<Duration> {
    let bytes = request("GET", "/livez", &[], b"");
    let mut connection = Connection::open(address).expect("a connection");
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) || times.len() < 20 {
        let began = Instant::now();
        assert_eq!(connection.ask(&bytes).expect("an answer").status, 200);
        times.push(began.elapsed());
        thread::sleep(Duration::from_millis(2));
    }
    times
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// 99th percentile of the latency of `/livez` during `work`.
fn p99_beside(address: SocketAddr, work: impl FnOnce()) -> Duration {
    /// Stops the probe also if `work` panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let probing = scope.spawn(|| probe(address, &stop));
        let stops = Stop(&stop);
        work();
        drop(stops);
        p99(probing.join().expect("it lives"))
    })
}

/// Keeps two cores busy, as two requests do.
fn spin() {
    let until = Instant::now() + Duration::from_secs(1);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| while Instant::now() < until {});
        }
    });
}

/// Route, a body with this text as its prompt, and whether a prompt beyond the context is an error.
type PromptRoute = (&'static str, fn(&str) -> Value, bool);

/// The routes of text generation.
const PROMPTS: [PromptRoute; 8] = [
    ("/v1/chat/completions", |text| json!({"messages": conversation(text), "max_tokens": 4}), true),
    ("/v1/completions", |text| json!({"prompt": text, "max_tokens": 4}), true),
    ("/v1/responses", |text| json!({"input": text, "max_output_tokens": 4}), true),
    ("/v1/messages", |text| json!({"model": "model", "messages": conversation(text), "max_tokens": 4}), true),
    ("/v1/messages/count_tokens", |text| json!({"model": "model", "messages": conversation(text)}), false),
    ("/api/chat", |text| json!({"messages": conversation(text), "options": {"num_predict": 4}}), true),
    ("/api/generate", |text| json!({"prompt": text, "options": {"num_predict": 4}}), true),
    ("/apply-template", |text| json!({"messages": conversation(text)}), false),
];

/// Routes of operators that name a source.
const SOURCES: [&str; 2] = ["/v1/fit", "/v1/models"];
/// Routes of operators that read no body.
const BODILESS: [&str; 3] = ["/v1/drain", "/v1/pause", "/v1/resume"];

fn conversation(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// Settings of a server whose bodies have up to [`BODY`] bytes.
fn large_bodies() -> Settings {
    Settings { http: HttpSettings { max_body: BODY + (64 << 10), ..settings().http }, ..settings() }
}

/// Sends a request twice at once and returns the statuses. `/livez` is answered meanwhile.
fn twice(address: SocketAddr, what: &str, path: &str, body: &Value, idle: Duration) -> Vec<u16> {
    let bytes = request("POST", path, &[], body.to_string().as_bytes());
    let began = Instant::now();
    let mut statuses = Vec::new();
    let busy = p99_beside(address, || {
        statuses = thread::scope(|scope| {
            let ask = || scope.spawn(|| send(address, &bytes).expect("an answer").status);
            [ask(), ask()].map(|one| one.join().expect("no panic")).to_vec()
        });
    });
    println!("{what} {path}: {statuses:?} in {:?}, p99 {busy:?}, {idle:?} idle", began.elapsed());
    // Other processes on the machine slow it down as well.
    assert!(busy < Duration::from_millis(50) + 3 * idle, "{what} {path}: {busy:?}, {idle:?} idle");
    statuses
}

#[test]
fn livez_is_answered_while_every_route_has_its_largest_input_twice() {
    let bodies = largest();
    let mut described: Vec<String> = Vec::new();
    for name in
        ["tiny-bert", "tiny-bert-sparse", "tiny-bert-classify", "tiny-bert-rerank", "tiny-bert-tokens-plain"]
    {
        let server = tiny_with(name, large_bodies());
        let address = *server;
        if described.is_empty() {
            let paths = get(address, "/openapi.json").json()["paths"].as_object().expect("paths").clone();
            let posts = paths.iter().filter(|(_, methods)| methods.get("post").is_some());
            let posts = posts.map(|(path, _)| path.clone());
            described = posts.filter(|path| !BODILESS.contains(&path.as_str())).collect();
        }
        let idle = p99_beside(address, spin);
        for path in SOURCES {
            let statuses = twice(address, name, path, &json!({"source": "a".repeat(BODY)}), idle);
            assert!(statuses.iter().all(|status| (400..500).contains(status)), "{path}: {statuses:?}");
        }
        for (_, path, body) in bodies.iter().filter(|(model, ..)| *model == name) {
            let statuses = twice(address, name, path, body, idle);
            assert!(statuses.contains(&200), "{name} {path}: {statuses:?}");
            assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{name} {path}: {statuses:?}");
        }
    }
    let measured = |path: &&String| {
        bodies
            .iter()
            .map(|(_, path, _)| path)
            .chain(PROMPTS.iter().map(|(path, ..)| path))
            .chain(&SOURCES)
            .any(|one| one == path)
    };
    let missing: Vec<&String> = described.iter().filter(|path| !measured(path)).collect();
    assert!(missing.is_empty(), "no largest input for {missing:?}");
}

#[test]
fn livez_is_answered_while_prompts_fill_the_context_and_the_body() {
    let folder = generation::folder();
    let server = generation::serve(folder.path(), large_bodies());
    let idle = p99_beside(*server, spin);
    // The context is 4,096 tokens.
    let (context, largest) = ("w4 ".repeat(4000), "w4 ".repeat(BODY / 3));
    for (path, body, is_limited) in PROMPTS {
        assert_eq!(twice(*server, "context", path, &body(&context), idle), [200, 200], "{path}");
        let expected = if is_limited { 400 } else { 200 };
        assert_eq!(twice(*server, "body", path, &body(&largest), idle), [expected; 2], "{path}");
    }
}

#[test]
fn a_server_with_the_largest_requests_in_flight_stops_within_its_grace() {
    let grace = Duration::from_secs(5);
    let server =
        tiny_with("tiny-bert", Settings { http: HttpSettings { grace, ..settings().http }, ..settings() });
    let address = *server;
    let body = json!({"texts": texts(), "embedding_types": vec!["base64"; 60]}).to_string();
    let bytes = request("POST", "/v2/embed", &[], body.as_bytes());
    let asking: Vec<_> = (0..2)
        .map(|_| {
            let bytes = bytes.clone();
            thread::spawn(move || send(address, &bytes).map(|answer| answer.status))
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    drop(server);
    // A busy machine may delay shutdown, but it does not wait for the requests.
    assert!(began.elapsed() < 4 * grace, "{:?}", began.elapsed());
    for one in asking {
        let answered = one.join().expect("no panic");
        assert!(answered.is_err() || answered.is_ok_and(|status| [200, 429, 503].contains(&status)));
    }
}

#[test]
fn types_are_encoded_once_and_a_list_of_them_is_bounded() {
    let server = tiny_with("tiny-bert", settings());
    let ask =
        |types: Vec<&str>| post(*server, "/v2/embed", &json!({"texts": ["a"], "embedding_types": types}));
    let once = ask(vec!["float", "int8"]).expect(200);
    assert_eq!(
        ask(vec!["int8", "float", "float", "int8", "float"]).expect(200)["embeddings"],
        once["embeddings"]
    );
    assert_eq!(ask(vec!["float"; 10_000]).status, 400);
    let ranked = tiny_with("tiny-bert-rerank", settings());
    let body = json!({"query": "a", "documents": ["b"], "rank_fields": vec!["text"; 10_000]});
    assert_eq!(post(*ranked, "/v1/rerank", &body).status, 400);
}

/// Sends a request and does not read the response.
fn never_reads(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.write_all(bytes).expect("a request can be sent");
    stream
}

/// Repeats a request until it has this status.
#[track_caller]
fn until(status: u16, ask: impl Fn() -> u16) {
    let began = Instant::now();
    while ask() != status {
        assert!(began.elapsed() < Duration::from_mins(1), "never {status}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_answer_that_nobody_reads_counts_until_its_connection_is_closed() {
    // A response of about 30 MB: larger than socket buffers, and two exceed the memory budget.
    let settings = Settings {
        http: HttpSettings { max_bodies: 40 << 20, write_limit: Duration::from_secs(2), ..settings().http },
        ..settings()
    };
    let server = tiny_with("tiny-bert", settings);
    let address = *server;
    let body = json!({"inputs": vec!["a ".repeat(128 << 10); 4]}).to_string();
    let bytes = request("POST", "/tokenize", &[], body.as_bytes());
    let mut unread = never_reads(address, &bytes);
    unread.set_read_timeout(Some(Duration::from_mins(1))).expect("a timeout");
    assert_eq!(unread.peek(&mut [0; 1]).expect("the answer begins"), 1);
    let ask = || send(address, &bytes).expect("an answer").status;
    assert_eq!(ask(), 429, "the first answer is held");
    assert_eq!(get(address, "/livez").status, 200);
    until(200, ask);
    // Buffered bytes arrive, then the connection ends.
    let mut rest = Vec::new();
    let _ = unread.read_to_end(&mut rest);
    let head = String::from_utf8_lossy(&rest[..rest.len().min(2000)]).into_owned();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    assert!(
        length.is_some_and(|length| length > 20 << 20 && rest.len() < length),
        "{} of {length:?}",
        rest.len()
    );
}

#[test]
fn an_answer_is_bounded_and_tokens_of_text_routes_are_charged() {
    let keys = Keys::read("slow rate=100\nfree\n").expect("keys");
    let server = tiny_with(
        "tiny-bert",
        Settings { http: HttpSettings { keys, max_answer: 64 << 10, ..settings().http }, ..settings() },
    );
    let ask = |key: &str, path: &str, body: &Value| post_with(*server, path, &[("x-api-key", key)], body);
    let refused = ask("free", "/tokenize", &json!({"inputs": "a ".repeat(2000)}));
    assert_eq!(refused.status, 413, "{}", refused.text());
    assert!(refused.text().contains("limit of 65536 bytes"), "{}", refused.text());
    let texts = json!({"inputs": "a ".repeat(400)});
    assert_eq!(ask("slow", "/tokenize", &texts).status, 200);
    assert_eq!(ask("slow", "/tokenize", &texts).status, 429, "400 tokens are used up");
    assert_eq!(ask("slow", "/decode", &json!({"ids": [5]})).status, 429);
    assert_eq!(ask("slow", "/embed", &json!({"inputs": "a"})).status, 429);
    assert_eq!(ask("free", "/tokenize", &texts).status, 200);
    let server = tiny_with(
        "tiny-bert",
        Settings {
            http: HttpSettings { keys: Keys::read("slow rate=100").expect("a key"), ..settings().http },
            ..settings()
        },
    );
    let ask =
        || post_with(*server, "/decode", &[("x-api-key", "slow")], &json!({"ids": vec![5; 500]})).status;
    assert_eq!([ask(), ask()], [200, 429]);
}

/// A server with tiny-bert at 50,000 tokens per second.
fn slow(settings: Settings) -> TestServer {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Slow(20));
    start(fake_builder(engine, Duration::from_secs(30), home.path()), settings, Some(home)).ready()
}

#[test]
fn one_large_request_marked_interactive_has_no_other_refused() {
    let server = slow(settings());
    let address = *server;
    // About five seconds of work in a queue of two.
    let large = json!({"inputs": vec!["one of very many texts ".repeat(20); 2000]});
    let large = thread::spawn(move || {
        post_with(address, "/embed", &[("x-sconce-priority", "interactive")], &large).status
    });
    let waits = || crate::client::metric(address, "te_queue_size") > 0.0;
    let began = Instant::now();
    while !waits() {
        assert!(began.elapsed() < Duration::from_mins(1), "it never waits");
        thread::sleep(Duration::from_millis(5));
    }
    let others: Vec<_> = (0..40)
        .map(|number| {
            thread::spawn(move || {
                let priority = if number % 2 == 0 { "interactive" } else { "bulk" };
                let body = json!({"inputs": vec!["a short text"; 4]});
                post_with(address, "/embed", &[("x-sconce-priority", priority)], &body).status
            })
        })
        .collect();
    let statuses: Vec<u16> = others.into_iter().map(|one| one.join().expect("no panic")).collect();
    assert!(waits(), "the others do not wait for the end of the large one");
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert_eq!(large.join().expect("no panic"), 200);
}

#[test]
fn connections_beyond_the_limit_wait_for_one_to_end() {
    let server = tiny_with(
        "tiny-bert",
        Settings { http: HttpSettings { max_connections: 2, ..settings().http }, ..settings() },
    );
    let bytes = request("GET", "/livez", &[], b"");
    let mut held: Vec<Connection> = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::open(*server).expect("a connection");
        assert_eq!(connection.ask(&bytes).expect("an answer").status, 200);
        held.push(connection);
    }
    let mut third = TcpStream::connect(*server).expect("the system takes it");
    third.write_all(&bytes).expect("a request can be sent");
    third.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    assert!(third.read(&mut [0; 1]).is_err(), "a third connection exceeds the limit");
    drop(held);
    third.set_read_timeout(Some(Duration::from_mins(1))).expect("a timeout");
    let mut start = [0; 12];
    third.read_exact(&mut start).expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 200");
}

#[test]
fn a_request_beyond_the_time_limit_is_refused_and_leaves_the_queue() {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Slow(20_000));
    let builder = fake_builder(engine, Duration::from_mins(1), home.path());
    let limits = Settings {
        http: HttpSettings { time_limit: Duration::from_millis(300), ..settings().http },
        ..settings()
    };
    let server = start(builder, limits, Some(home)).ready();
    let refused = post(*server, "/v1/embeddings", &json!({"input": vec!["some words that take long "; 40]}));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "timed_out");
    assert!(refused.text().contains("0.3 s"), "{}", refused.text());
}

#[test]
fn token_vectors_beyond_their_number_are_refused() {
    let server = tiny_with("tiny-bert", Settings { max_values: 320, ..settings() });
    // Ten tokens of hidden size 32, two of them special tokens.
    let ask = |words: usize| post(*server, "/embed_all", &json!({"inputs": "a ".repeat(words)}));
    ask(8).expect(200);
    let refused = ask(9);
    assert_eq!(refused.status, 413, "{}", refused.text());
    assert!(refused.text().contains("at most 320 values; this one would have 352"), "{}", refused.text());
    assert_eq!(post(*server, "/embed", &json!({"inputs": "a ".repeat(100)})).status, 200);
}

#[test]
fn tokens_that_a_full_queue_refuses_are_refunded() {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Slow(20_000));
    let builder = fake_builder(engine, Duration::from_mins(1), home.path());
    let keys = Keys::read("paid rate=1000\n").expect("a key");
    let limits =
        Settings { http: HttpSettings { keys, ..settings().http }, queue_seconds: 0.001, ..settings() };
    let server = start(builder, limits, Some(home)).ready();
    let address = *server;
    let ask = move |inputs: Value| {
        post_with(address, "/embed", &[("x-api-key", "paid")], &json!({"inputs": inputs}))
    };
    // One request in flight and one waiting fill the queue for some seconds.
    let first: Vec<_> = (0..2)
        .map(|_| {
            let one = thread::spawn(move || ask(json!("a ".repeat(100))).status);
            thread::sleep(Duration::from_millis(300));
            one
        })
        .collect();
    // The bucket of the key holds less than two of these requests.
    for _ in 0..4 {
        let refused = ask(json!(vec!["a ".repeat(100); 10]));
        assert_eq!(refused.status, 429);
        assert!(refused.text().contains("overloaded"), "{}", refused.text());
    }
    for one in first {
        assert_eq!(one.join().expect("no panic"), 200);
    }
}

/// The status of a request with this `Host`.
fn named(address: SocketAddr, method: &str, path: &str, host: &str) -> u16 {
    let bytes = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n");
    send(address, bytes.as_bytes()).expect("an answer").status
}

#[test]
fn without_keys_only_hosts_of_its_own_are_served() {
    let allowed_hosts = vec!["pool.example".to_owned()];
    let server = tiny_with(
        "tiny-bert",
        Settings { http: HttpSettings { allowed_hosts, ..settings().http }, ..settings() },
    );
    let port = server.address.port();
    for host in ["localhost", "127.0.0.1", "[::1]:80", "pool.example", &format!("localhost:{port}")] {
        assert_eq!(named(*server, "GET", "/v1/models", host), 200, "{host}");
    }
    for path in ["/v1/models", "/metrics", "/v1/report", "/info", "/openapi.json"] {
        assert_eq!(named(*server, "GET", path, "evil.example"), 403, "{path}");
    }
    for path in ["/embed", "/v1/drain", "/v1/embeddings", "/"] {
        assert_eq!(named(*server, "POST", path, "evil.example:8080"), 403, "{path}");
    }
    assert_eq!(named(*server, "GET", "http://evil.example/v1/models", "localhost"), 403);
    assert_eq!(named(*server, "GET", "/livez", "evil.example"), 200, "probes may name any host");
    let refused = send(*server, b"GET /info HTTP/1.1\r\nhost: evil.example\r\n\r\n").expect("an answer");
    assert!(refused.text().contains("--allowed-hosts evil.example"), "{}", refused.text());
    // With API keys any host is allowed.
    let keys = Keys::read("one").expect("a key");
    server.running().reload(Settings { http: HttpSettings { keys, ..settings().http }, ..settings() });
    let bytes = b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nx-api-key: one\r\n\r\n";
    assert_eq!(send(*server, bytes).expect("an answer").status, 200);
}

#[test]
fn probes_without_a_key_see_no_paths() {
    let keys = Keys::read("one").expect("a key");
    let serve = |name: &str, builder| Serve {
        name: name.to_owned(),
        aliases: Vec::new(),
        builder,
        load: LoadPolicy::Startup,
        token_ids: false,
    };
    let missing = sconce::Model::builder("./no such folder").offline(true);
    let models = vec![serve("missing", missing), serve("model", tiny_builder("tiny-bert"))];
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = Server::start(
        listener,
        models,
        Settings { http: HttpSettings { keys, ..settings().http }, ..settings() },
    )
    .expect("it starts");
    let address = server.address();
    let ask = |path: &str, headers: &[(&str, &str)]| {
        send(address, &request("GET", path, headers, b"")).expect("an answer").text()
    };
    let began = Instant::now();
    while !ask("/startupz", &[]).contains("failed") || !ask("/startupz", &[]).contains("ready") {
        assert!(began.elapsed() < Duration::from_mins(2), "{}", ask("/startupz", &[]));
        thread::sleep(Duration::from_millis(20));
    }
    for path in ["/startupz", "/readyz", "/health", "/livez"] {
        let body = ask(path, &[]);
        assert!(!body.contains("no such folder"), "{path}: {body}");
    }
    let body = ask("/startupz", &[("x-api-key", "one")]);
    assert!(body.contains("no such folder"), "{body}");
    server.stop();
    server.wait().expect("a good end");
}

fn norm(vector: &[f32]) -> f32 {
    vector.iter().map(|x| x * x).sum::<f32>().sqrt()
}

#[test]
fn vectors_are_normalized_as_a_request_asks() {
    // The first model L2-normalizes its embeddings, the second does not.
    for (model, normalizes) in [("tiny-bert", true), ("tiny-roberta", false)] {
        let server = tiny_with(model, settings());
        let embed = |normalize: Option<bool>| -> Vec<f32> {
            let body = json!({"inputs": "a text of some words", "normalize": normalize});
            serde_json::from_value(post(*server, "/embed", &body).expect(200)[0].clone()).expect("a vector")
        };
        let (plain, unit, default) = (embed(Some(false)), embed(Some(true)), embed(None));
        assert!((norm(&unit) - 1.0).abs() < 1e-5, "{model}: {}", norm(&unit));
        assert!((norm(&plain) - 1.0).abs() > 0.05, "{model}: {}", norm(&plain));
        assert_eq!(unit, default, "{model}");
        let direction = plain.iter().map(|x| x / norm(&plain)).zip(&unit).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(direction, "{model}");
        // In a batch each row keeps its own norm.
        let texts: Vec<String> = (0..8).map(|n| "word ".repeat(1 + 5 * n)).collect();
        let ask = |texts: &[String]| -> Vec<Vec<f32>> {
            let body = json!({"inputs": texts, "normalize": false});
            serde_json::from_value(post(*server, "/embed", &body).expect(200)).expect("vectors")
        };
        let together = ask(&texts);
        for (text, vector) in texts.iter().zip(&together) {
            let alone = &ask(std::slice::from_ref(text))[0];
            let close = alone.iter().zip(vector).all(|(a, b)| (a - b).abs() < 1e-4 * norm(alone));
            assert!(close, "{model}: {alone:?}, {vector:?}");
        }
        let answer = post(*server, "/v1/embeddings", &json!({"input": "a text of some words"})).expect(200);
        let own: Vec<f32> = serde_json::from_value(answer["data"][0]["embedding"].clone()).expect("a vector");
        assert_eq!(own, if normalizes { unit } else { plain }, "{model}: as the model has it");
    }
}

#[test]
fn inputs_are_counted_and_measured_to_the_last_byte() {
    let server = tiny_with("tiny-bert", Settings { max_inputs: 3, ..settings() });
    let tokenize = |inputs: Value| post(*server, "/tokenize", &json!({"inputs": inputs})).status;
    assert_eq!(tokenize(json!(["a", "b", "c"])), 200);
    assert_eq!(tokenize(json!(["a", "b", "c", "d"])), 422);
    assert_eq!(tokenize(json!([])), 400);
    let longest = 256 << 10;
    assert_eq!(tokenize(json!("a".repeat(longest))), 200);
    assert_eq!(tokenize(json!("a".repeat(longest + 1))), 413);
    assert_eq!(tokenize(json!(["a", "a".repeat(longest + 1)])), 413);
    let body = json!({"inputs": "a"}).to_string();
    for (encoding, status) in [("identity", 200), ("gzip", 415)] {
        let bytes = request("POST", "/embed", &[("content-encoding", encoding)], body.as_bytes());
        assert_eq!(send(*server, &bytes).expect("an answer").status, status, "{encoding}");
    }
}

#[test]
fn headers_say_whether_long_texts_are_cut_and_the_body_goes_over_them() {
    let server = tiny_with("tiny-bert", settings());
    let long = "a ".repeat(500);
    let embed = |header: &str, truncate: Option<bool>| {
        let body = json!({"inputs": long, "truncate": truncate});
        let answer = post_with(*server, "/embed", &[("x-sconce-truncate", header)], &body);
        (answer.status, answer.header("x-sconce-truncated").map(str::to_owned))
    };
    let cut = (200, Some("1; 0:502>128".to_owned()));
    for header in ["truncate", "true"] {
        assert_eq!(embed(header, None), cut, "{header}");
        assert_eq!(embed(header, Some(false)).0, 422, "{header}");
    }
    for header in ["error", "false"] {
        assert_eq!(embed(header, None).0, 422, "{header}");
        assert_eq!(embed(header, Some(true)), cut, "{header}");
    }
    assert_eq!(embed("chunk", None), (200, Some("0".to_owned())));
    assert_eq!(embed("maybe", None).0, 422);
    let urgent = post_with(*server, "/embed", &[("x-sconce-priority", "urgent")], &json!({"inputs": "a"}));
    assert_eq!(urgent.status, 422, "{}", urgent.text());
}
