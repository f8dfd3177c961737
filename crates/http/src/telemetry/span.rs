//! Spans in OTLP's JSON encoding.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::telemetry::context::{Context, random};

/// OTLP's span kinds and the status code of an error.
const KIND_INTERNAL: u8 = 1;
const KIND_SERVER: u8 = 2;
const STATUS_ERROR: u8 = 2;

/// What a handler adds to the record of its request: it puts this into the response's extensions.
#[derive(Clone, Debug, Default)]
pub struct RequestRecord {
    /// The model that answered.
    pub model: Option<String>,
    /// Number of texts.
    pub texts: Option<usize>,
    /// Number of tokens.
    pub tokens: Option<usize>,
    /// The placements that computed them.
    pub placement: Option<String>,
    /// Milliseconds of tokenizing.
    pub tokenize_ms: Option<f64>,
    /// Milliseconds in the queue.
    pub queue_ms: Option<f64>,
    /// Milliseconds of computing.
    pub compute_ms: Option<f64>,
    /// Attributes of the request's span.
    pub attributes: Vec<(&'static str, Value)>,
    /// Child spans.
    pub spans: Vec<SpanRecord>,
}

/// A span below the request's.
#[derive(Clone, Debug)]
pub struct SpanRecord {
    /// Name of the span.
    pub name: &'static str,
    /// Start.
    pub start: Instant,
    /// End.
    pub end: Instant,
    /// Attributes.
    pub attributes: Vec<(&'static str, Value)>,
    /// Child spans.
    pub children: Vec<SpanRecord>,
}

impl SpanRecord {
    /// A span without attributes or children.
    pub fn new(name: &'static str, start: Instant, end: Instant) -> SpanRecord {
        SpanRecord { name, start, end, attributes: Vec::new(), children: Vec::new() }
    }
}

/// A span.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    trace: String,
    id: u64,
    parent: Option<u64>,
    name: String,
    kind: u8,
    start: Instant,
    end: Instant,
    attributes: Vec<(&'static str, Value)>,
    is_error: bool,
}

impl Span {
    /// The span of a whole request.
    pub(crate) fn request(context: &Context, route: &str, status: u16, start: Instant, end: Instant) -> Span {
        Span {
            trace: context.trace(),
            id: context.span,
            parent: context.parent,
            name: route.to_owned(),
            kind: KIND_SERVER,
            start,
            end,
            attributes: vec![("http.route", json!(route)), ("http.response.status_code", json!(status))],
            is_error: status >= 500,
        }
    }

    fn child(&self, record: &SpanRecord) -> Span {
        Span {
            trace: self.trace.clone(),
            id: random(),
            parent: Some(self.id),
            name: record.name.to_owned(),
            kind: KIND_INTERNAL,
            start: record.start,
            end: record.end,
            attributes: record.attributes.clone(),
            is_error: false,
        }
    }

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
            "startTimeUnixNano": nanoseconds(self.start),
            "endTimeUnixNano": nanoseconds(self.end),
            "attributes": self.attributes.iter().map(|(name, value)| attribute(name, value)).collect::<Vec<_>>(),
            "status": if self.is_error { json!({ "code": STATUS_ERROR }) } else { json!({}) },
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = json!(format!("{parent:016x}"));
        }
        span
    }
}

/// The span of a request and those below it, children before their parents.
pub(crate) fn export(
    mut request: Span,
    record: &RequestRecord,
    at: &dyn Fn(Instant) -> SystemTime,
) -> Vec<Value> {
    fn below(
        parent: &Span,
        records: &[SpanRecord],
        at: &dyn Fn(Instant) -> SystemTime,
        spans: &mut Vec<Value>,
    ) {
        for record in records {
            let span = parent.child(record);
            below(&span, &record.children, at, spans);
            spans.push(span.json(at));
        }
    }
    request.attributes.extend(record.attributes.iter().cloned());
    let mut spans = Vec::new();
    below(&request, &record.spans, at, &mut spans);
    spans.push(request.json(at));
    spans
}

/// A key and a value in OTLP's JSON encoding.
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
