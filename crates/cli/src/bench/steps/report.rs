//! The report of a benchmark of steps, as text, as JSON and as a figure.

use std::fmt::Write as _;

use sconce::core::card::ModelCard;
use sconce::core::placement::Dtype;
use sconce::planner::accuracy::AccuracyMetric;
use sconce::planner::plan::Viable;
use sconce::{ModelCost, Peak, Placement};
use serde_json::{Value, json};

use crate::bench::plot::{COLORS, Figure, Line, Panel};
use crate::bench::roofline::gemm_share;
use crate::terminal::{pluralize, rendered, table};

/// All measurements, in the order of the plan.
pub(super) struct Report<'a> {
    pub(super) model: &'a str,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    pub(super) rounds: u16,
    pub(super) cost: Option<ModelCost>,
    pub(super) peak: Peak,
    pub(super) all: Vec<Measured>,
}

/// The measurements of one placement.
pub(super) struct Measured {
    pub(super) placement: Placement,
    /// Bytes of weights that a step reads.
    step_bytes: f64,
    /// Perplexity of the built-in texts, and the share of tokens with the same top token as the reference.
    predictions: Option<(f64, f64)>,
    /// Tokens per second of the prompt.
    pub(super) prompt: f64,
    pub(super) decode: Vec<Decode>,
    /// Why it could not be measured.
    pub(super) failed: Option<String>,
}

/// Throughput of steps that generate one token of each sequence.
#[derive(Clone, Copy)]
pub(super) struct Decode {
    pub(super) sequences: usize,
    /// Tokens of each sequence in the KV cache.
    pub(super) cached: usize,
    pub(super) tokens_per_s: f64,
}

impl Measured {
    pub(super) fn of(viable: &Viable, step_bytes: f64) -> Measured {
        let canary = viable.findings.canary.as_ref().and_then(|canary| canary.as_ref().ok());
        let metric = canary.and_then(|canary| canary.accuracy.as_ref()).map(|accuracy| &accuracy.metric);
        let predictions = match metric {
            Some(&AccuracyMetric::Predictions { perplexity, top1_agreement, .. }) => {
                Some((perplexity, top1_agreement))
            }
            Some(AccuracyMetric::Vectors { .. } | AccuracyMetric::Scores { .. }) | None => None,
        };
        let placement = viable.placement.clone();
        Measured { placement, step_bytes, predictions, prompt: 0.0, decode: Vec::new(), failed: None }
    }
}

/// Bytes of weights that a step reads on a placement. Quantized weights are read as they are stored.
pub(super) fn step_bytes(card: &ModelCard, placement: &Placement) -> f64 {
    let Some(weights) = card.weights.iter().find(|weights| weights.name == placement.weights) else {
        return 0.0;
    };
    if matches!(placement.dtype, Dtype::Int8 | Dtype::Int4) {
        return weights.bytes as f64;
    }
    let values = weights.values.unwrap_or(8 * weights.bytes / weights.stored.bits());
    values as f64 * placement.dtype.bits() as f64 / 8.0
}

