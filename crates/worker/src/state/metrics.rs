//! Prometheus metrics: TEI's and vLLM's under their original names, all others with the prefix `sconce_`.

use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Registry,
    TextEncoder,
};

use crate::state::generation_metrics::GenerationMetrics;
use crate::state::registrar::Registrar;
use crate::state::work::Work;
use sconce::GenerationLoad;
use sconce::core::report::Footprint;

/// The metrics of one server.
pub(crate) struct Metrics {
    registry: Registry,
    /// Requests by method.
    pub(crate) requests: IntCounterVec,
    successes: IntCounterVec,
    failures: IntCounterVec,
    duration: HistogramVec,
    phases: [Histogram; 3],
    input_length: Histogram,
    pub(crate) queue_size: IntGaugeVec,
    batch_size: Histogram,
    batch_tokens: Histogram,
    /// TEI's metrics of each operation.
    operations: Vec<(&'static str, OperationMetrics)>,
    pub(crate) queue_tokens: IntGaugeVec,
    /// Computed tokens by model and placement.
    pub(crate) tokens: IntCounterVec,
    batches: HistogramVec,
    seconds: HistogramVec,
    /// Quarantined placements by model, placement and kind of incident.
    pub(crate) trips: IntCounterVec,
    pub(crate) fallbacks: IntCounterVec,
    /// Failed placements by model, placement, the placement that serves instead, and reason.
    pub(crate) downgrades: IntCounterVec,
    pub(crate) splits: IntCounterVec,
    /// Recovery attempts of quarantined placements by model, placement and outcome.
    pub(crate) recoveries: IntCounterVec,
    /// Requests whose client disconnected.
    pub(crate) cancelled: IntCounterVec,
    /// Tokens of cancelled requests that were not computed.
    pub(crate) cancelled_tokens: IntCounterVec,
    truncated: IntCounterVec,
    ready: IntGaugeVec,
    /// Measured throughput of large batches.
    pub(crate) rate: IntGaugeVec,
    pub(crate) concurrency: IntGaugeVec,
    answers: IntCounterVec,
    loads: IntCounterVec,
    unloads: IntCounterVec,
    model_bytes: IntGaugeVec,
    process_bytes: IntGaugeVec,
    /// Cosine similarity to the reference.
    pub(crate) shadow_cosine: HistogramVec,
    /// Shadow checks by model, placement and outcome.
    pub(crate) shadow_checks: IntCounterVec,
    /// Failed callbacks to the pool manager.
    pub(crate) callback_failures: IntCounter,
    pub(crate) generation: GenerationMetrics,
}

/// TEI's metrics of one operation.
struct OperationMetrics {
    count: IntCounter,
    success: IntCounter,
    duration: Histogram,
    phases: [Histogram; 3],
}

const PHASES: [&str; 3] = ["tokenization", "queue", "inference"];

impl Metrics {
    pub(crate) fn new() -> Result<Metrics, prometheus::Error> {
        let registry = Registry::new();
        let make = Registrar { registry: &registry };
        let placed = &["model", "placement"];
        Ok(Metrics {
            requests: make.counters("te_request_count", "Requests", &["method"])?,
            successes: make.counters("te_request_success", "Successful requests", &["method"])?,
            failures: make.counters("te_request_failure", "Refused requests by code", &["err"])?,
            duration: make.many_times(
                "te_request_duration",
                "Duration of a request in seconds",
                &["method"],
            )?,
            phases: phases(&make, "te_request")?,
            input_length: make.sizes("te_request_input_length", "Tokens per request")?,
            queue_size: make.gauges("te_queue_size", "Waiting texts", &["model"])?,
            batch_size: make.sizes("te_batch_next_size", "Texts per batch")?,
            batch_tokens: make.sizes("te_batch_next_tokens", "Tokens per batch")?,
            operations: operations(&make)?,
            queue_tokens: make.gauges("sconce_queue_tokens", "Waiting tokens", &["model"])?,
            tokens: make.counters("sconce_tokens_computed_total", "Computed tokens", placed)?,
            batches: make.many_sizes("sconce_batch_tokens", "Tokens per batch", placed)?,
            seconds: make.many_times("sconce_batch_seconds", "Duration of a batch in seconds", placed)?,
            trips: make.counters(
                "sconce_guard_trips_total",
                "Placements quarantined by an incident during computation",
                &["model", "placement", "kind"],
            )?,
            fallbacks: make.counters(
                "sconce_fallbacks_total",
                "Batches replayed on a fallback placement",
                placed,
            )?,
            downgrades: make.counters(
                "sconce_downgrades_total",
                "Placements that failed to prove, load or compute, and the placement that serves instead",
                &["model", "from", "to", "reason"],
            )?,
            splits: make.counters("sconce_batch_splits_total", "Batches split for lack of memory", placed)?,
            recoveries: make.counters(
                "sconce_recoveries_total",
                "Recovery attempts of quarantined placements by outcome: recovered, failed, no_memory",
                &["model", "placement", "outcome"],
            )?,
            cancelled: make.counters(
                "sconce_cancelled_total",
                "Requests cancelled by their client",
                &["model"],
            )?,
            cancelled_tokens: make.counters(
                "sconce_cancelled_tokens_total",
                "Tokens of cancelled requests that were not computed",
                &["model"],
            )?,
            truncated: make.counters("sconce_truncated_total", "Truncated texts", &["model"])?,
            ready: make.gauges("sconce_ready", "Whether the model is loaded", &["model"])?,
            rate: make.gauges(
                "sconce_tokens_per_second",
                "Measured throughput of large batches in tokens per second",
                &["model"],
            )?,
            concurrency: make.gauges("sconce_concurrency", "Maximum number of concurrent batches", placed)?,
            answers: make.counters(
                "sconce_answers_total",
                "Successful requests by model",
                &["model", "method"],
            )?,
            loads: make.counters("sconce_loads_total", "Loads of the model", &["model"])?,
            unloads: make.counters(
                "sconce_unloads_total",
                "Unloads of the model by reason: idle, eviction, memory_limit",
                &["model", "reason"],
            )?,
            model_bytes: make.gauges(
                "sconce_model_bytes",
                "Memory of the model at its last load: predicted, measured and peak",
                &["model", "kind"],
            )?,
            process_bytes: make.gauges(
                "sconce_process_bytes",
                "Resident memory of the process and of its provers, and the memory limit",
                &["kind"],
            )?,
            shadow_cosine: make.register(HistogramVec::new(
                HistogramOpts::new(
                    "sconce_shadow_cosine",
                    "Cosine similarity of embeddings to the reference",
                )
                .buckets(vec![0.0, 0.5, 0.9, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0]),
                placed,
            )?)?,
            shadow_checks: make.counters(
                "sconce_shadow_checks_total",
                "Shadow checks against the reference by outcome: agrees, drifts, demoted, failed, no_memory",
                &["model", "placement", "outcome"],
            )?,
            callback_failures: make
                .counter("sconce_callback_failures_total", "Failed callbacks to the pool manager")?,
            generation: GenerationMetrics::new(&make)?,
            registry,
        })
    }

