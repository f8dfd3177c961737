//! The figure of an embedding benchmark: throughput by batch size and by text length, a line per runner, and the roofline
//! of this machine.

use std::fmt::Write as _;

use plotters::style::RGBColor;
use sconce::Device;
use sconce::core::placement::Dtype;

use super::plot::{COLORS, Figure, Line, Panel, number, range};
use super::point::Point;
use super::report::Report;
use super::runner::Runner;

/// The figure of a report.
pub(super) fn figure(report: &Report<'_>) -> Figure {
    let runners: Vec<(&Runner, RGBColor)> = report
        .runners
        .iter()
        .filter(|runner| !runner.sweep.by_batch.is_empty())
        .zip(COLORS.into_iter().cycle())
        .collect();
    let lines = |points: &dyn Fn(&Runner) -> Vec<(f64, f64)>| {
        let line = |(runner, color): &(&Runner, RGBColor)| Line { color: *color, points: points(runner) };
        runners.iter().map(line).collect::<Vec<_>>()
    };
    let batch =
        |runner: &Runner| runner.sweep.by_batch.iter().map(|p| (p.texts as f64, p.texts_per_s())).collect();
    let of = |rate: fn(&Point) -> f64| {
        move |runner: &Runner| runner.sweep.by_length.iter().map(|p| (p.length(), rate(p))).collect()
    };
    let panels = [
        Panel {
            title: "texts/s by batch, texts of 64 tokens".to_owned(),
            x_label: "texts per call",
            y_label: "texts/s",
            lines: lines(&batch),
            bounds: Vec::new(),
        },
        Panel {
            title: "texts/s by length, 32 texts per call".to_owned(),
            x_label: "tokens per text",
            y_label: "texts/s",
            lines: lines(&of(Point::texts_per_s)),
            bounds: Vec::new(),
        },
        Panel {
            title: "tokens/s by length, 32 texts per call".to_owned(),
            x_label: "tokens per text",
            y_label: "tokens/s",
            lines: lines(&of(Point::tokens_per_s)),
            bounds: Vec::new(),
        },
        roofline(report, &runners),
    ];
    let name = |(runner, color): &(&Runner, RGBColor)| (name(report, runner, &runners), *color);
    let legend = runners.iter().map(name).collect();
    Figure { title: format!("sconce bench: {}", report.model), legend, panels }
}

/// A runner in the legend, with its throughput.
fn name(report: &Report<'_>, runner: &Runner, runners: &[(&Runner, RGBColor)]) -> String {
    let weights = |runner: &Runner| runner.placement().map(|placement| placement.weights.clone());
    let is_other = |other: &Runner| other.placement().is_some() && weights(other) != weights(runner);
    let mut name = match runner.placement() {
        Some(placement) if !runners.iter().any(|(other, _)| is_other(other)) => {
            format!("{} {} {}", placement.engine, placement.device, placement.dtype)
        }
        Some(_) | None => runner.name(),
    };
    let _ = write!(name, ", {} texts/s", number(report.lengths.len() as f64 / runner.seconds));
    if let Some(share) = report.gemm_share(runner) {
        let _ = write!(name, ", {:.0} % of GEMM peak", share * 100.0);
    }
    name
}

/// The roofline: each runner with one short text and with growing batches, below the limits of bandwidth and GEMM.
fn roofline(report: &Report<'_>, runners: &[(&Runner, RGBColor)]) -> Panel {
    let peak = &report.peak;
    let mut lines = Vec::new();
    for (runner, color) in runners {
        let placement = runner.placement().filter(|placement| placement.device == Device::Cpu);
        let (Some(placement), Some(work)) = (placement, report.work) else { continue };
        let point = |length: usize, texts: usize, seconds: f64| {
            let flops = work.flops(&vec![length; texts]);
            (flops / work.bytes(placement.dtype), flops / seconds / 1e9)
        };
        let latency = point(report.short, 1, runner.latency);
        let batches = runner.sweep.by_batch.iter();
        let batches = batches.map(|p| point(p.length().round() as usize, p.texts, p.seconds));
        lines.push(Line { color: *color, points: [latency].into_iter().chain(batches).collect() });
    }
    let across = range(lines.iter().flat_map(|line| &line.points).map(|point| point.0));
    let bound = |dtype: Dtype| {
        let most = peak.gflops(dtype)?;
        let corner = most / peak.bandwidth_gb_s;
        let mut points = vec![(corner.clamp(across.start, across.end), most), (across.end, most)];
        if corner > across.start {
            points.insert(0, (across.start, across.start * peak.bandwidth_gb_s));
        }
        Some((points, format!("{dtype} GEMM, {most:.0} GFLOP/s")))
    };
    let bounds = [Dtype::F32, Dtype::Bf16].into_iter().filter_map(bound).collect();
    Panel {
        title: format!("roofline of this machine: {:.1} GB/s memory bandwidth", peak.bandwidth_gb_s),
        x_label: "arithmetic intensity (FLOP per byte of weights): one short text, then growing batches",
        y_label: "GFLOP/s",
        lines,
        bounds,
    }
}
