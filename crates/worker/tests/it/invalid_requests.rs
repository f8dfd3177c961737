//! Invalid requests are refused or disconnected at low cost, while other requests are answered.

use sconce_http::Settings as HttpSettings;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Answer, Connection, get, post, request, send};
use crate::harness::{settings, tiny, tiny_with};

/// Resident bytes of this process, on Linux.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

/// A well-behaved client that repeats one request, checks its response, and records latency and peak memory.
struct Bystander {
    stop: Arc<AtomicBool>,
    slowest: Arc<AtomicU64>,
    peak: Arc<AtomicU64>,
    thread: thread::JoinHandle<usize>,
    before: u64,
}

impl Bystander {
    fn watch(address: SocketAddr) -> Bystander {
        let body = json!({"inputs": "somebody who behaves"});
        let want = post(address, "/embed", &body).expect(200);
        let (stop, slowest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let before = memory();
        let peak = Arc::new(AtomicU64::new(before));
        let (stopped, time, most) = (Arc::clone(&stop), Arc::clone(&slowest), Arc::clone(&peak));
        let thread = thread::spawn(move || {
            let mut answers = 0;
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert_eq!(post(address, "/embed", &body).expect(200), want);
                time.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
                most.fetch_max(memory(), Ordering::Relaxed);
                answers += 1;
                thread::sleep(Duration::from_millis(1));
            }
            answers
        });
        Bystander { stop, slowest, peak, thread, before }
    }

    fn end(self, what: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let answers = self.thread.join().expect("the bystander is answered");
        let (slowest, peak) = (self.slowest.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed));
        let grown = peak.saturating_sub(self.before) >> 20;
        println!("{what}: {answers} answers beside it, the slowest in {slowest} ms, {grown} MB more");
        assert!(answers > 0, "{what}: no answer beside it");
        // Client and server share a process, so that the client's copies of long texts count.
        assert!(grown < 64 + CLIENT, "{what}: {grown} MB more");
    }
}

/// Allowance for the memory of the client, in MB.
const CLIENT: u64 = 40;

/// Sends raw bytes; `None` if the server closed the connection, which is as good as a refusal.
fn raw(address: SocketAddr, bytes: &[u8]) -> Option<Answer> {
    send(address, bytes).ok()
}

fn is_refused(answer: Option<Answer>) -> bool {
    answer.is_none_or(|answer| (400..500).contains(&answer.status))
}

#[test]
fn headers_and_bodies_beyond_their_limits_are_refused() {
    let server = tiny("tiny-bert");
    let bystander = Bystander::watch(*server);
    let header = "h".repeat(1 << 20);
    assert!(is_refused(raw(*server, &request("GET", "/info", &[("x-long", &header)], b""))));
    let many: Vec<(String, String)> = (0..2000).map(|n| (format!("x-{n}"), "1".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert!(is_refused(raw(*server, &request("GET", "/info", &many, b""))));

    // One gigabyte by `content-length`.
    let head = "POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1073741824\r\n\r\n";
    let mut connection = Connection::open(*server).expect("a connection");
    connection.write(head.as_bytes()).expect("a head can be sent");
    let answer = connection.read().expect("refused by its length alone");
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));

    // One gigabyte in chunks.
    let mut stream = TcpStream::connect(*server).expect("a connection");
    stream.set_write_timeout(Some(Duration::from_mins(4))).expect("a timeout");
    let head = "POST /embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("a head can be sent");
    let piece = [b"10000\r\n".as_slice(), &vec![b' '; 65536], b"\r\n"].concat();
    let sent = (0..16384).take_while(|_| stream.write_all(&piece).is_ok()).count();
    assert!(sent < 1000, "{sent} pieces were taken");

    // Compressed bodies are not decompressed.
    let bomb = request("POST", "/embed", &[("content-encoding", "gzip")], &[0x1f, 0x8b, 8, 0]);
    assert_eq!(raw(*server, &bomb).map(|answer| answer.status), Some(415));
    bystander.end("too large");
}

