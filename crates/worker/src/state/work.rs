//! The work behind one response: for headers, metrics, the log and traces.

use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use sconce::{Incident, Placement, Truncation};
use sconce_http::telemetry::{RequestRecord, SpanRecord};

use crate::schedule::job::BatchTiming;
use crate::state::label::joined;

/// Maximum number of batches of one request that have spans.
const MAX_BATCH_SPANS: usize = 32;

/// The work behind one response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) model: String,
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
    /// Number of generated tokens.
    pub(crate) generated: Option<usize>,
    pub(crate) truncated: Vec<Truncation>,
    /// Number of chunks whose embeddings were averaged.
    pub(crate) chunks: Option<usize>,
    pub(crate) placements: Vec<Placement>,
    pub(crate) classes: Vec<String>,
    pub(crate) incidents: Vec<Incident>,
    pub(crate) tokenizing: Duration,
    pub(crate) queued: Duration,
    pub(crate) computing: Duration,
    /// Time until the first generated token.
    pub(crate) first_token: Option<Duration>,
    pub(crate) steps: Option<Steps>,
    pub(crate) generation: Option<GenerationTimes>,
}

/// Times of the steps of a request.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// Tokenizing began.
    pub(crate) arrived: Instant,
    pub(crate) tokenized: Instant,
    /// The queue admitted the texts.
    pub(crate) queued: Instant,
    pub(crate) batches: Vec<BatchTiming>,
}

/// Times of a generation with a first token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GenerationTimes {
    pub(crate) arrived: Instant,
    pub(crate) tokenized: Instant,
    pub(crate) first_token: Instant,
    pub(crate) ended: Instant,
    /// Tokens of the prompts that were in the prefix cache.
    pub(crate) cached: usize,
}

/// Adds the values that are not there yet.
pub(crate) fn extend_new<T: Clone + PartialEq>(values: &mut Vec<T>, others: &[T]) {
    for other in others {
        if !values.contains(other) {
            values.push(other.clone());
        }
    }
}

impl Work {
    /// The work as fields of the log line and as spans: tokenize, queue, and batch with compute for each batch; of a
    /// generation tokenize, prefill, decode.
    pub(crate) fn record(&self) -> RequestRecord {
        if self.texts == 0 {
            return RequestRecord::default();
        }
        let milliseconds = |time: Duration| Some((time.as_secs_f64() * 1e6).round() / 1e3);
        let placement = joined(&self.placements);
        let record = RequestRecord {
            model: Some(self.model.clone()),
            texts: Some(self.texts),
            tokens: Some(self.tokens),
            generated: self.generated,
            placement: Some(placement.clone()),
            tokenize_ms: milliseconds(self.tokenizing),
            queue_ms: milliseconds(self.queued),
            compute_ms: milliseconds(self.computing),
            ttft_ms: self.first_token.and_then(milliseconds),
            ..RequestRecord::default()
        };
        let count = |name, count: usize| KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX));
        let mut attributes = vec![
            KeyValue::new("sconce.model", self.model.clone()),
            count("sconce.texts", self.texts),
            count("sconce.tokens", self.tokens),
        ];
        if let Some(times) = &self.generation {
            let mut prefill = SpanRecord::new("prefill", times.tokenized, times.first_token);
            prefill.attributes =
                vec![count("sconce.tokens", self.tokens), count("sconce.cached_tokens", times.cached)];
            let mut decode = SpanRecord::new("decode", times.first_token, times.ended);
            decode.attributes = vec![
                count("sconce.generated_tokens", self.generated.unwrap_or(0)),
                KeyValue::new("sconce.placement", placement),
            ];
            let spans = vec![SpanRecord::new("tokenize", times.arrived, times.tokenized), prefill, decode];
            return RequestRecord { attributes, spans, ..record };
        }
        let Some(steps) = &self.steps else { return record };
        attributes.push(count("sconce.batches", steps.batches.len()));
        let mut spans = vec![SpanRecord::new("tokenize", steps.arrived, steps.tokenized)];
        spans.extend(steps.batches.first().map(|first| SpanRecord::new("queue", steps.queued, first.began)));
        spans.extend(steps.batches.iter().take(MAX_BATCH_SPANS).map(|batch| {
            let mut compute = SpanRecord::new("compute", batch.computing, batch.computed);
            compute.attributes.push(KeyValue::new("sconce.placement", placement.clone()));
            let mut span = SpanRecord::new("batch", batch.began, batch.ended);
            span.attributes =
                vec![count("sconce.batch.texts", batch.texts), count("sconce.batch.tokens", batch.tokens)];
            span.children.push(compute);
            span
        }));
        RequestRecord { attributes, spans, ..record }
    }
}
