//! The process of `sconce serve`: startup errors and shutdown.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::Sandbox;

/// SIGTERM cycles under load.
const CYCLES: &str = "SCONCE_SIGTERM_CYCLES";

/// A server process.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
}

fn serve(sandbox: &Sandbox, arguments: &[&str]) -> Served {
    serve_with(sandbox, &[&["tiny-bert", "--offline", "--port", "0"], arguments].concat())
}

/// A server with these arguments.
pub(crate) fn serve_with(sandbox: &Sandbox, arguments: &[&str]) -> Served {
    serve_by(sandbox.command(&[&["serve"], arguments].concat()).stdin(Stdio::null()))
}

/// The server that `command` starts.
pub(crate) fn serve_by(command: &mut Command) -> Served {
    let mut child = command.spawn().expect("it starts");
    let mut words = BufReader::new(child.stderr.take().expect("its words"));
    let mut line = String::new();
    words.read_line(&mut line).expect("it says where it listens");
    let address = line.trim().rsplit('/').next().and_then(|address| address.parse().ok());
    let address = address.unwrap_or_else(|| panic!("no address in: {line}"));
    // Drain the pipe so that the log never blocks.
    thread::spawn(move || std::io::copy(&mut words, &mut std::io::sink()));
    Served { child, address }
}

/// One request on a keep-alive connection. Fails if the connection closes before the response.
pub(crate) fn ask(stream: &mut BufReader<TcpStream>, bytes: &[u8]) -> std::io::Result<(u16, bool)> {
    exchange(stream, bytes).map(|(status, closes, _)| (status, closes))
}

/// One request on a new connection: status and body.
pub(crate) fn converse(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    let headers: String =
        headers.iter().fold(String::new(), |all, (name, value)| all + &format!("{name}: {value}\r\n"));
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    let mut stream = connect(address).expect("a connection");
    let (status, _, body) = exchange(&mut stream, request.as_bytes()).expect("an answer");
    (status, String::from_utf8(body).expect("text"))
}

fn exchange(stream: &mut BufReader<TcpStream>, bytes: &[u8]) -> std::io::Result<(u16, bool, Vec<u8>)> {
    stream.get_mut().write_all(bytes)?;
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let (mut length, mut closes) = (0, false);
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let lower = line.to_ascii_lowercase();
        let Some((name, value)) = lower.trim_end().split_once(": ") else { break };
        match name {
            "content-length" => length = value.parse().unwrap_or(0),
            "connection" => closes = value == "close",
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((status, closes, body))
}

pub(crate) fn connect(address: SocketAddr) -> std::io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_mins(4)))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

