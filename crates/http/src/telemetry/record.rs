//! The record of one request: logged and exported once its response body has been sent, or its client has left.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use opentelemetry::trace::{Span as _, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::Span;

use crate::keys::{Keys, Principal};
use crate::refusal::Refused;
use crate::telemetry::context;
use crate::telemetry::sink::Telemetry;
use crate::telemetry::span::{DeferredRecord, RequestRecord, SpanRecord, Traceparent};

/// Status of requests whose client left before the response, as nginx logs it.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Records a request and its response.
pub(crate) async fn record(
    telemetry: &Arc<Telemetry>,
    keys: &Keys,
    is_probe: impl Fn(&str) -> bool,
    mut request: Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("none", MatchedPath::as_str).to_owned();
    let (start, probe) = (Instant::now(), is_probe(&route));
    let tracer = telemetry.tracer(probe);
    let span = tracer
        .span_builder(route.clone())
        .with_kind(SpanKind::Server)
        .with_start_time(telemetry.system_time(start))
        .start_with_context(tracer, &context::parent(request.headers()));
    let mut pending = Pending {
        telemetry: Arc::clone(telemetry),
        probe,
        span,
        route,
        start,
        status: CLIENT_CLOSED_REQUEST,
        complete: true,
        refused: None,
        key: None,
        record: RequestRecord::default(),
        deferred: None,
    };
    let traceparent = HeaderValue::from_str(&context::traceparent(pending.span.span_context())).ok();
    if let Some(value) = &traceparent {
        request.extensions_mut().insert(Traceparent(value.clone()));
    }
    let mut response = next.run(request).await;
    if let Some(value) = traceparent {
        response.headers_mut().insert("traceparent", value);
    }
    pending.status = response.status().as_u16();
    if let Some(record) = response.extensions_mut().remove::<RequestRecord>() {
        pending.record = record;
    }
    pending.deferred = response.extensions_mut().remove::<DeferredRecord>();
    pending.refused = response.extensions().get::<Refused>().cloned();
    if let Some(principal) = response.extensions().get::<Principal>().filter(|_| !keys.is_empty()) {
        pending.key = Some(keys.name(principal.tenant));
    }
    response.map(|body| Body::new(Recorded { body, pending }))
}

/// A request that is logged and exported on drop.
struct Pending {
    telemetry: Arc<Telemetry>,
    span: Span,
    route: String,
    probe: bool,
    start: Instant,
    status: u16,
    /// Whether the whole response body was sent.
    complete: bool,
    refused: Option<Refused>,
    /// Name of the API key.
    key: Option<String>,
    record: RequestRecord,
    deferred: Option<DeferredRecord>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let end = Instant::now();
        if let Some(record) = self.deferred.take().and_then(|deferred| deferred.take()) {
            self.record = record;
        }
        self.end_spans(end);
        let telemetry = &self.telemetry;
        // 424 is a server error in TEI's dialect. Probes report their status themselves.
        let server_error = self.status >= StatusCode::INTERNAL_SERVER_ERROR.as_u16()
            || self.status == StatusCode::FAILED_DEPENDENCY.as_u16();
        let warns = server_error && !self.probe;
        let is_passed_probe = self.probe && self.status < StatusCode::BAD_REQUEST.as_u16();
        if !warns && (!telemetry.requests || is_passed_probe) {
            return;
        }
        let (record, refused) = (&self.record, self.refused.as_ref());
        let model = record.model.as_ref().or_else(|| refused?.model.as_ref());
        macro_rules! request {
            ($level:ident) => {
                tracing::$level!(
                    route = self.route,
                    status = self.status,
                    ms = milliseconds(end.duration_since(self.start)),
                    code = refused.map(|refused| refused.code),
                    model,
                    texts = record.texts,
                    tokens = record.tokens,
                    generated = record.generated,
                    placement = record.placement,
                    tokenize_ms = record.tokenize_ms,
                    queue_ms = record.queue_ms,
                    compute_ms = record.compute_ms,
                    ttft_ms = record.ttft_ms,
                    key = self.key,
                    aborted = (!self.complete).then_some(true),
                    trace = %self.span.span_context().trace_id(),
                    "request"
                )
            };
        }
        telemetry.log(|| if warns { request!(warn) } else { request!(info) });
    }
}

impl Pending {
    /// Ends the request's span and its children, which exports them if they are sampled.
    fn end_spans(&mut self, end: Instant) {
        if self.telemetry.exporter.is_none() || !self.span.is_recording() {
            return;
        }
        self.span.set_attribute(KeyValue::new("http.route", self.route.clone()));
        self.span.set_attribute(KeyValue::new("http.response.status_code", i64::from(self.status)));
        self.span.set_attributes(std::mem::take(&mut self.record.attributes));
        if self.status >= StatusCode::INTERNAL_SERVER_ERROR.as_u16() {
            self.span.set_status(Status::error(""));
        }
        let children = std::mem::take(&mut self.record.spans);
        emit_children(&self.telemetry, self.span.span_context(), children);
        self.span.end_with_timestamp(self.telemetry.system_time(end));
    }
}

/// Emits finished spans below `parent`.
fn emit_children(telemetry: &Telemetry, parent: &SpanContext, records: Vec<SpanRecord>) {
    let (tracer, parent) = (telemetry.tracer(false), Context::new().with_remote_span_context(parent.clone()));
    for record in records {
        let mut span = tracer
            .span_builder(record.name)
            .with_start_time(telemetry.system_time(record.start))
            .with_attributes(record.attributes)
            .start_with_context(tracer, &parent);
        emit_children(telemetry, span.span_context(), record.children);
        span.end_with_timestamp(telemetry.system_time(record.end));
    }
}

/// Milliseconds with three decimals.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// A response body that holds the record of its request until it is sent.
struct Recorded {
    /// Dropped before `pending`, whose record it may still set.
    body: Body,
    pending: Pending,
}

impl HttpBody for Recorded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.pending.complete = self.body.is_end_stream();
    }
}