    /// Records a refused request.
    pub(crate) fn refused(&self, code: &str) {
        self.failures.with_label_values(&[code]).inc();
    }

    /// Records a successful request.
    pub(crate) fn answered(&self, method: &str, model: &str, work: &Work, seconds: f64) {
        self.successes.with_label_values(&[method]).inc();
        self.duration.with_label_values(&[method]).observe(seconds);
        if work.texts == 0 {
            return;
        }
        let times = [work.tokenizing, work.queued, work.computing].map(|time| time.as_secs_f64());
        let observe = |phases: &[Histogram; 3]| {
            for (phase, seconds) in phases.iter().zip(times) {
                phase.observe(seconds);
            }
        };
        self.answers.with_label_values(&[model, method]).inc();
        observe(&self.phases);
        self.input_length.observe(work.tokens as f64);
        self.truncated.with_label_values(&[model]).inc_by(work.truncated.len() as u64);
        let name = match method {
            "predict" | "rerank" => method,
            _ => "embed",
        };
        if let Some((_, operation)) = self.operations.iter().find(|(operation, _)| *operation == name) {
            operation.count.inc_by(work.texts as u64);
            operation.success.inc_by(work.texts as u64);
            operation.duration.observe(seconds);
            observe(&operation.phases);
        }
    }

