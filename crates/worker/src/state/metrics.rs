//! What is counted: TEI's names kept as they are, the rest under `sconce_` with model and placement.

use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder, exponential_buckets,
};

use crate::state::work::Work;
use sconce::core::report::Footprint;

/// What is counted. Each server has its own.
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
    /// TEI's counters of texts, by what is done with them.
    families: Vec<(&'static str, Family)>,
    pub(crate) queue_tokens: IntGaugeVec,
    /// Tokens that were computed, by model and placement.
    pub(crate) tokens: IntCounterVec,
    batches: HistogramVec,
    seconds: HistogramVec,
    /// Placements taken out of service, by model, placement and kind.
    pub(crate) trips: IntCounterVec,
    pub(crate) fallbacks: IntCounterVec,
    /// Placements that failed, by model, placement, the one that serves instead, and reason.
    pub(crate) downgrades: IntCounterVec,
    pub(crate) splits: IntCounterVec,
    /// Tries of placements that were out of service, by model, placement and outcome.
    pub(crate) returns: IntCounterVec,
    /// Requests whose client has gone, and the tokens that this spared.
    pub(crate) cancelled: IntCounterVec,
    pub(crate) spared: IntCounterVec,
    truncated: IntCounterVec,
    ready: IntGaugeVec,
    /// Tokens a second that large batches reach, as measured.
    pub(crate) rate: IntGaugeVec,
    pub(crate) concurrency: IntGaugeVec,
    answers: IntCounterVec,
    loads: IntCounterVec,
    unloads: IntCounterVec,
    model_bytes: IntGaugeVec,
    process_bytes: IntGaugeVec,
    /// How alike batches are to the reference's, and what followed.
    pub(crate) shadow_cosine: HistogramVec,
    pub(crate) shadow_checks: IntCounterVec,
    /// Calls to a pool's manager that were not taken.
    pub(crate) callback_failures: IntCounter,
}

/// TEI counts texts by what is done with them.
struct Family {
    count: IntCounter,
    success: IntCounter,
    duration: Histogram,
    phases: [Histogram; 3],
}

const PHASES: [&str; 3] = ["tokenization", "queue", "inference"];

impl Metrics {
    pub(crate) fn new() -> Result<Metrics, prometheus::Error> {
        let registry = Registry::new();
        let make = Maker { registry: &registry };
        let placed = &["model", "placement"];
        Ok(Metrics {
            requests: make.counters("te_request_count", "Requests", &["method"])?,
            successes: make.counters("te_request_success", "Requests answered", &["method"])?,
            failures: make.counters("te_request_failure", "Requests refused", &["err"])?,
            duration: make.many_times("te_request_duration", "Seconds for a request", &["method"])?,
            phases: make.phases("te_request")?,
            input_length: make.sizes("te_request_input_length", "Tokens of a request")?,
            queue_size: make.gauges("te_queue_size", "Texts that wait", &["model"])?,
            batch_size: make.sizes("te_batch_next_size", "Texts in a batch")?,
            batch_tokens: make.sizes("te_batch_next_tokens", "Tokens in a batch")?,
            families: make.families()?,
            queue_tokens: make.gauges("sconce_queue_tokens", "Tokens that wait", &["model"])?,
            tokens: make.counters("sconce_tokens_computed_total", "Tokens computed", placed)?,
            batches: make.many_sizes("sconce_batch_tokens", "Tokens in a batch", placed)?,
            seconds: make.many_times("sconce_batch_seconds", "Seconds for a batch", placed)?,
            trips: make.counters(
                "sconce_guard_trips_total",
                "Placements taken out of service while they computed",
                &["model", "placement", "kind"],
            )?,
            fallbacks: make.counters(
                "sconce_fallbacks_total",
                "Batches replayed on another placement",
                placed,
            )?,
            downgrades: make.counters(
                "sconce_downgrades_total",
                "Placements that failed when they were proved, loaded or computing, and what serves instead",
                &["model", "from", "to", "reason"],
            )?,
            splits: make.counters(
                "sconce_batch_splits_total",
                "Batches split because memory ran out",
                placed,
            )?,
            returns: make.counters(
                "sconce_returns_total",
                "Placements out of service that were tried again: returned, refused; no_room where no prover fits",
                &["model", "placement", "outcome"],
            )?,
            cancelled: make.counters("sconce_cancelled_total", "Requests whose client left", &["model"])?,
            spared: make.counters(
                "sconce_cancelled_tokens_total",
                "Tokens that were never computed because their client left",
                &["model"],
            )?,
            truncated: make.counters("sconce_truncated_total", "Texts that were cut", &["model"])?,
            ready: make.gauges("sconce_ready", "Whether the model serves", &["model"])?,
            rate: make.gauges(
                "sconce_tokens_per_second",
                "Tokens a second that large batches reach, as measured",
                &["model"],
            )?,
            concurrency: make.gauges(
                "sconce_concurrency",
                "Batches that are computed at once where all threads are busy",
                placed,
            )?,
            answers: make.counters("sconce_answers_total", "Requests answered", &["model", "method"])?,
            loads: make.counters("sconce_loads_total", "Times that the model was loaded", &["model"])?,
            unloads: make.counters(
                "sconce_unloads_total",
                "Times that the model was unloaded: because it was idle, to make room, or over the limit",
                &["model", "why"],
            )?,
            model_bytes: make.gauges(
                "sconce_model_bytes",
                "Memory that the model was predicted to take and took at its last load, and at most meanwhile",
                &["model", "kind"],
            )?,
            process_bytes: make.gauges(
                "sconce_process_bytes",
                "Memory that the process has, that its prover children have, and that all of them may have",
                &["kind"],
            )?,
            shadow_cosine: make.keep(HistogramVec::new(
                HistogramOpts::new("sconce_shadow_cosine", "Cosines of vectors to those of the reference")
                    .buckets(vec![0.0, 0.5, 0.9, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0]),
                placed,
            )?)?,
            shadow_checks: make.counters(
                "sconce_shadow_checks_total",
                "Batches that the reference computed again: agrees, drifts, demoted, failed; no_room where the reference does not fit",
                &["model", "placement", "outcome"],
            )?,
            callback_failures: make.counter(
                "sconce_callback_failures_total",
                "Calls to the pool's manager that were not taken",
            )?,
            registry,
        })
    }