#[test]
fn malformed_bodies_are_refused() {
    let server = tiny("tiny-bert");
    let bystander = Bystander::watch(*server);
    let deep = format!("{{\"inputs\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let elsewhere = format!("{{\"other\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let many = format!("{{\"inputs\": [{}\"a\"]}}", "\"a\",".repeat(100_000));
    let lists = format!("{{\"inputs\": [{}[1]]}}", "[1],".repeat(1_500_000));
    let bodies: [&[u8]; 16] = [
        b"",
        b"null",
        b"\xff\xfe{}",
        b"{\"inputs\": \"\xc3\x28\"}",
        b"{\"inputs\": NaN}",
        b"{\"inputs\": \"a\", \"dimensions\": 1e999}",
        b"{\"inputs\": \"a\", \"dimensions\": -1}",
        b"{\"inputs\": \"a\", \"dimensions\": 18446744073709551616}",
        b"{\"inputs\": [99999999999999999999]}",
        b"{\"inputs\": [4294967295]}",
        b"{\"inputs\": [[]]}",
        b"{\"inputs\": \"\\ud800\"}",
        deep.as_bytes(),
        elsewhere.as_bytes(),
        many.as_bytes(),
        lists.as_bytes(),
    ];
    for body in bodies {
        let start = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        for path in ["/embed", "/", "/embed_all", "/v1/embeddings", "/tokenize", "/v2/rerank"] {
            let answer = raw(*server, &request("POST", path, &[], body));
            let answer = answer.unwrap_or_else(|| panic!("{path} {start}: no answer"));
            assert!(
                (400..500).contains(&answer.status),
                "{path} {start}: {} {}",
                answer.status,
                answer.text()
            );
        }
    }
    bystander.end("malformed bodies");
}

#[test]
fn a_response_is_not_lost_to_garbage_after_its_request() {
    let server = tiny("tiny-bert");
    let body = json!({"inputs": "a"}).to_string();
    for question in [request("GET", "/livez", &[], b""), request("POST", "/embed", &[], body.as_bytes())] {
        let mut connection = Connection::open(*server).expect("a connection");
        connection.write(&[question.as_slice(), b"\x00 garbage \xff\r\n\r\n"].concat()).expect("sent");
        assert_eq!(connection.read().expect("an answer").status, 200);
        assert!(connection.read().is_ok_and(|answer| answer.status == 400) || connection.read().is_err());
    }
}

#[test]
fn long_texts_cost_little() {
    let server = tiny("tiny-bert");
    // Built before memory is measured: client and server share a process.
    let requests = [
        "a".repeat(10 << 20),
        "👩\u{200d}👩\u{200d}👧\u{fe0f}\u{301}".repeat(10 << 16),
        "a ".repeat(3 << 20),
    ]
    .map(|text| request("POST", "/embed", &[], json!({"inputs": text}).to_string().as_bytes()));
    let bystander = Bystander::watch(*server);
    for request in &requests {
        assert!(is_refused(raw(*server, request)));
    }
    for text in ["a".repeat(200 << 10), "👩\u{200d}\u{301}".repeat(16 << 10), "a ".repeat(100 << 10)] {
        let answer = post(*server, "/embed", &json!({"inputs": text}));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let query = "q ".repeat(100 << 10);
    let ranked = tiny("tiny-bert-rerank");
    let body = json!({"query": query, "texts": vec!["a"; 2000]});
    assert_eq!(post(*ranked, "/rerank", &body).status, 413, "a long query is paid for once a document");
    bystander.end("long texts");
}

#[test]
fn slow_connections_time_out_and_delay_no_other_request() {
    let settings = sconce_worker::Settings {
        http: HttpSettings { read_limit: Duration::from_secs(2), ..settings().http },
        ..settings()
    };
    let server = tiny_with("tiny-bert", settings);
    let bystander = Bystander::watch(*server);
    let slow: Vec<TcpStream> = (0..500)
        .map(|n| {
            let mut stream = TcpStream::connect(*server).expect("a connection");
            let head: &[u8] = match n % 3 {
                0 => b"POST /embed HTTP/1.1\r\nhost: localhost\r\n",
                1 => b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n{\"inputs\": \"",
                _ => b"",
            };
            stream.write_all(head).expect("a little can be sent");
            stream
        })
        .collect();
    for mut stream in slow {
        stream.set_read_timeout(Some(Duration::from_mins(4))).expect("a timeout");
        let mut rest = Vec::new();
        // The server refuses it or closes the connection, and never stays silent.
        std::io::Read::read_to_end(&mut stream, &mut rest).expect("the server ends it");
        let status = String::from_utf8_lossy(&rest).split(' ').nth(1).map(str::to_owned);
        assert!(status.as_deref().is_none_or(|status| status.starts_with('4')), "{status:?}");
    }
    bystander.end("500 slow connections");
    assert_eq!(get(*server, "/livez").status, 200);
}
