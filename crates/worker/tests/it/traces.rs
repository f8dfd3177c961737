//! Traces of requests, received by a fake OTLP collector.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sconce::{Device, EngineId};
use sconce_http::{Collector, Settings as HttpSettings, TelemetryConfig};
use sconce_testkit::fake::{FakeEngine, Fault};
use sconce_worker::Settings;
use serde_json::{Value, json};

use crate::client::{Answer, get, post, post_with};
use crate::generation;
use crate::harness::{METAL, TestServer, fake_builder, settings, start};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
/// Duration of a batch in milliseconds.
const LATE: u64 = 40;

/// An OTLP/HTTP collector that refuses the first requests.
struct Receiver {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Receiver {
    fn start(mut refusals: usize) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heard);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream);
                while let Some((head, body)) = message(&mut reader) {
                    let status = if refusals > 0 { "503 Service Unavailable" } else { "200 OK" };
                    if refusals == 0 {
                        kept.lock().expect("no panic").push((head, body));
                    }
                    refusals = refusals.saturating_sub(1);
                    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
                    if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                }
            }
        });
        Receiver { address, heard }
    }

    fn collector(&self) -> Collector {
        Collector {
            tls: sconce::http::tls(),
            endpoint: format!("http://{}/", self.address),
            headers: vec![("x-key".to_owned(), "secret".to_owned())],
            service: "lamps".to_owned(),
        }
    }

    /// The spans received so far.
    fn spans(&self) -> Vec<Value> {
        let heard = self.heard.lock().expect("no panic");
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let resources = heard.iter().flat_map(|(_, body)| list(&body["resourceSpans"]));
        let scopes = resources.flat_map(|resource| list(&resource["scopeSpans"]));
        scopes.flat_map(|scope| list(&scope["spans"])).collect()
    }

    /// Waits for `count` spans of a trace.
    fn trace(&self, trace: &str, count: usize) -> Vec<Value> {
        let began = Instant::now();
        loop {
            let spans: Vec<Value> =
                self.spans().into_iter().filter(|span| span["traceId"] == trace).collect();
            if spans.len() >= count {
                return spans;
            }
            assert!(began.elapsed() < Duration::from_mins(4), "{spans:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Reads the next HTTP message: head and body.
fn message(reader: &mut impl BufRead) -> Option<(String, Value)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
        head.push_str(&line.to_ascii_lowercase());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, serde_json::from_slice(&body).ok()?))
}

fn server_with(receiver: &Receiver) -> TestServer {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle);
    let engine = engine.with(METAL, Fault::Late(LATE)).with(Device::Cpu, Fault::Late(LATE));
    let builder = fake_builder(engine, Duration::from_secs(5), home.path());
    let telemetry = TelemetryConfig { traces: Some(receiver.collector()), ..TelemetryConfig::default() };
    start(builder, Settings { http: HttpSettings { telemetry, ..settings().http }, ..settings() }, Some(home))
        .ready()
}

