//! Measurements at one concurrency: clients that each send one chat after another.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::{Value, json};

use super::stream::{Answer, chat};
use crate::bench::server::Server;

/// All chats at one concurrency.
pub(super) struct Level {
    pub(super) concurrency: usize,
    pub(super) requests: usize,
    /// Output tokens of all requests.
    tokens: usize,
    elapsed: Duration,
    /// Time to the first token of each request.
    pub(super) first: Latencies,
    /// Time between tokens of all requests.
    pub(super) between: Latencies,
}

/// Sorted latencies.
pub(super) struct Latencies(Vec<Duration>);

impl Latencies {
    fn new(mut all: Vec<Duration>) -> Latencies {
        all.sort_unstable();
        Latencies(all)
    }

    /// A percentile in milliseconds, by nearest rank. 0 if there are no latencies.
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(rank).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    }

    fn json(&self) -> Value {
        json!({ "p50": self.percentile(50), "p95": self.percentile(95) })
    }
}

impl Level {
    fn of(concurrency: usize, answers: Vec<Answer>, elapsed: Duration) -> Level {
        Level {
            concurrency,
            requests: answers.len(),
            tokens: answers.iter().map(|answer| answer.tokens).sum(),
            elapsed,
            first: Latencies::new(answers.iter().map(|answer| answer.first).collect()),
            between: Latencies::new(answers.into_iter().flat_map(|answer| answer.gaps).collect()),
        }
    }

    pub(super) fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.elapsed.as_secs_f64()
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "concurrency": self.concurrency,
            "requests": self.requests,
            "output_tokens": self.tokens,
            "output_tokens_per_s": self.tokens_per_s(),
            "time_to_first_token_ms": self.first.json(),
            "inter_token_latency_ms": self.between.json(),
        })
    }
}

/// Sends all prompts, `each` by one client after another, and waits for answers of `output` tokens.
pub(super) fn measure(
    server: &Server,
    prompts: &[String],
    each: usize,
    output: usize,
) -> anyhow::Result<Level> {
    let client = |prompts: &[String]| {
        prompts.iter().map(|prompt| chat(server, prompt, output)).collect::<anyhow::Result<Vec<Answer>>>()
    };
    let started = Instant::now();
    let answers = thread::scope(|scope| {
        let clients: Vec<_> = prompts.chunks(each).map(|own| scope.spawn(move || client(own))).collect();
        let answers = clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|_| Err(anyhow!("the thread of a client panicked"))));
        answers.collect::<anyhow::Result<Vec<Vec<Answer>>>>()
    })?;
    let elapsed = started.elapsed();
    Ok(Level::of(prompts.len() / each, answers.into_iter().flatten().collect(), elapsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_percentiles_are_over_all_requests() {
        let milliseconds = |ms: u64| Duration::from_millis(ms);
        let answers = (1..=20).map(|n| Answer {
            first: milliseconds(100 * n),
            gaps: vec![milliseconds(n), milliseconds(50)],
            tokens: 3,
        });
        let level = Level::of(4, answers.collect(), Duration::from_secs(2));
        assert_eq!((level.requests, level.tokens_per_s()), (20, 30.0));
        assert_eq!((level.first.percentile(50), level.first.percentile(95)), (1000.0, 1900.0));
        assert_eq!((level.between.percentile(50), level.between.percentile(95)), (20.0, 50.0));
        let (none, one) = (Latencies::new(Vec::new()), Latencies::new(vec![milliseconds(7)]));
        assert_eq!((none.percentile(95), one.percentile(50)), (0.0, 7.0));
    }
}
