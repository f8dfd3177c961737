//! Where telemetry goes: the log and the exporter of traces.

use std::time::{Duration, Instant, SystemTime};

use opentelemetry::InstrumentationScope;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::warn;

use crate::telemetry::export::{Collector, provider};
use crate::telemetry::log::{Log, LogFormat};

/// Log and traces of a server.
#[derive(Clone, Debug, Default)]
pub struct TelemetryConfig {
    /// Format of the log. None writes no log.
    pub log: Option<LogFormat>,
    /// Whether every request is logged, not only those that failed on the server's side.
    pub requests: bool,
    /// The collector of traces.
    pub traces: Option<Collector>,
}

/// Writes the log and exports traces.
pub struct Telemetry {
    log: Log,
    /// Whether every request is logged.
    pub(super) requests: bool,
    /// Exports spans. None if there is no collector.
    pub(super) exporter: Option<SdkTracerProvider>,
    /// Makes spans that are exported, and spans that only have ids.
    tracers: [SdkTracer; 2],
    /// One moment by both clocks: spans are measured by the monotonic clock and exported in system time.
    anchor: (Instant, SystemTime),
}

impl Telemetry {
    pub(crate) fn new(config: &TelemetryConfig) -> Telemetry {
        let log = Log::start(config.log);
        let exporter = config.traces.clone().and_then(|collector| {
            let warn = |error: &_| log.scope(|| warn!(why = %error, "traces can't be sent"));
            provider(collector, &log).inspect_err(warn).ok()
        });
        let tracer = |provider: &SdkTracerProvider| {
            let scope = InstrumentationScope::builder("sconce").with_version(env!("CARGO_PKG_VERSION"));
            provider.tracer_with_scope(scope.build())
        };
        let idle = SdkTracerProvider::default();
        let tracers = [tracer(exporter.as_ref().unwrap_or(&idle)), tracer(&idle)];
        let anchor = (Instant::now(), SystemTime::now());
        Telemetry { log, requests: config.requests, exporter, tracers, anchor }
    }

    /// Writes the `tracing` events that `emit` emits to the log of this server.
    pub fn log(&self, emit: impl FnOnce()) {
        self.log.scope(emit);
    }

    /// The tracer of requests, or of probes, which are not exported.
    pub(super) fn tracer(&self, is_probe: bool) -> &SdkTracer {
        &self.tracers[usize::from(is_probe)]
    }

    /// Exports and writes what is buffered, within `limit`. Later spans are not exported.
    pub(crate) fn flush(&self, limit: Duration) {
        if let Some(exporter) = &self.exporter {
            let _ = exporter.shutdown_with_timeout(limit);
        }
        self.log.flush(limit);
    }

    pub(super) fn system_time(&self, moment: Instant) -> SystemTime {
        let (instant, time) = self.anchor;
        match moment.checked_duration_since(instant) {
            Some(later) => time + later,
            None => time - instant.duration_since(moment),
        }
    }
}
