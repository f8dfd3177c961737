//! Spans: what a request did from when to when, in the words of OTLP.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::request_context::Work;
use crate::telemetry::context::{Context, random};
use crate::worker::short;

/// Batches of one request that have spans of their own.
const MOST_BATCHES: usize = 32;
/// OTLP's numbers for what a span is, and for one that failed.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const FAILED: u8 = 2;

/// What was done from when to when.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    trace: String,
    id: u64,
    parent: Option<u64>,
    name: String,
    kind: u8,
    began: Instant,
    ended: Instant,
    attributes: Vec<(&'static str, Value)>,
    failed: bool,
}

impl Span {
    /// A whole request.
    pub(crate) fn request(
        context: &Context,
        route: &str,
        status: u16,
        began: Instant,
        ended: Instant,
    ) -> Span {
        Span {
            trace: context.trace(),
            id: context.span,
            parent: context.parent,
            name: route.to_owned(),
            kind: SERVER,
            began,
            ended,
            attributes: vec![("http.route", json!(route)), ("http.response.status_code", json!(status))],
            failed: status >= 500,
        }
    }

    /// A part of it.
    fn part(&self, name: &str, began: Instant, ended: Instant) -> Span {
        Span {
            trace: self.trace.clone(),
            id: random(),
            parent: Some(self.id),
            name: name.to_owned(),
            kind: INTERNAL,
            began,
            ended,
            attributes: Vec::new(),
            failed: false,
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<Value>) -> Span {
        self.attributes.push((name, value.into()));
        self
    }

    /// The span as OTLP's JSON has it.
    fn json(&self, at: &dyn Fn(Instant) -> SystemTime) -> Value {
        let nanoseconds = |moment| {
            let time = at(moment).duration_since(UNIX_EPOCH).unwrap_or_default();
            time.as_nanos().to_string()
        };
        let mut span = json!({
            "traceId": self.trace,
            "spanId": format!("{:016x}", self.id),
            "name": self.name,
            "kind": self.kind,
            "startTimeUnixNano": nanoseconds(self.began),
            "endTimeUnixNano": nanoseconds(self.ended),
            "attributes": self.attributes.iter().map(|(name, value)| attribute(name, value)).collect::<Vec<_>>(),
            "status": if self.failed { json!({ "code": FAILED }) } else { json!({}) },
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = json!(format!("{parent:016x}"));
        }
        span
    }
}

/// A request and its parts: tokenize, queue, and for each batch what was around computing, and computing.
pub(crate) fn spans(request: Span, work: Option<&Work>, at: &dyn Fn(Instant) -> SystemTime) -> Vec<Value> {
    let Some((work, steps)) = work.and_then(|work| Some((work, work.steps.as_ref()?))) else {
        return vec![request.json(at)];
    };
    let placements = work.placements.iter().map(short).collect::<Vec<_>>().join(", ");
    let request = request
        .with("sconce.model", work.model.as_str())
        .with("sconce.texts", work.texts)
        .with("sconce.tokens", work.tokens)
        .with("sconce.batches", steps.batches.len());
    let mut parts = vec![request.part("tokenize", steps.arrived, steps.tokenized)];
    if let Some(first) = steps.batches.first() {
        parts.push(request.part("queue", steps.queued, first.began));
    }
    for step in steps.batches.iter().take(MOST_BATCHES) {
        let batch = request.part("batch", step.began, step.ended);
        let batch = batch.with("sconce.batch.texts", step.texts).with("sconce.batch.tokens", step.tokens);
        let compute = batch.part("compute", step.computing, step.computed);
        parts.extend([compute.with("sconce.placement", placements.as_str()), batch]);
    }
    parts.push(request);
    parts.iter().map(|span| span.json(at)).collect()
}

/// A name and a value, as OTLP's JSON has them.
pub(crate) fn attribute(name: &str, value: &Value) -> Value {
    let value = match value {
        Value::Number(number) if number.is_f64() => json!({ "doubleValue": number }),
        Value::Number(number) => json!({ "intValue": number.to_string() }),
        Value::Bool(yes) => json!({ "boolValue": yes }),
        Value::String(text) => json!({ "stringValue": text }),
        Value::Null | Value::Array(_) | Value::Object(_) => json!({ "stringValue": value.to_string() }),
    };
    json!({ "key": name, "value": value })
}
