//! Export of spans: OTLP over HTTP as JSON, in the background. Spans that cannot be sent are dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::{Key, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter,
};
use tracing::warn;
use ureq::tls::TlsConfig;

use crate::telemetry::log::Log;

/// Maximum number of spans that wait. Others are dropped, so that a slow collector delays no request.
const MAX_PENDING_SPANS: usize = 8192;
/// Delay until spans are exported in a batch.
const BATCH_DELAY: Duration = Duration::from_millis(500);
/// Timeout of a request to the collector.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How the encoder writes that a root span has no parent. The field is omitted instead.
const NO_PARENT: &str = r#""parentSpanId": "","#;

/// The collector of traces.
#[derive(Clone)]
pub struct Collector {
    /// Base URL of its OTLP over HTTP, without `/v1/traces`.
    pub endpoint: String,
    /// Headers of every request, such as an API key. `OTEL_EXPORTER_OTLP_HEADERS` adds to them.
    pub headers: Vec<(String, String)>,
    /// Name of this service, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` has one.
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

/// A tracer provider that exports to `collector` and logs the first of consecutive failures.
pub(crate) fn provider(collector: Collector, log: &Log) -> Result<SdkTracerProvider, ExporterBuildError> {
    let client = Client { agent: agent(collector.tls), failure: Arc::default() };
    let failure = Arc::clone(&client.failure);
    let otlp = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpJson)
        .with_endpoint(format!("{}/v1/traces", collector.endpoint.trim_end_matches('/')))
        .with_headers(collector.headers.into_iter().collect())
        .build()?;
    let exporter = Exporter { otlp, failure, failing: AtomicBool::new(false), log: log.clone() };
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(MAX_PENDING_SPANS)
        .with_scheduled_delay(BATCH_DELAY)
        .build();
    Ok(SdkTracerProvider::builder()
        .with_resource(resource(collector.service))
        .with_span_processor(BatchSpanProcessor::new(exporter, config))
        .build())
}

/// Attributes of this service. OpenTelemetry's environment variables apply.
fn resource(service: String) -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version.clone()).build();
    let name = resource.get(&Key::from_static_str("service.name"));
    // The SDK's name of a service that has none.
    if name.is_some_and(|name| !name.as_str().starts_with("unknown_service")) {
        return resource;
    }
    Resource::builder().with_attribute(version).with_service_name(service).build()
}

/// The OTLP exporter with a log of its failures.
#[derive(Debug)]
struct Exporter {
    otlp: opentelemetry_otlp::SpanExporter,
    /// The client's last failure.
    failure: Arc<Mutex<String>>,
    failing: AtomicBool,
    log: Log,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.otlp.export(batch).await;
        if !self.failing.swap(result.is_err(), Ordering::Relaxed) && result.is_err() {
            let why = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
            self.log.scope(|| warn!(spans, why, "traces can't be sent"));
        }
        result
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
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

/// The HTTP client of the exporter. It blocks the thread that exports.
#[derive(Debug)]
struct Client {
    agent: ureq::Agent,
    failure: Arc<Mutex<String>>,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let result = self.send(request);
        let failure = match &result {
            Ok(response) => format!("the collector's status: {}", response.status().as_u16()),
            Err(error) => error.to_string(),
        };
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        Ok(result?)
    }
}

impl Client {
    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (parts, body) = request.into_parts();
        let body = String::from_utf8_lossy(&body).replace(NO_PARENT, "");
        let (parts, mut body) = self.agent.run(Request::from_parts(parts, body))?.into_parts();
        Ok(Response::from_parts(parts, body.read_to_vec()?.into()))
    }
}
