//! A pool manager written from docs/worker.md: starts a worker, receives callbacks, reads the report, drains it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, Mac};
use serde_json::Value;
use sha2::Sha256;

use crate::harness::Sandbox;

const TOKEN: &str = "a token that both know";

/// The callback server of the manager.
struct Manager {
    listener: TcpListener,
}

impl Manager {
    fn url(&self) -> String {
        format!("http://{}/workers", self.listener.local_addr().expect("an address"))
    }

    /// Receives the next callback and responds with `status`. An invalid or old signature fails the test.
    fn take_call(&self, status: u16) -> Value {
        let (stream, _) = self.listener.accept().expect("a call");
        stream.set_read_timeout(Some(Duration::from_mins(4))).expect("a limit");
        let (headers, body) = read(&mut BufReader::new(&stream));
        write!(&stream, "HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            .expect("an answer");
        let header = |name: &str| {
            let found = headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
            found.unwrap_or_else(|| panic!("no `{name}`"))
        };
        let time = header("x-sconce-timestamp");
        let mut hash = Hmac::<Sha256>::new_from_slice(TOKEN.as_bytes()).expect("a key");
        hash.update(format!("{time}.").as_bytes());
        hash.update(&body);
        let signature: String = hash
            .finalize()
            .into_bytes()
            .iter()
            .fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"));
        assert_eq!(header("x-sconce-signature"), format!("sha256={signature}"));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
        assert!(now.abs_diff(time.parse().expect("seconds")) < 60, "{time}");
        serde_json::from_slice(&body).expect("JSON")
    }
}

/// Headers and body of one message.
fn read(stream: &mut impl BufRead) -> (Vec<(String, String)>, Vec<u8>) {
    let (mut headers, mut line) = (Vec::new(), String::new());
    stream.read_line(&mut line).expect("a first line");
    loop {
        line.clear();
        stream.read_line(&mut line).expect("a header");
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, value)| value.parse().expect("a length"))];
    stream.read_exact(&mut body).expect("a body");
    (headers, body)
}

/// One request to a worker.
fn ask(url: &str, method: &str, path: &str) -> Value {
    let address = url.strip_prefix("http://").expect("a plain address");
    let stream = TcpStream::connect(address).expect("the worker listens");
    write!(&stream, "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
        .expect("a request");
    serde_json::from_slice(&read(&mut BufReader::new(&stream)).1).expect("JSON")
}

#[test]
fn a_manager_starts_a_worker_is_called_reads_its_report_and_drains_it() {
    let sandbox = Sandbox::new();
    let manager = Manager { listener: TcpListener::bind("127.0.0.1:0").expect("a port") };
    let token = sandbox.with("token", format!("{TOKEN}\n"));
    let (url, arguments) =
        (manager.url(), ["serve", "--offline", "--worker-id", "seven", "--model", "tiny-bert"]);
    let more = ["--port", "0", "--callback-url", &url, "--callback-token-file", &token, "--heartbeat", "1"];
    let mut command = sandbox.command(&[&arguments[..], &more].concat());
    let mut worker = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    // A rejected callback is retried.
    assert_eq!(manager.take_call(503)["event"], "ready");
    let ready = manager.take_call(204);
    assert_eq!((&ready["event"], &ready["worker_id"]), (&"ready".into(), &"seven".into()));
    let report = &ready["report"];
    assert_eq!(report["capabilities"], serde_json::json!(["embed"]));
    assert_eq!(report["device"], serde_json::json!(["cpu"]));
    assert!(["candle", "native"].contains(&report["backend"][0].as_str().expect("an engine")));
    assert!(report["memory"]["resident"].as_u64().is_some_and(|bytes| bytes > 1 << 20));
    assert!(report["models"][0]["serving"]["tokens_per_second"].as_f64().is_some_and(|rate| rate > 0.0));
    let address = ready["url"].as_str().expect("an address");
    assert_eq!(ask(address, "GET", "/v1/report")["models"][0]["model"], "tiny-bert");
    assert_eq!(manager.take_call(204)["event"], "heartbeat");
    assert_eq!(ask(address, "POST", "/v1/drain")["draining"], true);
    while manager.take_call(204)["event"] != "stopping" {}
    assert_eq!(worker.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_manager_that_hangs_does_not_keep_a_worker_from_ending() {
    let sandbox = Sandbox::new();
    // The listener accepts connections and never responds.
    let manager = Manager { listener: TcpListener::bind("127.0.0.1:0").expect("a port") };
    let url = manager.url();
    let fixed = ["serve", "tiny-bert", "--offline", "--port", "0", "--callback-url", &url];
    let mut child = sandbox.command(&fixed).stdin(Stdio::null()).spawn().expect("it starts");
    let mut words = BufReader::new(child.stderr.take().expect("its words"));
    let (_call, _) = manager.listener.accept().expect("a call");
    let began = std::time::Instant::now();
    crate::serve::terminate(&child);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    // A callback times out after ten seconds.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let mut told = String::new();
    words.read_to_string(&mut told).expect("text");
    assert!(!told.contains("callback failed"), "it was not refused: {told}");
    // Nothing listens: logged once.
    drop(manager);
    let mut child = sandbox.command(&fixed).stdin(Stdio::null()).spawn().expect("it starts");
    let mut words = BufReader::new(child.stderr.take().expect("its words"));
    let mut line = String::new();
    while !line.contains("callback failed") {
        line.clear();
        assert!(words.read_line(&mut line).expect("words") > 0, "it ended");
    }
    assert!(line.contains(&url), "{line}");
    crate::serve::terminate(&child);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
