//! `sconce serve` with little memory: clients that never read are rejected or wait, and the process survives.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::Sandbox;
use crate::serve::{converse, serve_with, terminate, wait_until_ready};

/// Address space limit of the process in bytes.
const ADDRESS_SPACE: u64 = 1_500_000_000;
const CLIENTS: usize = 10;

/// Sends a request and reads only the status. The server may close the connection before the request is sent.
fn never_reads(address: SocketAddr, path: &str, body: &[u8]) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_write_timeout(Some(Duration::from_mins(1))).expect("a timeout");
    stream.set_read_timeout(Some(Duration::from_mins(2))).expect("a timeout");
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut start = [0; 12];
    let seen = stream.peek(&mut start).unwrap_or(0);
    (stream, String::from_utf8_lossy(&start[..seen]).into_owned())
}

/// Memory of a process in MB, from `/proc`.
fn megabytes(process: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.expect("a number") / 1000
}

/// The largest valid bodies, after one whose response would be too large.
fn largest() -> [(&'static str, Value); 4] {
    let text = "a ".repeat(127 << 10);
    let types = ["float", "int8", "uint8", "binary", "ubinary", "base64"];
    [
        ("/tokenize", json!({"inputs": vec![&text; 32]})),
        ("/tokenize", json!({"inputs": vec![&text; 8]})),
        ("/embed_all", json!({"inputs": vec!["a ".repeat(126); 1024]})),
        ("/v2/embed", json!({"texts": vec!["a ".repeat(1900); 2048], "embedding_types": types})),
    ]
}

#[test]
fn clients_that_never_read_do_not_abort_a_server_in_little_memory() {
    let sandbox = Sandbox::unproved();
    let arguments = ["tiny-bert", "--offline", "--port", "0", "--memory-limit", "1000", "--write-limit", "3"];
    let mut served = serve_with(&sandbox, &arguments);
    let (address, process) = (served.address, served.child.id());
    let limit = format!("--as={ADDRESS_SPACE}");
    let limited = Command::new("prlimit").args(["--pid", &process.to_string(), &limit]).status();
    assert!(limited.expect("prlimit runs").success());
    wait_until_ready(address);
    let small = r#"{"inputs": "a short text"}"#;
    for (path, body) in largest() {
        let body = body.to_string().into_bytes();
        let clients: Vec<(TcpStream, String)> = thread::scope(|scope| {
            let asked: Vec<_> =
                (0..CLIENTS).map(|_| scope.spawn(|| never_reads(address, path, &body))).collect();
            asked.into_iter().map(|one| one.join().expect("no panic")).collect()
        });
        let answers = clients.iter().filter(|(_, start)| start.ends_with("200")).count();
        // A connection closed during its body may lose the response.
        let refused = |(_, start): &&(TcpStream, String)| {
            start.is_empty() || start.ends_with("413") || start.ends_with("429")
        };
        let refused = clients.iter().filter(refused).count();
        assert!(answers + refused == CLIENTS, "{path}: {clients:?}");
        let (mut statuses, began) = (Vec::new(), Instant::now());
        // Unread responses time out and release their memory.
        while statuses.last() != Some(&200) || statuses.len() < 5 {
            assert_eq!(converse(address, "GET", "/livez", &[], "").0, 200);
            let (status, told) = converse(address, "POST", "/embed", &[], small);
            assert!([200, 429].contains(&status), "{path}: {status} {told}");
            statuses.push(status);
            assert!(began.elapsed() < Duration::from_mins(2), "{path}: {statuses:?}");
            thread::sleep(Duration::from_millis(100));
        }
        assert!(served.child.try_wait().expect("a child").is_none(), "{path}: it ended");
        println!(
            "{path}: {answers} answers, {refused} refused; {} of {} short requests refused, at most {} MB \
             resident, {} MB of addresses",
            statuses.iter().filter(|status| **status == 429).count(),
            statuses.len(),
            megabytes(process, "VmHWM"),
            megabytes(process, "VmPeak"),
        );
        drop(clients);
    }
    terminate(&served.child);
    assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
}
