//! Spans on their way to a collector: OTLP over HTTP as JSON, in the background. What can't be sent is let go.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracing::warn;
use ureq::tls::TlsConfig;

use crate::telemetry::log::Log;
use crate::telemetry::span::attribute;

/// Requests whose spans may wait; those of others are let go, so that a slow collector slows nobody.
const WAITING: usize = 2048;
/// Spans of one message.
const TOGETHER: usize = 512;
/// How long spans wait for others.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often a message is sent, at most.
const TRIES: u32 = 3;

/// Who collects traces.
#[derive(Clone)]
pub struct Collector {
    /// Where its OTLP over HTTP is, without `/v1/traces`.
    pub endpoint: String,
    /// Headers that it wants, such as a key.
    pub headers: Vec<(String, String)>,
    /// The name of this service in traces.
    pub service: String,
    /// The certificate authorities that the collector's certificate is verified against.
    pub tls: TlsConfig,
}

/// Headers may hold a key and are not shown.
impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector")
            .field("endpoint", &self.endpoint)
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

enum Message {
    Spans(Vec<Value>),
    Flush(SyncSender<()>),
}

/// Sends spans from a thread of its own.
pub(crate) struct Exporter {
    messages: SyncSender<Message>,
}

impl Exporter {
    pub(crate) fn start(collector: Collector, log: Log) -> Exporter {
        let (messages, received) = mpsc::sync_channel(WAITING);
        // Without a thread nothing is received, and all is let go.
        let _ = thread::Builder::new().name("sconce-traces".to_owned()).spawn(move || {
            run(&Sender::new(collector), &received, &log);
        });
        Exporter { messages }
    }

    pub(crate) fn send(&self, spans: Vec<Value>) {
        let _ = self.messages.try_send(Message::Spans(spans));
    }

    /// Waits until what was sent before is with the collector or let go.
    pub(crate) fn flush(&self, limit: Duration) {
        let (done, waits) = mpsc::sync_channel(1);
        if self.messages.try_send(Message::Flush(done)).is_ok() {
            let _ = waits.recv_timeout(limit);
        }
    }
}

fn run(sender: &Sender, messages: &Receiver<Message>, log: &Log) {
    let mut spans = Vec::new();
    let mut since = Instant::now();
    let mut failing = false;
    loop {
        let (mut flushed, mut over) = (None, false);
        let wait =
            if spans.is_empty() { Duration::from_hours(1) } else { PAUSE.saturating_sub(since.elapsed()) };
        match messages.recv_timeout(wait) {
            Ok(Message::Spans(more)) => {
                if spans.is_empty() {
                    since = Instant::now();
                }
                spans.extend(more);
            }
            Ok(Message::Flush(done)) => flushed = Some(done),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => over = true,
        }
        let due = over || flushed.is_some() || spans.len() >= TOGETHER || since.elapsed() >= PAUSE;
        if due && !spans.is_empty() {
            let count = spans.len();
            let sent = sender.send(&std::mem::take(&mut spans));
            if let (Err(why), false) = (&sent, failing) {
                log.scope(|| warn!(spans = count, why, "traces can't be sent"));
            }
            failing = sent.is_err();
        }
        if let Some(done) = flushed {
            let _ = done.send(());
        }
        if over {
            return;
        }
    }
}

/// A client that follows no redirect, so that headers with secrets stay with the collector.
fn agent(tls: TlsConfig) -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .max_redirects(0)
        .tls_config(tls)
        .build()
        .new_agent()
}

struct Sender {
    agent: ureq::Agent,
    address: String,
    collector: Collector,
}

impl Sender {
    fn new(collector: Collector) -> Sender {
        let address = format!("{}/v1/traces", collector.endpoint.trim_end_matches('/'));
        Sender { agent: agent(collector.tls.clone()), address, collector }
    }

    fn send(&self, spans: &[Value]) -> Result<(), String> {
        let attributes = [
            attribute("service.name", &json!(self.collector.service)),
            attribute("service.version", &json!(env!("CARGO_PKG_VERSION"))),
        ];
        let scope = json!({ "name": "sconce", "version": env!("CARGO_PKG_VERSION") });
        let message = json!({ "resourceSpans": [{
            "resource": { "attributes": attributes },
            "scopeSpans": [{ "scope": scope, "spans": spans }],
        }] });
        let body = message.to_string();
        let mut wait = Duration::from_millis(200);
        let mut tries = 0;
        loop {
            tries += 1;
            let mut request = self.agent.post(&self.address).content_type("application/json");
            for (name, value) in &self.collector.headers {
                request = request.header(name, value);
            }
            let why = match request.send(body.as_str()) {
                Ok(answer) if answer.status().is_success() => return Ok(()),
                Ok(answer) if !matches!(answer.status().as_u16(), 429 | 502..=504) => {
                    return Err(format!("the collector's status: {}", answer.status().as_u16()));
                }
                Ok(answer) => format!("the collector's status: {}", answer.status().as_u16()),
                Err(error) => error.to_string(),
            };
            if tries == TRIES {
                return Err(why);
            }
            thread::sleep(wait);
            wait *= 2;
        }
    }
}