    /// Records a generation that finished.
    pub(crate) fn generation_answered(&self, method: &str, model: &str, seconds: f64) {
        self.successes.with_label_values(&[method]).inc();
        self.duration.with_label_values(&[method]).observe(seconds);
        self.answers.with_label_values(&[model, method]).inc();
    }

    /// Records a configured model that is not loaded yet.
    pub(crate) fn listed(&self, model: &str) {
        self.ready.with_label_values(&[model]).set(0);
    }

    /// Records a load.
    pub(crate) fn loaded(&self, model: &str, predicted: Footprint, measured: Footprint) {
        self.loads.with_label_values(&[model]).inc();
        self.ready.with_label_values(&[model]).set(1);
        for (kind, bytes) in
            [("predicted", predicted.resident), ("measured", measured.resident), ("peak", measured.peak)]
        {
            self.model_bytes.with_label_values(&[model, kind]).set(saturating_i64(bytes));
        }
    }

    /// Records an unload.
    pub(crate) fn unloaded(&self, model: &str, reason: &str) {
        self.unloads.with_label_values(&[model, reason]).inc();
        self.generation.unloaded(model);
        self.ready.with_label_values(&[model]).set(0);
    }

    /// Records the memory of the process and its limit.
    pub(crate) fn memory(&self, resident: Option<u64>, provers: u64, limit: Option<u64>) {
        for (kind, bytes) in [("resident", resident), ("provers", Some(provers)), ("limit", limit)] {
            if let Some(bytes) = bytes {
                self.process_bytes.with_label_values(&[kind]).set(saturating_i64(bytes));
            }
        }
    }

    /// Records a batch.
    pub(crate) fn batch(&self, model: &str, placement: &str, texts: usize, tokens: usize, seconds: f64) {
        self.batch_size.observe(texts as f64);
        self.batch_tokens.observe(tokens as f64);
        self.tokens.with_label_values(&[model, placement]).inc_by(tokens as u64);
        self.batches.with_label_values(&[model, placement]).observe(tokens as f64);
        self.seconds.with_label_values(&[model, placement]).observe(seconds);
    }

    /// Records the load of a model's generations, if it generates.
    pub(crate) fn generation_load(
        &self,
        model: &str,
        placement: &str,
        read: impl FnOnce() -> Option<GenerationLoad>,
    ) {
        let tokens = self.generation.load(model, placement, read);
        self.tokens.with_label_values(&[model, placement]).inc_by(tokens);
    }

    /// All metrics in Prometheus text format.
    pub(crate) fn text(&self) -> String {
        let mut bytes = Vec::new();
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut bytes);
        String::from_utf8(bytes).unwrap_or_default()
    }
}

/// TEI's phases of a request.
fn phases(make: &Registrar<'_>, prefix: &str) -> Result<[Histogram; 3], prometheus::Error> {
    let one = |phase| make.times(&format!("{prefix}_{phase}_duration"), "Duration of this phase in seconds");
    Ok([one(PHASES[0])?, one(PHASES[1])?, one(PHASES[2])?])
}

fn operations(make: &Registrar<'_>) -> Result<Vec<(&'static str, OperationMetrics)>, prometheus::Error> {
    let operation = |name| {
        let prefix = format!("te_{name}");
        let operation = OperationMetrics {
            count: make.counter(&format!("{prefix}_count"), "Requested texts")?,
            success: make.counter(&format!("{prefix}_success"), "Successful texts")?,
            duration: make.times(&format!("{prefix}_duration"), "Duration of a request in seconds")?,
            phases: phases(make, &prefix)?,
        };
        Ok((name, operation))
    };
    ["embed", "predict", "rerank"].into_iter().map(operation).collect()
}

fn saturating_i64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
