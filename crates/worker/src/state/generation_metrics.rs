//! Metrics of text generation, under vLLM's names.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus::{CounterVec, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};
use sconce::GenerationLoad;

use crate::state::registrar::Registrar;

/// Buckets of times to the first token, in seconds.
const FIRST_TOKEN: [f64; 18] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0];
/// Buckets of times between tokens, in seconds.
const BETWEEN_TOKENS: [f64; 15] =
    [0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
/// Buckets of times of a request, in seconds.
const REQUEST: [f64; 14] = [0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 480.0];

/// Metrics of text generation by `model_name`, and of its steps by `model` and `placement`.
pub(crate) struct GenerationMetrics {
    running: IntGaugeVec,
    waiting: IntGaugeVec,
    cache_usage: GaugeVec,
    preemptions: IntCounterVec,
    prefix_queries: IntCounterVec,
    prefix_hits: IntCounterVec,
    prompt_tokens: IntCounterVec,
    generated_tokens: IntCounterVec,
    successes: IntCounterVec,
    first_token: HistogramVec,
    between_tokens: HistogramVec,
    request: HistogramVec,
    decode: HistogramVec,
    steps: IntCounterVec,
    step_seconds: CounterVec,
    /// The load of each model that was recorded last.
    recorded: Mutex<HashMap<String, GenerationLoad>>,
}

/// One finished request.
pub(crate) struct FinishedGeneration<'a> {
    pub(crate) model: &'a str,
    pub(crate) prompt_tokens: usize,
    pub(crate) generated_tokens: usize,
    /// Why each output ended.
    pub(crate) reasons: &'a [&'static str],
    pub(crate) first_token: Option<Duration>,
    pub(crate) total: Duration,
}

impl GenerationMetrics {
    pub(super) fn new(make: &Registrar<'_>) -> Result<GenerationMetrics, prometheus::Error> {
        let by_model = &["model_name"];
        let counter = |name, help| make.counters(name, help, by_model);
        let times = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            make.register(HistogramVec::new(options, by_model)?)
        };
        let placed = &["model", "placement"];
        let seconds = Opts::new("sconce_generation_step_seconds_total", "Time of the steps in seconds");
        let usage = Opts::new("vllm:kv_cache_usage_perc", "Used part of the KV cache: 1 is all of it");
        Ok(GenerationMetrics {
            running: make.gauges("vllm:num_requests_running", "Outputs in the running batch", by_model)?,
            waiting: make.gauges("vllm:num_requests_waiting", "Outputs that wait", by_model)?,
            cache_usage: make.register(GaugeVec::new(usage, by_model)?)?,
            preemptions: counter("vllm:num_preemptions_total", "Outputs that lost their KV cache blocks")?,
            prefix_queries: counter(
                "vllm:prefix_cache_queries_total",
                "Tokens that were looked up in the prefix cache",
            )?,
            prefix_hits: counter("vllm:prefix_cache_hits_total", "Tokens that the prefix cache had")?,
            prompt_tokens: counter("vllm:prompt_tokens_total", "Tokens of prompts")?,
            generated_tokens: counter("vllm:generation_tokens_total", "Generated tokens")?,
            successes: make.counters(
                "vllm:request_success_total",
                "Finished outputs by reason: stop, length, tool_calls",
                &["model_name", "finished_reason"],
            )?,
            first_token: times(
                "vllm:time_to_first_token_seconds",
                "Time to the first token in seconds",
                &FIRST_TOKEN,
            )?,
            between_tokens: times(
                "vllm:inter_token_latency_seconds",
                "Time between two tokens of an output in seconds",
                &BETWEEN_TOKENS,
            )?,
            request: times("vllm:e2e_request_latency_seconds", "Duration of a request in seconds", &REQUEST)?,
            decode: times(
                "vllm:request_decode_time_seconds",
                "Time from the first to the last token in seconds",
                &REQUEST,
            )?,
            steps: make.counters("sconce_generation_steps_total", "Steps of generations", placed)?,
            step_seconds: make.register(CounterVec::new(seconds, placed)?)?,
            recorded: Mutex::default(),
        })
    }

    /// Records the time since the previous token of an output.
    pub(crate) fn token(&self, model: &str, since: Duration) {
        self.between_tokens.with_label_values(&[model]).observe(since.as_secs_f64());
    }

    /// Records a request that ended, or whose client left.
    pub(crate) fn finished(&self, request: &FinishedGeneration<'_>) {
        let model = [request.model];
        self.prompt_tokens.with_label_values(&model).inc_by(request.prompt_tokens as u64);
        self.generated_tokens.with_label_values(&model).inc_by(request.generated_tokens as u64);
        for reason in request.reasons {
            self.successes.with_label_values(&[request.model, reason]).inc();
        }
        if let Some(first) = request.first_token {
            self.first_token.with_label_values(&model).observe(first.as_secs_f64());
            if !request.reasons.is_empty() {
                self.request.with_label_values(&model).observe(request.total.as_secs_f64());
                let decode = request.total.saturating_sub(first);
                self.decode.with_label_values(&model).observe(decode.as_secs_f64());
            }
        }
    }

    /// Records the load of a model's step loop, which `read` reads. Returns the number of tokens that were computed since
    /// the last time.
    pub(super) fn load(
        &self,
        model: &str,
        placement: &str,
        read: impl FnOnce() -> Option<GenerationLoad>,
    ) -> u64 {
        // Read under the lock: of two readers at once, the later one has the later load.
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(load) = read() else { return 0 };
        let name = [model];
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.running.with_label_values(&name).set(gauge(load.running));
        self.waiting.with_label_values(&name).set(gauge(load.waiting));
        let used = load.used_blocks as f64 / load.blocks.max(1) as f64;
        self.cache_usage.with_label_values(&name).set(used);
        let earlier = recorded.insert(model.to_owned(), load);
        let gained = load.since(&earlier.unwrap_or_default());
        self.preemptions.with_label_values(&name).inc_by(gained.preemptions);
        self.prefix_queries.with_label_values(&name).inc_by(gained.prefix_queries);
        self.prefix_hits.with_label_values(&name).inc_by(gained.prefix_hits);
        let placed = [model, placement];
        self.steps.with_label_values(&placed).inc_by(gained.steps);
        self.step_seconds.with_label_values(&placed).inc_by(gained.step_time.as_secs_f64());
        gained.prefill_tokens + gained.decode_tokens
    }

    /// Records that a model was unloaded: nothing runs or waits.
    pub(super) fn unloaded(&self, model: &str) {
        let name = [model];
        if self.recorded.lock().unwrap_or_else(PoisonError::into_inner).remove(model).is_some() {
            self.running.with_label_values(&name).set(0);
            self.waiting.with_label_values(&name).set(0);
            self.cache_usage.with_label_values(&name).set(0.0);
        }
    }
}