    /// A request that was refused.
    pub(crate) fn refused(&self, code: &str) {
        self.failures.with_label_values(&[code]).inc();
    }

    /// A request that was answered.
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
        if let Some((_, family)) = self.families.iter().find(|(family, _)| *family == name) {
            family.count.inc_by(work.texts as u64);
            family.success.inc_by(work.texts as u64);
            family.duration.observe(seconds);
            observe(&family.phases);
        }
    }

    /// A model that is there and not loaded yet.
    pub(crate) fn listed(&self, model: &str) {
        self.ready.with_label_values(&[model]).set(0);
    }

    /// A model that was loaded.
    pub(crate) fn loaded(&self, model: &str, guess: Footprint, truth: Footprint) {
        self.loads.with_label_values(&[model]).inc();
        self.ready.with_label_values(&[model]).set(1);
        for (kind, bytes) in
            [("predicted", guess.resident), ("measured", truth.resident), ("peak", truth.peak)]
        {
            self.model_bytes.with_label_values(&[model, kind]).set(whole(bytes));
        }
    }

    /// A model that was unloaded.
    pub(crate) fn unloaded(&self, model: &str, why: &str) {
        self.unloads.with_label_values(&[model, why]).inc();
        self.ready.with_label_values(&[model]).set(0);
    }

    /// What the process has, and may have.
    pub(crate) fn memory(&self, resident: Option<u64>, provers: u64, limit: Option<u64>) {
        for (kind, bytes) in [("resident", resident), ("provers", Some(provers)), ("limit", limit)] {
            if let Some(bytes) = bytes {
                self.process_bytes.with_label_values(&[kind]).set(whole(bytes));
            }
        }
    }

    /// A batch that was computed.
    pub(crate) fn batch(&self, model: &str, placement: &str, texts: usize, tokens: usize, seconds: f64) {
        self.batch_size.observe(texts as f64);
        self.batch_tokens.observe(tokens as f64);
        self.tokens.with_label_values(&[model, placement]).inc_by(tokens as u64);
        self.batches.with_label_values(&[model, placement]).observe(tokens as f64);
        self.seconds.with_label_values(&[model, placement]).observe(seconds);
    }

    /// All of it, as Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut bytes = Vec::new();
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut bytes);
        String::from_utf8(bytes).unwrap_or_default()
    }
}

/// Makes what is counted and registers it.
struct Maker<'a> {
    registry: &'a Registry,
}

impl Maker<'_> {
    fn keep<T: Collector + Clone + 'static>(&self, made: T) -> Result<T, prometheus::Error> {
        self.registry.register(Box::new(made.clone()))?;
        Ok(made)
    }

    /// TEI's phases of a request.
    fn phases(&self, prefix: &str) -> Result<[Histogram; 3], prometheus::Error> {
        let one = |phase| self.times(&format!("{prefix}_{phase}_duration"), "Seconds in this phase");
        Ok([one(PHASES[0])?, one(PHASES[1])?, one(PHASES[2])?])
    }

    fn families(&self) -> Result<Vec<(&'static str, Family)>, prometheus::Error> {
        let family = |name| {
            let prefix = format!("te_{name}");
            let family = Family {
                count: self.counter(&format!("{prefix}_count"), "Texts asked for")?,
                success: self.counter(&format!("{prefix}_success"), "Texts answered")?,
                duration: self.times(&format!("{prefix}_duration"), "Seconds for a request")?,
                phases: self.phases(&prefix)?,
            };
            Ok((name, family))
        };
        ["embed", "predict", "rerank"].into_iter().map(family).collect()
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.keep(IntCounter::new(name, help)?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.keep(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn times(&self, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
        self.keep(Histogram::with_opts(times(name, help)?)?)
    }

    fn many_times(&self, name: &str, help: &str, labels: &[&str]) -> Result<HistogramVec, prometheus::Error> {
        self.keep(HistogramVec::new(times(name, help)?, labels)?)
    }

    fn sizes(&self, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
        self.keep(Histogram::with_opts(sizes(name, help)?)?)
    }

    fn many_sizes(&self, name: &str, help: &str, labels: &[&str]) -> Result<HistogramVec, prometheus::Error> {
        self.keep(HistogramVec::new(sizes(name, help)?, labels)?)
    }
}

/// Buckets from a tenth of a millisecond to half a minute.
fn times(name: &str, help: &str) -> Result<HistogramOpts, prometheus::Error> {
    Ok(HistogramOpts::new(name, help).buckets(exponential_buckets(1e-4, 2.0, 19)?))
}

/// Buckets from one to half a million.
fn sizes(name: &str, help: &str) -> Result<HistogramOpts, prometheus::Error> {
    Ok(HistogramOpts::new(name, help).buckets(exponential_buckets(1.0, 2.0, 20)?))
}

fn whole(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
