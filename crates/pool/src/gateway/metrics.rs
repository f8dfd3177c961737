//! Prometheus metrics of a gateway, with the prefix `sconce_gateway_`.

use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    exponential_buckets,
};

/// The metrics of one gateway.
pub(super) struct Metrics {
    registry: Registry,
    /// Forwarded requests by outcome: `ok`, `refused`, `failed`, `cancelled`. Each request has one outcome.
    pub(super) requests: IntCounterVec,
    /// Refused requests by code, with those of the gateway itself.
    pub(super) refusals: IntCounterVec,
    /// Attempts by worker and outcome: `ok`, `refused`, `failed`, `cancelled`.
    pub(super) attempts: IntCounterVec,
    /// Second attempts by the code of the first.
    pub(super) retries: IntCounterVec,
    /// Hedged requests by which attempt answered: `first`, `second`.
    pub(super) hedges: IntCounterVec,
    /// Time to the headers of an answer.
    pub(super) seconds: Histogram,
    /// Members by state.
    pub(super) members: IntGaugeVec,
    /// Requests in flight from this gateway, by worker.
    pub(super) in_flight: IntGaugeVec,
    /// Open circuits by worker.
    pub(super) open_circuits: IntGaugeVec,
    /// Whether the registry is connected.
    pub(super) connected: IntGauge,
    /// Requests that wait for a model to be loaded.
    pub(super) waiting: IntGauge,
    /// Loads that this gateway has ordered, by outcome: `ok`, `failed`.
    pub(super) model_loads: IntCounterVec,
    /// Unloads that this gateway has ordered, by outcome: `ok`, `failed`.
    pub(super) model_unloads: IntCounterVec,
    /// Replicas of desired models by state: `loaded`, `loading`, `missing`.
    pub(super) replicas: IntGaugeVec,
    /// Whether this gateway places models.
    pub(super) placement_leader: IntGauge,
    /// Whether nothing is moved, because many workers have vanished.
    pub(super) placement_held: IntGauge,
}

impl Metrics {
    pub(super) fn new() -> Result<Metrics, prometheus::Error> {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, labels: &[&str]| {
            register(&registry, IntCounterVec::new(Opts::new(name, help), labels)?)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            register(&registry, IntGaugeVec::new(Opts::new(name, help), labels)?)
        };
        let gauge = |name: &str, help: &str| register(&registry, IntGauge::new(name, help)?);
        let seconds = HistogramOpts::new(
            "sconce_gateway_request_seconds",
            "Time from a request to the headers of its answer in seconds",
        );
        Ok(Metrics {
            requests: counters(
                "sconce_gateway_requests_total",
                "Forwarded requests by outcome: ok, refused, failed, cancelled",
                &["outcome"],
            )?,
            refusals: counters("sconce_gateway_refusals_total", "Refused requests by code", &["code"])?,
            attempts: counters(
                "sconce_gateway_attempts_total",
                "Requests to workers by outcome: ok, refused, failed, cancelled",
                &["worker", "outcome"],
            )?,
            retries: counters(
                "sconce_gateway_retries_total",
                "Requests that were sent to a second worker, by the code of the first",
                &["code"],
            )?,
            hedges: counters(
                "sconce_gateway_hedges_total",
                "Hedged requests by the attempt that answered: first, second, none",
                &["answered"],
            )?,
            seconds: register(
                &registry,
                Histogram::with_opts(seconds.buckets(exponential_buckets(1e-4, 2.0, 19)?))?,
            )?,
            members: gauges("sconce_gateway_members", "Members of the pool by state", &["state"])?,
            in_flight: gauges("sconce_gateway_in_flight", "Requests in flight by worker", &["worker"])?,
            open_circuits: gauges(
                "sconce_gateway_circuit_open",
                "Whether the circuit breaker of a worker is open",
                &["worker"],
            )?,
            connected: gauge("sconce_gateway_registry_connected", "Whether the registry is connected")?,
            waiting: gauge(
                "sconce_gateway_requests_waiting_for_model",
                "Requests that wait for a model to be loaded",
            )?,
            model_loads: counters(
                "sconce_gateway_model_loads_total",
                "Loads that this gateway has ordered, by outcome: ok, failed",
                &["outcome"],
            )?,
            model_unloads: counters(
                "sconce_gateway_model_unloads_total",
                "Unloads that this gateway has ordered, by outcome: ok, failed",
                &["outcome"],
            )?,
            replicas: gauges(
                "sconce_gateway_replicas",
                "Replicas of desired models by state: loaded, loading, missing",
                &["model", "state"],
            )?,
            placement_leader: gauge(
                "sconce_gateway_placement_leader",
                "Whether this gateway places the models of the pool",
            )?,
            placement_held: gauge(
                "sconce_gateway_placement_held",
                "Whether no model is placed, because many workers have vanished",
            )?,
            registry,
        })
    }

    /// The metrics in Prometheus text format.
    pub(super) fn text(&self) -> String {
        let mut text = Vec::new();
        // Writing to memory fails only for metrics without a name.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }
}

fn register<T: Collector + Clone + 'static>(registry: &Registry, metric: T) -> Result<T, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