pub(crate) fn wait_until_ready(address: SocketAddr) {
    let began = Instant::now();
    loop {
        let ready = connect(address)
            .and_then(|mut stream| ask(&mut stream, b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n"));
        if ready.is_ok_and(|(status, _)| status == 200) {
            return;
        }
        assert!(began.elapsed() < Duration::from_mins(4), "it is never ready");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The body of a response.
pub(crate) fn body(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("writes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

pub(crate) fn terminate(child: &Child) {
    signal(child, "TERM");
}

pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

#[test]
fn under_load_every_request_that_was_sent_before_the_signal_is_answered() {
    let cycles = std::env::var(CYCLES).ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let sandbox = Sandbox::new();
    let body = r#"{"input": "a text that is under way when the signal comes", "model": "tiny-bert"}"#;
    let request = format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answered = 0;
    for cycle in 0..cycles {
        let mut served = serve(&sandbox, &[]);
        let address = served.address;
        wait_until_ready(address);
        let signalled = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let (signalled, request) = (Arc::clone(&signalled), request.clone());
                thread::spawn(move || {
                    let (mut stream, mut count) = (connect(address).expect("a connection"), 0);
                    loop {
                        // Requests sent after the signal may be rejected; earlier ones may not.
                        let before = !signalled.load(Ordering::SeqCst);
                        match ask(&mut stream, request.as_bytes()) {
                            Ok((200, closes)) => {
                                count += 1;
                                if closes {
                                    return count;
                                }
                            }
                            Ok((status, _)) => panic!("{status}"),
                            Err(error) => {
                                assert!(!before, "cut off: {error}");
                                return count;
                            }
                        }
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(60 + 13 * (cycle % 7)));
        // Requests from here on count as sent after the signal.
        signalled.store(true, Ordering::SeqCst);
        terminate(&served.child);
        for client in clients {
            answered += client.join().expect("no request is cut");
        }
        let status = served.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(0), "cycle {cycle}");
    }
    println!("{cycles} cycles, {answered} requests answered, none cut");
    assert!(answered > 0);
}

#[test]
fn a_process_that_was_stopped_or_slept_does_not_take_its_placement_for_hung() {
    let sandbox = Sandbox::new();
    let Served { mut child, address } = serve(&sandbox, &[]);
    wait_until_ready(address);
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                let body = serde_json::json!({ "inputs": vec!["many words ".repeat(12); 64] }).to_string();
                while !over.load(Ordering::SeqCst) {
                    let headers = [("content-type", "application/json")];
                    assert_eq!(converse(address, "POST", "/embed", &headers, &body).0, 200);
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(500));
    signal(&child, "STOP");
    // Longer than the hang timeout of a batch.
    thread::sleep(Duration::from_secs(6));
    signal(&child, "CONT");
    thread::sleep(Duration::from_millis(500));
    over.store(true, Ordering::SeqCst);
    for client in clients {
        client.join().expect("every answer came");
    }
    let metrics = body(address, "/metrics");
    assert!(!metrics.contains("sconce_guard_trips_total{"), "{metrics}");
    terminate(&child);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn where_others_can_reach_it_a_key_is_asked_for() {
    let sandbox = Sandbox::new();
    sandbox
        .run(&["serve", "tiny-bert", "--offline", "--host", "0.0.0.0", "--port", "0"])
        .fails(2, &["is reachable from other machines", "--api-key-file", "--insecure-no-key"]);
    let empty = sandbox.with("keys", "# none\n");
    sandbox
        .run(&["serve", "tiny-bert", "--offline", "--port", "0", "--api-key-file", &empty])
        .fails(2, &["no key found"]);
    let keys = sandbox.with("keys", "secret\n");
    let mut served = serve(&sandbox, &["--host", "0.0.0.0", "--api-key-file", &keys]);
    let address = SocketAddr::from(([127, 0, 0, 1], served.address.port()));
    let mut stream = connect(address).expect("a connection");
    let asked = ask(&mut stream, b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("an answer");
    assert_eq!(asked.0, 401);
    let key = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret\r\n\r\n";
    assert_eq!(ask(&mut stream, key).expect("an answer").0, 200);
    drop(stream);
    terminate(&served.child);
    assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_model_that_is_not_there_ends_it_with_the_reason() {
    let sandbox = Sandbox::new();
    let answer = sandbox.run(&["serve", "./no-such-model", "--offline", "--port", "0"]);
    assert_eq!(answer.code, 2, "{}", answer.stderr);
    assert!(answer.stderr.contains("error: "), "{}", answer.stderr);
}

#[test]
fn token_ids_are_rejected_unless_they_are_enabled() {
    let sandbox = Sandbox::new();
    let paths =
        [("/v1/embeddings", "input"), ("/embed", "inputs"), ("/embed_all", "inputs"), ("/", "inputs")];
    for (flags, accepted) in [(&[][..], false), (&["--token-ids"][..], true)] {
        let mut served = serve(&sandbox, flags);
        wait_until_ready(served.address);
        for (path, field) in paths {
            for ids in [serde_json::json!([2, 17, 3]), serde_json::json!([[2, 17, 3], [2, 3]])] {
                let request = serde_json::json!({ field: ids }).to_string();
                let (status, answer) = converse(served.address, "POST", path, &[], &request);
                if accepted {
                    assert_eq!(status, 200, "{path} {request}: {answer}");
                    continue;
                }
                assert_eq!(status, if path == "/v1/embeddings" { 400 } else { 422 }, "{path}: {answer}");
                for word in ["`tiny-bert`", "token ids", "check_embedding_ctx_length=False", "--token-ids"] {
                    assert!(answer.contains(word), "{path}: no `{word}` in {answer}");
                }
            }
        }
        // This route takes ids.
        assert_eq!(converse(served.address, "POST", "/decode", &[], r#"{"ids": [[2, 17, 3]]}"#).0, 200);
        terminate(&served.child);
        assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
    }
}
