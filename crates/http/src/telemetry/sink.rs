//! Where telemetry goes: the log and the exporter of traces.

use std::time::{Duration, Instant, SystemTime};

use crate::telemetry::export::{Collector, Exporter};
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
    pub(super) exporter: Option<Exporter>,
    /// One moment by both clocks: spans are measured by the monotonic clock and exported in system time.
    anchor: (Instant, SystemTime),
}

impl Telemetry {
    pub(crate) fn new(config: &TelemetryConfig) -> Telemetry {
        let log = Log::start(config.log);
        let exporter = config.traces.clone().map(|collector| Exporter::start(collector, log.clone()));
        Telemetry { log, requests: config.requests, exporter, anchor: (Instant::now(), SystemTime::now()) }
    }

    /// Writes the `tracing` events that `emit` emits to the log of this server.
    pub fn log(&self, emit: impl FnOnce()) {
        self.log.scope(emit);
    }

    /// Exports and writes what is buffered, within `limit`.
    pub(crate) fn flush(&self, limit: Duration) {
        if let Some(exporter) = &self.exporter {
            exporter.flush(limit);
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