impl Report<'_> {
    /// Share of the GEMM peak that the prompt reaches.
    fn gemm_share(&self, measured: &Measured) -> Option<f64> {
        let flops = self.cost?.flops(&[self.prompt]) / self.prompt as f64;
        gemm_share(&self.peak, &measured.placement, measured.prompt * flops / 1e9)
    }

    /// Share of the memory bandwidth that a step reaches: it reads all weights and the KV cache.
    fn bandwidth_share(&self, measured: &Measured, decode: &Decode) -> Option<f64> {
        let cache = self.cost?.cache_bytes(&measured.placement) as f64;
        let bytes = measured.step_bytes + cache * (decode.sequences * decode.cached) as f64;
        let steps = decode.tokens_per_s / decode.sequences as f64;
        let is_cpu = measured.placement.device == sconce::Device::Cpu;
        is_cpu.then(|| bytes * steps / 1e9 / self.peak.bandwidth_gb_s)
    }

    /// The numbers of sequences and cached tokens that were measured on any placement.
    fn cells(&self) -> Vec<(usize, usize)> {
        let mut cells: Vec<(usize, usize)> = Vec::new();
        for decode in self.all.iter().flat_map(|measured| &measured.decode) {
            let cell = (decode.cached, decode.sequences);
            if !cells.contains(&cell) {
                cells.push(cell);
            }
        }
        cells.sort_unstable();
        cells
    }

    pub(super) fn text(&self) -> String {
        let cells = self.cells();
        let decode = |&(cached, sequences): &(usize, usize)| match cached {
            0 => format!("{sequences} new"),
            _ => format!("{sequences} after {cached}"),
        };
        let mut header: Vec<String> = ["engine", "device", "dtype"].map(str::to_owned).to_vec();
        header.push(format!("prompt {}", self.prompt));
        header.extend(cells.iter().map(decode));
        header.extend(["gemm", "memory", "perplexity", "same top"].map(str::to_owned));
        let mut rows = table(&header.iter().map(String::as_str).collect::<Vec<_>>());
        let share =
            |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
        for measured in self.all.iter().filter(|measured| measured.failed.is_none()) {
            let placement = &measured.placement;
            let mut row =
                vec![placement.engine.to_string(), placement.device.to_string(), placement.dtype.to_string()];
            row.push(format!("{:.0}", measured.prompt));
            for &(cached, sequences) in &cells {
                let found =
                    measured.decode.iter().find(|one| (one.cached, one.sequences) == (cached, sequences));
                row.push(found.map_or("-".to_owned(), |one| format!("{:.1}", one.tokens_per_s)));
            }
            row.push(share(self.gemm_share(measured)));
            row.push(share(
                measured.decode.first().and_then(|decode| self.bandwidth_share(measured, decode)),
            ));
            row.push(
                measured.predictions.map_or("-".to_owned(), |(perplexity, _)| format!("{perplexity:.3}")),
            );
            row.push(share(measured.predictions.map(|(_, top1)| top1)));
            rows.add_row(row);
        }
        let mut text = format!(
            "tokens per second, best of {}, one placement after the other\n\n{}\n\n\
             N new, N after M: one token of each of N sequences per step, without and with M tokens in the KV cache\n\
             gemm: share of the GEMM peak of the prompt; memory: share of {:.1} GB/s of memory bandwidth of the first column \
             of steps\n",
            pluralize(self.rounds.into(), "round"),
            rendered(&rows),
            self.peak.bandwidth_gb_s,
        );
        for measured in &self.all {
            if let Some(reason) = &measured.failed {
                let (placement, reason) = (&measured.placement, reason.replace('\n', "\n        "));
                let _ = writeln!(text, "\nfailed  {placement}\n        {reason}");
            }
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let placement = |measured: &Measured| {
            let decode = |decode: &Decode| {
                json!({
                    "sequences": decode.sequences, "cached_tokens": decode.cached, "tokens_per_s": decode.tokens_per_s,
                    "bandwidth_share": self.bandwidth_share(measured, decode),
                })
            };
            json!({
                "placement": measured.placement,
                "prompt_tokens_per_s": measured.prompt,
                "gemm_share": self.gemm_share(measured),
                "decode": measured.decode.iter().map(decode).collect::<Vec<_>>(),
                "perplexity": measured.predictions.map(|(perplexity, _)| perplexity),
                "top1_agreement": measured.predictions.map(|(_, top1)| top1),
                "error": measured.failed,
            })
        };
        json!({
            "model": self.model,
            "prompt_tokens": self.prompt,
            "rounds": self.rounds,
            "bandwidth_gb_s": self.peak.bandwidth_gb_s,
            "placements": self.all.iter().map(placement).collect::<Vec<_>>(),
        })
    }

    pub(super) fn figure(&self) -> Figure {
        let panel = |title: String,
                     y_label: &'static str,
                     cached: usize,
                     value: &dyn Fn(&Measured, &Decode) -> Option<f64>| {
            let line = |(measured, color): (&Measured, _)| {
                let steps = measured.decode.iter().filter(|decode| decode.cached == cached);
                let points =
                    steps.filter_map(|decode| Some((decode.sequences as f64, value(measured, decode)?)));
                Line { color, points: points.collect() }
            };
            let lines = self.all.iter().zip(COLORS.into_iter().cycle()).map(line).collect();
            Panel { title, x_label: "sequences", y_label, lines, bounds: Vec::new() }
        };
        let rate = |_: &Measured, decode: &Decode| Some(decode.tokens_per_s);
        let percent =
            |measured: &Measured, decode: &Decode| Some(100.0 * self.bandwidth_share(measured, decode)?);
        let prompt = self.prompt;
        let name =
            |measured: &Measured| format!("{}, prompt {:.0} tokens/s", measured.placement, measured.prompt);
        Figure {
            title: format!("sconce bench: {}, prompt of {prompt} tokens", self.model),
            legend: self.all.iter().map(name).zip(COLORS.into_iter().cycle()).collect(),
            panels: [
                panel("decode, empty cache".to_owned(), "tokens/s", 0, &rate),
                panel(format!("decode after {prompt} tokens"), "tokens/s", prompt, &rate),
                panel("memory bandwidth, empty cache".to_owned(), "% of peak", 0, &percent),
                panel(format!("memory bandwidth after {prompt} tokens"), "% of peak", prompt, &percent),
            ],
        }
    }
}
