//! Telemetry: a log line and spans for each request.

mod context;
mod export;
mod log;
mod record;
mod sink;
mod span;

pub use export::Collector;
pub use log::LogFormat;
pub(crate) use record::record;
pub use sink::{Telemetry, TelemetryConfig};
pub use span::{DeferredRecord, RequestRecord, SpanRecord, Traceparent};
