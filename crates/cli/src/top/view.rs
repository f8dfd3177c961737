//! Renders the difference of two samples of a server: models, placements, and quarantined placements.

use std::collections::BTreeSet;
use std::fmt::Write;

use comfy_table::CellAlignment;
use serde_json::Value;

use crate::terminal::{rendered, table};
use crate::top::sample::Sample;

/// Width of the utilization bar.
const BAR: usize = 10;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Renders the rates between `before` and `now`, and a sparkline of token rates.
pub(crate) fn render(url: &str, before: &Sample, now: &Sample, history: &[f64]) -> String {
    let seconds = now.taken.saturating_duration_since(before.taken).as_secs_f64();
    let rate = |name: &str, labels: &[(&str, &str)]| {
        let more = now.sum(name, labels) - before.sum(name, labels);
        // Counters of a restarted server start at zero.
        if seconds > 0.0 && more > 0.0 { more / seconds } else { 0.0 }
    };
    let mut page = format!(
        "sconce {} at {url}: {} requests/s ok, {} failed, {} tokens/s\n",
        now.report["version"].as_str().unwrap_or("?"),
        short(rate("te_request_success", &[])),
        short(rate("te_request_failure", &[])),
        short(rate("sconce_tokens_computed_total", &[])),
    );
    if !history.is_empty() {
        let _ = writeln!(page, "{}", sparkline(history));
    }
    let _ = writeln!(page, "\n{}", models(now, &rate));
    let executors = executors(now);
    if !executors.is_empty() {
        let mut rows = table(&[
            "placement",
            "model",
            "tokens/s",
            "batches/s",
            "tokens/batch",
            "busy",
            "",
            "tokens",
            "trips",
        ]);
        for (model, placement) in &executors {
            let on = [("model", model.as_str()), ("placement", placement.as_str())];
            let tokens = rate("sconce_tokens_computed_total", &on);
            // Encoders compute batches, and language models steps.
            let batches = rate("sconce_batch_tokens_count", &on) + rate("sconce_generation_steps_total", &on);
            let concurrency = now.sum("sconce_concurrency", &on).max(1.0);
            let busy = rate("sconce_batch_seconds_sum", &on) / concurrency
                + rate("sconce_generation_step_seconds_total", &on);
            let busy = busy.min(1.0);
            rows.add_row(vec![
                placement.clone(),
                model.clone(),
                short(tokens),
                short(batches),
                short(if batches > 0.0 { tokens / batches } else { 0.0 }),
                format!("{:.0} %", busy * 100.0),
                bar(busy),
                short(now.sum("sconce_tokens_computed_total", &on)),
                short(now.sum("sconce_guard_trips_total", &on)),
            ]);
        }
        for column in [2, 3, 4, 5, 7, 8] {
            if let Some(column) = rows.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let _ = writeln!(page, "\n{}", rendered(&rows));
    }
    for metric in now.metrics.iter().filter(|metric| metric.name == "sconce_guard_trips_total") {
        let [model, placement, kind] = ["model", "placement", "kind"].map(|name| metric.label(name));
        let _ = writeln!(page, "\n{model}: {placement} was quarantined: {kind}");
    }
    page
}

fn models(now: &Sample, rate: &impl Fn(&str, &[(&str, &str)]) -> f64) -> String {
    let header = [
        "model",
        "state",
        "placement",
        "band",
        "tokens/s",
        "queued texts",
        "queued tokens",
        "trips",
        "replays",
    ];
    let mut rows = table(&header);
    for model in now.report["models"].as_array().into_iter().flatten() {
        let name = model["model"].as_str().unwrap_or("?");
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let of = [("model", name)];
        rows.add_row(vec![
            name.to_owned(),
            text(&model["phase"]),
            text(&model["serving"]["placement"]),
            text(&model["serving"]["band"]),
            short(rate("sconce_tokens_computed_total", &of)),
            short(
                now.sum("te_queue_size", &of) + now.sum("vllm:num_requests_waiting", &[("model_name", name)]),
            ),
            short(now.sum("sconce_queue_tokens", &of)),
            short(now.sum("sconce_guard_trips_total", &of)),
            short(now.sum("sconce_fallbacks_total", &of)),
        ]);
    }
    for column in 4..9 {
        if let Some(column) = rows.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    rendered(&rows)
}

/// Model and placement of every executor that computed batches.
fn executors(now: &Sample) -> Vec<(String, String)> {
    let placed = now.metrics.iter().filter(|metric| metric.name == "sconce_tokens_computed_total");
    let executors: BTreeSet<(String, String)> = placed
        .map(|metric| (metric.label("model").to_owned(), metric.label("placement").to_owned()))
        .collect();
    executors.into_iter().collect()
}

/// A number in at most a few digits.
fn short(number: f64) -> String {
    match number {
        number if number >= 1e7 => format!("{:.1} M", number / 1e6),
        number if number >= 1e5 => format!("{:.0} k", number / 1e3),
        number if number >= 100.0 || number.fract() == 0.0 => format!("{number:.0}"),
        number => format!("{number:.1}"),
    }
}

fn bar(share: f64) -> String {
    let full = ((share * BAR as f64).round() as usize).min(BAR);
    "█".repeat(full) + &"░".repeat(BAR - full)
}

/// Values as a sparkline.
fn sparkline(numbers: &[f64]) -> String {
    let most = numbers.iter().copied().fold(1.0, f64::max);
    let level = |number: f64| LEVELS[((number.max(0.0) / most * 7.0).round() as usize).min(7)];
    numbers.iter().map(|&number| level(number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_bars_have_one_length() {
        let all: Vec<String> =
            [0.0, 0.25, 7.0, 99.5, 1234.6, 123_456.0, 12_345_678.0].into_iter().map(short).collect();
        assert_eq!(all, ["0", "0.2", "7", "99.5", "1235", "123 k", "12.3 M"]);
        assert_eq!([bar(0.0), bar(0.5), bar(2.0)], ["░░░░░░░░░░", "█████░░░░░", "██████████"]);
        assert_eq!(sparkline(&[0.0, 5.0, 10.0]), "▁▅█");
    }
}
