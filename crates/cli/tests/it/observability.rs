//! The log in both formats, and `sconce top`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::harness::Sandbox;
use crate::serve::{converse, wait_until_ready};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

struct Seen {
    child: Child,
    address: SocketAddr,
    first: String,
    /// The lines after the first, as they arrive.
    rest: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

fn serve(sandbox: &Sandbox, arguments: &[&str]) -> Seen {
    serve_with(sandbox, &[&["--offline"], arguments].concat(), &[])
}

fn serve_with(sandbox: &Sandbox, arguments: &[&str], environment: &[(&str, &str)]) -> Seen {
    let fixed = ["serve", "tiny-bert", "--port", "0", "--engine", "candle", "--dtype", "f32"];
    let mut command = sandbox.command(&[&fixed, arguments].concat());
    command.envs(environment.iter().copied());
    let mut child = command.stdin(Stdio::null()).spawn().expect("it starts");
    let mut words = BufReader::new(child.stderr.take().expect("its words"));
    let mut first = String::new();
    words.read_line(&mut first).expect("it says where it listens");
    let at = first.find("127.0.0.1:").unwrap_or_else(|| panic!("no address: {first}"));
    let end = first[at..].find(['"', '\n']).expect("the end of an address");
    let address = first[at..at + end].parse().expect("an address");
    let rest = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&rest);
    let reading = std::thread::spawn(move || {
        for line in words.lines() {
            *heard.lock().expect("no panic") += &(line.expect("text") + "\n");
        }
    });
    wait_until_ready(address);
    Seen { child, address, first, rest, reading }
}