/// Start and end of a span in nanoseconds.
fn times(span: &Value) -> (u64, u64) {
    let time = |key: &str| span[key].as_str().and_then(|text| text.parse().ok()).expect("a time");
    (time("startTimeUnixNano"), time("endTimeUnixNano"))
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a Value {
    let all = span["attributes"].as_array().expect("attributes");
    &all.iter().find(|attribute| attribute["key"] == name).unwrap_or_else(|| panic!("{name}: {span}"))["value"]
}

#[test]
fn a_request_is_a_span_of_its_caller_with_four_parts_whose_times_add_up() {
    let receiver = Receiver::start(0);
    let server = server_with(&receiver);
    let header = format!("00-{TRACE}-{CALLER}-01");
    let answer =
        post_with(*server, "/embed", &[("traceparent", &header)], &json!({"inputs": ["a text", "more"]}));
    let back = answer.header("traceparent").expect("a context").to_owned();
    answer.expect(200);
    let spans = receiver.trace(TRACE, 5);
    assert_eq!(spans.len(), 5, "{spans:#?}");
    let named = |name: &str| {
        let found: Vec<&Value> = spans.iter().filter(|span| span["name"] == name).collect();
        assert_eq!(found.len(), 1, "{name}: {spans:#?}");
        found[0].clone()
    };
    let [request, tokenize, queue, batch, compute] =
        ["/embed", "tokenize", "queue", "batch", "compute"].map(named);
    assert_eq!(back, format!("00-{TRACE}-{}-01", request["spanId"].as_str().expect("an id")));
    assert_eq!((&request["parentSpanId"], &request["kind"]), (&json!(CALLER), &json!(2)));
    for part in [&tokenize, &queue, &batch] {
        assert_eq!(part["parentSpanId"], request["spanId"], "{part}");
    }
    assert_eq!(compute["parentSpanId"], batch["spanId"]);

    let order: Vec<u64> = [
        times(&request).0,
        times(&tokenize).0,
        times(&tokenize).1,
        times(&queue).0,
        times(&queue).1,
        times(&batch).0,
        times(&compute).0,
        times(&compute).1,
        times(&batch).1,
        times(&request).1,
    ]
    .to_vec();
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(times(&queue).1, times(&batch).0, "what no longer waits is in a batch");
    let length = |span: &Value| times(span).1 - times(span).0;
    assert!(length(&compute) >= LATE * 1_000_000, "{compute}");
    let parts = length(&tokenize) + length(&queue) + length(&batch);
    assert!(
        parts <= length(&request) && parts * 10 >= length(&request) * 7,
        "{parts} of {}",
        length(&request)
    );

    assert_eq!(attribute(&request, "http.response.status_code")["intValue"], "200");
    assert_eq!(attribute(&request, "sconce.model")["stringValue"], "model");
    assert_eq!(attribute(&batch, "sconce.batch.texts")["intValue"], "2");
    assert_eq!(attribute(&compute, "sconce.placement")["stringValue"], "candle/metal:0/f32");
    let heard = receiver.heard.lock().expect("no panic");
    let (start, body) = &heard[0];
    assert!(start.starts_with("post /v1/traces ") && start.contains("x-key: secret"), "{start}");
    let resource = &body["resourceSpans"][0]["resource"];
    assert_eq!(attribute(resource, "service.name")["stringValue"], "lamps");
}

#[test]
fn requests_that_wait_are_told_for_how_long() {
    let receiver = Receiver::start(0);
    let server = server_with(&receiver);
    let ask = || post(*server, "/embed", &json!({"inputs": "a text"}));
    let times = |answer: &Answer| {
        let of = |name: &str| answer.header(name).and_then(|time| time.parse::<u64>().ok()).expect("a time");
        [of("x-queue-time"), of("x-inference-time"), of("x-total-time")]
    };
    let round = || -> Vec<[u64; 3]> {
        thread::scope(|scope| {
            let asked: Vec<_> = (0..8).map(|_| scope.spawn(|| times(&ask()))).collect();
            asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
        })
    };
    let waited = (0..20).any(|_| {
        let answers = round();
        for &[queue, inference, total] in &answers {
            assert!(inference >= LATE && queue + inference <= total + 2, "{answers:?}");
        }
        // The first batch takes what has arrived; the others wait for its end. On a busy machine it may take all.
        answers.iter().any(|[queue, ..]| *queue >= LATE / 2)
    });
    assert!(waited, "no request waited");
}

#[test]
fn a_generation_has_spans_of_its_prompt_and_its_tokens() {
    let receiver = Receiver::start(0);
    let telemetry = TelemetryConfig { traces: Some(receiver.collector()), ..TelemetryConfig::default() };
    let settings = Settings { http: HttpSettings { telemetry, ..settings().http }, ..settings() };
    let folder = generation::folder();
    let server = generation::serve(folder.path(), settings);
    for stream in [false, true] {
        let trace = if stream { TRACE.to_owned() } else { "2".repeat(32) };
        let header = format!("00-{trace}-{CALLER}-01");
        let body = json!({"prompt": "w4 w5 w6", "max_tokens": 5, "ignore_eos": true, "stream": stream});
        let answer = post_with(*server, "/v1/completions", &[("traceparent", &header)], &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut spans = receiver.trace(&trace, 4);
        spans.sort_by_key(|span| times(span).0);
        let names: Vec<&str> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
        assert_eq!(names, ["/v1/completions", "tokenize", "prefill", "decode"]);
        assert_eq!(attribute(&spans[2], "sconce.tokens")["intValue"], "3");
        assert_eq!(attribute(&spans[3], "sconce.generated_tokens")["intValue"], "5");
        assert_eq!(attribute(&spans[3], "sconce.placement")["stringValue"], "native/cpu/f32");
        assert_eq!((times(&spans[1]).1, times(&spans[2]).1), (times(&spans[2]).0, times(&spans[3]).0));
        assert!(times(&spans[3]).1 <= times(&spans[0]).1);
    }
}

#[test]
fn a_busy_collector_is_retried_and_unsampled_requests_are_not_exported() {
    let receiver = Receiver::start(1);
    let server = server_with(&receiver);
    let unwanted = format!("00-{}-{CALLER}-00", "1".repeat(32));
    let quiet = post_with(*server, "/embed", &[("traceparent", &unwanted)], &json!({"inputs": "a"}));
    assert!(quiet.header("traceparent").is_some_and(|back| back.ends_with("-00")));
    let own = post(*server, "/no_such_route", &json!({}));
    let trace =
        own.header("traceparent").and_then(|back| back.split('-').nth(1)).expect("a trace").to_owned();
    let root = receiver.trace(&trace, 1).remove(0);
    assert_eq!((root.get("parentSpanId"), &root["name"]), (None, &json!("none")));
    assert_eq!(attribute(&root, "http.response.status_code")["intValue"], "404");
    assert!(receiver.spans().iter().all(|span| span["traceId"] != "1".repeat(32).as_str()));
}

#[test]
fn pending_spans_are_flushed_before_exit_and_a_missing_collector_delays_nothing() {
    let receiver = Receiver::start(0);
    let server = server_with(&receiver);
    let answer = post(*server, "/embed", &json!({"inputs": "the last one"}));
    let trace =
        answer.header("traceparent").and_then(|back| back.split('-').nth(1)).expect("a trace").to_owned();
    drop(server);
    let sent = receiver.spans();
    assert_eq!(sent.iter().filter(|span| span["traceId"] == trace.as_str()).count(), 5);

    let nobody = Receiver { address: "127.0.0.1:9".parse().expect("an address"), heard: Arc::default() };
    let server = self::server_with(&nobody);
    post(*server, "/embed", &json!({"inputs": "a"})).expect(200);
    assert_eq!(get(*server, "/livez").status, 200);
}
