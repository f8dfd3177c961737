//! The benchmark report, as text and as JSON.

use std::fmt::Write as _;

use sconce::core::placement::Dtype;
use sconce::{Device, ModelCost, Peak};
use serde_json::{Value, json};

use super::roofline::{bandwidth_share, gemm_share};
use super::runner::Runner;
use super::server::Server;
use crate::terminal::{pluralize, rendered, table};

/// Maximum bar width.
const BAR: f64 = 16.0;

/// All measurements, fastest first.
pub(super) struct Report<'a> {
    pub(super) model: &'a str,
    pub(super) rounds: u16,
    /// `None` for a model with an ONNX graph only.
    pub(super) work: Option<ModelCost>,
    /// Tokens of each text.
    pub(super) lengths: Vec<usize>,
    /// Tokens of the short text.
    pub(super) short: usize,
    pub(super) peak: Peak,
    pub(super) runners: Vec<Runner>,
}

impl Report<'_> {
    fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Throughput over all texts in GFLOP/s.
    fn gflops(&self, runner: &Runner) -> Option<f64> {
        Some(self.work?.flops(&self.lengths) / runner.seconds / 1e9)
    }

    pub(super) fn gemm_share(&self, runner: &Runner) -> Option<f64> {
        gemm_share(&self.peak, runner.placement()?, self.gflops(runner)?)
    }

    /// Share of the memory bandwidth that one short text reaches, which reads all weights for a few tokens.
    fn bandwidth_share(&self, runner: &Runner) -> Option<f64> {
        bandwidth_share(&self.peak, runner.placement()?, &self.work?, runner.latency)
    }

    fn flops_per_token(&self) -> Option<f64> {
        Some(self.work?.flops(&self.lengths) / self.tokens() as f64)
    }

    pub(super) fn text(&self) -> String {
        let header = [
            "engine", "device", "dtype", "weights", "texts/s", "tokens/s", "one text", "gemm", "memory",
            "cosine",
        ];
        let mut rows = table(&[&header[..], &[""]].concat());
        let (texts, tokens) = (self.lengths.len(), self.tokens());
        let best = self.runners.first().map_or(1.0, |runner| runner.seconds);
        let share =
            |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
        for runner in self.runners.iter().filter(|runner| runner.failed.is_none()) {
            let mut row = match (runner.placement(), runner.server()) {
                (Some(placement), _) => vec![
                    placement.engine.to_string(),
                    placement.device.to_string(),
                    placement.dtype.to_string(),
                    placement.weights.clone(),
                ],
                (None, Some(server)) => {
                    vec![server.kind().to_owned(), "-".to_owned(), "-".to_owned(), server.url().to_owned()]
                }
                (None, None) => continue,
            };
            row.extend([
                format!("{:.1}", texts as f64 / runner.seconds),
                format!("{:.0}", tokens as f64 / runner.seconds),
                format!("{:.2} ms", runner.latency * 1e3),
                share(self.gemm_share(runner)),
                share(self.bandwidth_share(runner)),
                runner.least_cosine.map_or("-".to_owned(), |cosine| format!("{cosine:.6}")),
                "#".repeat((best / runner.seconds * BAR).round().max(1.0) as usize),
            ]);
            rows.add_row(row);
        }
        let mut text = format!(
            "{}, {tokens} tokens, best of {}, alternating, tokenization included\n\n{}\n\n",
            pluralize(texts, "text"),
            pluralize(self.rounds.into(), "round"),
            rendered(&rows)
        );
        let products = [Dtype::F32, Dtype::Bf16].into_iter().filter_map(|dtype| {
            self.peak.gflops(dtype).map(|gflops| format!("{gflops:.0} GFLOP/s {dtype} GEMM"))
        });
        let _ = writeln!(
            text,
            "measured peak: {}, {:.1} GB/s memory bandwidth",
            products.collect::<Vec<_>>().join(", "),
            self.peak.bandwidth_gb_s
        );
        if let Some(flops) = self.flops_per_token() {
            let _ = writeln!(
                text,
                "gemm: share of the GEMM peak, at {:.1} MFLOP per token; memory: share of the bandwidth to read all \
                 weights once per text",
                flops / 1e6
            );
        }
        for runner in &self.runners {
            if let Some(reason) = &runner.failed {
                let _ = writeln!(
                    text,
                    "\nfailed  {}\n        {}",
                    runner.name(),
                    reason.replace('\n', "\n        ")
                );
            }
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let (texts, tokens) = (self.lengths.len() as f64, self.tokens() as f64);
        let figures = |runner: &Runner| {
            let mut value = match (runner.placement(), runner.server()) {
                (Some(placement), _) => json!({ "placement": placement }),
                (None, server) => json!({
                    "server": server.map(Server::kind), "url": server.map(Server::url),
                }),
            };
            if let Some(reason) = &runner.failed {
                value["error"] = json!(reason);
                return value;
            }
            value["texts_per_s"] = json!(texts / runner.seconds);
            value["tokens_per_s"] = json!(tokens / runner.seconds);
            value["one_text_ms"] = json!(runner.latency * 1e3);
            value["least_cosine"] = json!(runner.least_cosine);
            if let Some(placement) = runner.placement() {
                let here = placement.device == Device::Cpu;
                value["gemm_peak_gflops"] = json!(self.peak.gflops(placement.dtype).filter(|_| here));
                value["gflops"] = json!(self.gflops(runner));
                value["gemm_share"] = json!(self.gemm_share(runner));
                value["bandwidth_share"] = json!(self.bandwidth_share(runner));
            }
            if !runner.sweep.by_batch.is_empty() {
                value["sweep"] = runner.sweep.json();
            }
            value
        };
        let (ours, others): (Vec<_>, Vec<_>) =
            self.runners.iter().partition(|runner| runner.placement().is_some());
        json!({
            "model": self.model,
            "texts": self.lengths.len(),
            "tokens": self.tokens(),
            "rounds": self.rounds,
            "gemm_peak_gflops": { "f32": self.peak.f32_gflops, "bf16": self.peak.bf16_gflops },
            "bandwidth_gb_s": self.peak.bandwidth_gb_s,
            "flops_per_token": self.flops_per_token(),
            "placements": ours.into_iter().map(figures).collect::<Vec<_>>(),
            "servers": others.into_iter().map(figures).collect::<Vec<_>>(),
        })
    }
}