impl Seen {
    fn embed(&self, headers: &str) -> String {
        let body = r#"{"inputs": ["a text", "another one"]}"#;
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        write!(
            stream,
            "POST /embed HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n{body}",
            body.len()
        )
        .expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Stops the server and returns its log after the first line.
    fn end(mut self) -> String {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        assert_eq!(self.child.wait().expect("it ends").code(), Some(0));
        self.reading.join().expect("no panic");
        self.rest.lock().expect("no panic").clone()
    }

    /// Waits until the log contains `words`.
    fn wait_for(&self, words: &str) {
        while !self.rest.lock().expect("no panic").contains(words) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn as_json_every_line_is_an_object_and_names_the_trace() {
    let sandbox = Sandbox::new();
    let seen = serve(&sandbox, &["--log-format", "json", "--log-requests"]);
    let answer = seen.embed(&format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n"));
    assert!(
        answer.starts_with("HTTP/1.0 200") && answer.contains(&format!("traceparent: 00-{TRACE}-")),
        "{answer}"
    );
    let sent = Command::new("kill").args(["-HUP", &seen.child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    seen.wait_for("configuration reloaded");
    let first = seen.first.clone();
    let all = first + &seen.end();
    let lines: Vec<Value> = all
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
        .collect();
    for line in &lines {
        let time = line["time"].as_str().expect("a time");
        assert!(time.len() == 24 && time.ends_with('Z') && line["level"].is_string(), "{line}");
    }
    let events: Vec<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!((events[0], *events.last().expect("lines")), ("listening", "stopping"));
    assert!(events.contains(&"configuration reloaded"), "{events:?}");
    let ready = lines.iter().find(|line| line["event"] == "model ready").expect("a line");
    assert_eq!((&ready["model"], &ready["placement"]), (&"tiny-bert".into(), &"candle/cpu/f32".into()));
    let request = lines.iter().find(|line| line["route"] == "/embed").expect("a line");
    assert_eq!((&request["status"], &request["texts"]), (&200.into(), &2.into()));
    assert_eq!(request["trace"], TRACE);
    let parts = ["tokenize_ms", "queue_ms", "compute_ms"].map(|name| request[name].as_f64().expect("a time"));
    assert!(parts.iter().sum::<f64>() <= request["ms"].as_f64().expect("a time"), "{request}");
}

#[test]
fn a_request_whose_client_left_is_logged() {
    let sandbox = Sandbox::new();
    let seen = serve(&sandbox, &["--log-format", "json", "--log-requests"]);
    let inputs = vec!["some words of a long text ".repeat(20); 2000];
    let body = serde_json::json!({ "inputs": inputs, "truncate": true }).to_string();
    // A client that leaves after its last byte is usually gone before its texts are computed.
    let is_logged = || {
        let mut stream = TcpStream::connect(seen.address).expect("a connection");
        let head = format!(
            "POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).expect("writes");
        drop(stream);
        std::thread::sleep(Duration::from_millis(100));
        seen.rest.lock().expect("no panic").contains("\"status\":499")
    };
    assert!((0..100).any(|_| is_logged()), "{}", seen.rest.lock().expect("no panic"));
    let rest = seen.end();
    let lines = rest.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let line = lines.into_iter().find(|line| line["status"] == 499).expect("a line");
    assert_eq!((&line["route"], &line["level"]), (&"/embed".into(), &"info".into()), "{line}");
}

#[test]
fn the_log_names_code_model_and_key_of_what_is_refused() {
    let sandbox = Sandbox::new();
    let keys = sandbox.with("keys", "secret name=web\nother\n");
    let seen = serve(&sandbox, &["--log-format", "json", "--log-requests", "--api-key-file", &keys]);
    let ask = |key: &str, path: &str, body: &str| {
        let headers = [("authorization", format!("Bearer {key}"))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        converse(seen.address, "POST", path, &headers, body).0
    };
    assert_eq!(ask("secret", "/embed", r#"{"inputs": []}"#), 400);
    assert_eq!(ask("other", "/v1/embeddings", r#"{"input": "a", "model": "gpt 4"}"#), 404);
    assert_eq!(ask("wrong", "/predict", r#"{"inputs": "a"}"#), 401);
    assert_eq!(ask("secret", "/tokenize", r#"{"inputs": "a"}"#), 200);
    let rest = seen.end();
    let lines: Vec<Value> = rest.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told = |route: &str| {
        let line = lines.iter().find(|line| line["route"] == route).expect("a line");
        ["code", "model", "key"].map(|name| line[name].as_str().unwrap_or("-").to_owned())
    };
    assert_eq!(told("/embed"), ["empty", "tiny-bert", "web"]);
    // The SHA-256 of `other` starts with these digits.
    assert_eq!(told("/v1/embeddings"), ["model_not_found", "gpt 4", "sha256:d9298a10"]);
    assert_eq!(told("/predict"), ["invalid_api_key", "-", "-"]);
    assert_eq!(told("/tokenize"), ["-", "-", "web"]);
}

#[test]
fn text_logs_are_short_and_requests_are_logged_only_on_request() {
    let sandbox = Sandbox::new();
    let seen = serve(&sandbox, &[]);
    assert!(seen.first.starts_with("listening on http://127.0.0.1:"), "{}", seen.first);
    seen.embed("");
    let rest = seen.end();
    assert!(
        rest.contains(" info model ready model=tiny-bert placement=candle/cpu/f32 tokens_per_second="),
        "{rest}"
    );
    assert!(rest.trim_end().ends_with(" info stopping") && !rest.contains("/embed"), "{rest}");
    sandbox.run(&["serve", "tiny-bert", "--log-format", "xml"]).fails(2, &["xml", "human", "json"]);
    let both = ["serve", "tiny-bert", "--offline", "--otlp-endpoint", "http://127.0.0.1:1"];
    sandbox.run(&both).fails(2, &["`otlp_endpoint`", "`offline` is set"]);
    sandbox
        .run(&["serve", "tiny-bert", "--otlp-endpoint", "collector:4318"])
        .fails(2, &["must start with `http://`"]);
}

#[test]
fn the_environment_selects_sampler_headers_and_resource_attributes() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let collector = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, messages) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut message = String::new();
            // The last bytes of a body close its outermost object.
            while !message.trim_end().ends_with("\n}") {
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes).expect("a request");
                message += &String::from_utf8_lossy(&bytes[..count]);
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}");
            let _ = sender.send(message);
        }
    });
    let environment = [
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20secret"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=lamps"),
    ];
    let seen = serve_with(&sandbox, &["--otlp-endpoint", &collector], &environment);
    let own = seen.embed("");
    let flags = |answer: &str| {
        let line = answer.lines().find_map(|line| line.strip_prefix("traceparent: ")).expect("a header");
        line[line.len() - 2..].to_owned()
    };
    assert_eq!(flags(&own), "00", "no request is sampled by itself");
    assert_eq!(flags(&seen.embed(&format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n"))), "01");
    let message = messages.recv_timeout(Duration::from_mins(2)).expect("spans");
    let (head, body) = message.split_once("\r\n\r\n").expect("a body");
    assert!(head.contains("x-key: a secret"), "{head}");
    let body: Value = serde_json::from_str(body).expect("JSON");
    let resource = body["resourceSpans"][0]["resource"]["attributes"].as_array().expect("attributes");
    let named = |name: &str| {
        let found = resource.iter().find(|attribute| attribute["key"] == name);
        found.unwrap_or_else(|| panic!("{name}: {body}"))["value"]["stringValue"].clone()
    };
    assert_eq!(named("service.name"), "lamps");
    assert_eq!(named("service.version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(named("deployment.environment.name"), "test");
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans");
    assert!(spans.iter().all(|span| span["traceId"] == TRACE), "{body}");
    seen.end();
    for (sampler, ratio, words) in
        [("half", "1", "`OTEL_TRACES_SAMPLER` is not supported"), ("traceidratio", "2", "from 0 to 1: `2`")]
    {
        let mut command = sandbox.command(&["config", "--otlp-endpoint", &collector]);
        command.env("OTEL_TRACES_SAMPLER", sampler).env("OTEL_TRACES_SAMPLER_ARG", ratio);
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{output:?}");
    }
}

/// Output with its numbers masked.
fn masked(page: &str) -> String {
    let mut masked = String::new();
    for line in page.lines() {
        let words = line.split_whitespace().map(|word| {
            let bare = word.trim_end_matches([',', ':']);
            let is_number =
                bare.parse::<f64>().is_ok() || bare.starts_with("http://") || word.contains(['█', '░']);
            if is_number { format!("N{}", &word[bare.len()..]) } else { word.to_owned() }
        });
        masked += &words.collect::<Vec<_>>().join(" ");
        masked += "\n";
    }
    // Suffixes such as `k` depend on the machine.
    masked.replace("N k", "N").replace("N M", "N")
}

#[test]
fn top_shows_models_and_their_placements() {
    let sandbox = Sandbox::new();
    let seen = serve(&sandbox, &[]);
    let url = format!("http://{}", seen.address);
    let top = || {
        let answer = sandbox.run(&["top", &url, "--once", "--interval", "0.3"]).succeeds();
        assert_eq!(answer.stderr, "");
        answer.stdout
    };
    seen.embed("");
    insta::assert_snapshot!("top", masked(&top()));
    sandbox.run(&["top", &url]).fails(2, &["needs a terminal", "hint: `sconce top --once`"]);
    seen.end();
    sandbox.run(&["top", &url, "--once"]).fails(2, &[&url, "could not connect"]);
    sandbox.run(&["top", "ftp://localhost:8080", "--once"]).fails(2, &["must start with `http://`"]);
}
