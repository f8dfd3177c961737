//! Records of requests that handlers add to the log and to traces.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::http::HeaderValue;
use opentelemetry::KeyValue;

/// Request extension: the value of `traceparent` for requests that a handler sends, which makes their spans children of
/// the request's span.
#[derive(Clone, Debug)]
pub struct Traceparent(pub HeaderValue);

/// What a handler adds to the record of its request: it puts this into the response's extensions.
#[derive(Clone, Debug, Default)]
pub struct RequestRecord {
    /// The model that answered.
    pub model: Option<String>,
    /// Number of texts.
    pub texts: Option<usize>,
    /// Number of tokens.
    pub tokens: Option<usize>,
    /// Number of generated tokens.
    pub generated: Option<usize>,
    /// The placements that computed them.
    pub placement: Option<String>,
    /// Milliseconds of tokenizing.
    pub tokenize_ms: Option<f64>,
    /// Milliseconds in the queue.
    pub queue_ms: Option<f64>,
    /// Milliseconds of computing.
    pub compute_ms: Option<f64>,
    /// Milliseconds until the first generated token.
    pub ttft_ms: Option<f64>,
    /// Attributes of the request's span.
    pub attributes: Vec<KeyValue>,
    /// Child spans.
    pub spans: Vec<SpanRecord>,
}

/// The record of a request whose response is sent while it is computed, in the response's extensions instead of a
/// [`RequestRecord`]. The body sets it before it is dropped.
#[derive(Clone, Debug, Default)]
pub struct DeferredRecord(Arc<Mutex<Option<RequestRecord>>>);

impl DeferredRecord {
    /// Sets the record.
    pub fn set(&self, record: RequestRecord) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
    }

    pub(super) fn take(&self) -> Option<RequestRecord> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
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
    pub attributes: Vec<KeyValue>,
    /// Child spans.
    pub children: Vec<SpanRecord>,
}

impl SpanRecord {
    /// A span without attributes or children.
    pub fn new(name: &'static str, start: Instant, end: Instant) -> SpanRecord {
        SpanRecord { name, start, end, attributes: Vec::new(), children: Vec::new() }
    }
}
