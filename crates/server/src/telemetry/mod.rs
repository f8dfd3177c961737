//! What an operator sees of requests: a line in the log, and spans for whoever collects traces.

mod context;
mod export;
mod log;
mod span;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::keys::{Keys, Principal};
use crate::refusal::Refused;
use crate::request_context::Work;
use crate::routes::OPEN;
use crate::telemetry::context::Context;
use crate::telemetry::export::Exporter;
use crate::telemetry::log::{Level, Log};
use crate::telemetry::span::{Span, spans};
use crate::worker::short;

pub use export::Collector;
pub use log::LogFormat;

/// What is to be seen of a server.
#[derive(Clone, Debug, Default)]
pub struct TelemetryConfig {
    /// How its log is written; none writes none.
    pub log: Option<LogFormat>,
    /// Whether every request has a line in it, not only those that a server is to blame for.
    pub requests: bool,
    /// Who collects traces.
    pub traces: Option<Collector>,
}

/// What a server shows of itself.
pub(crate) struct Telemetry {
    log: Log,
    requests: bool,
    exporter: Option<Exporter>,
    /// One moment by both clocks, so that spans have the times of a calendar and the distances of a stopwatch.
    anchor: (Instant, SystemTime),
}

impl Telemetry {
    pub(crate) fn new(telemetry: &TelemetryConfig) -> Telemetry {
        let log = Log::start(telemetry.log);
        let exporter = telemetry.traces.clone().map(|collector| Exporter::start(collector, log.clone()));
        Telemetry { log, requests: telemetry.requests, exporter, anchor: (Instant::now(), SystemTime::now()) }
    }

    /// Something that is as it should be.
    pub(crate) fn tell(&self, event: &str, fields: &[(&str, Value)]) {
        self.log.write(Level::Info, event, fields);
    }

    /// Something that somebody should look at.
    pub(crate) fn warn(&self, event: &str, fields: &[(&str, Value)]) {
        self.log.write(Level::Warn, event, fields);
    }

    /// Sends and writes what is left, within `limit`.
    pub(crate) fn flush(&self, limit: Duration) {
        if let Some(exporter) = &self.exporter {
            exporter.flush(limit);
        }
        self.log.flush(limit);
    }

    fn at(&self, moment: Instant) -> SystemTime {
        let (instant, time) = self.anchor;
        match moment.checked_duration_since(instant) {
            Some(later) => time + later,
            None => time - instant.duration_since(moment),
        }
    }

    fn has_seen(&self, context: &Context, route: &str, began: Instant, response: &Response, keys: &Keys) {
        let (ended, status) = (Instant::now(), response.status().as_u16());
        let work = response.extensions().get::<Work>();
        if let Some(exporter) = &self.exporter
            && context.sampled
            && !OPEN.contains(&route)
        {
            let request = Span::request(context, route, status, began, ended);
            exporter.send(spans(request, work, &|moment| self.at(moment)));
        }
        // TEI's clients know a failed dependency, 424, where others are told 5xx; who asks whether it is up knows why.
        let theirs = status < 500 && status != 424 || OPEN.contains(&route);
        if theirs && !self.requests {
            return;
        }
        let mut fields = vec![
            ("route", json!(route)),
            ("status", json!(status)),
            ("ms", json!(milliseconds(ended.duration_since(began)))),
        ];
        if let Some(work) = work.filter(|work| work.texts > 0) {
            fields.extend([
                ("model", json!(work.model)),
                ("texts", json!(work.texts)),
                ("tokens", json!(work.tokens)),
                ("placement", json!(work.placements.iter().map(short).collect::<Vec<_>>().join(", "))),
                ("tokenize_ms", json!(milliseconds(work.tokenizing))),
                ("queue_ms", json!(milliseconds(work.queued))),
                ("compute_ms", json!(milliseconds(work.computing))),
            ]);
        }
        if let Some(refused) = response.extensions().get::<Refused>() {
            fields.push(("code", json!(refused.code)));
            fields.extend(refused.model.as_ref().map(|model| ("model", json!(model))));
        }
        if let Some(principal) = response.extensions().get::<Principal>().filter(|_| !keys.is_empty()) {
            fields.push(("key", json!(keys.name(principal.tenant))));
        }
        fields.push(("trace", json!(context.trace())));
        if theirs { self.tell("request", &fields) } else { self.warn("request", &fields) }
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Sees a request on its way in and its answer on its way out.
pub(crate) async fn watch(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let context = Context::of(request.headers());
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("none", MatchedPath::as_str).to_owned();
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&context.header()) {
        response.headers_mut().insert("traceparent", value);
    }
    app.telemetry.has_seen(&context, &route, began, &response, &app.settings().keys);
    response
}
