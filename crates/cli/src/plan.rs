//! `sconce plan`: the grid of placements, each with its measurements or the reason for its refusal.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::iter;
use std::process::ExitCode;

use sconce::core::hardware::Hardware;
use sconce::core::obstacle::bytes;
use sconce::planner::accuracy::AccuracyMetric;
use sconce::planner::evidence::Goal;
use sconce::planner::explain::unmet;
use sconce::planner::plan::Viable;
use sconce::prove::ProofDepth;
use sconce::{Band, CacheEstimate, Constraints, Device, Dtype, ModelCard, ModelSource, Plan, PlanSpec, Task};
use serde_json::json;

use crate::arguments;
use crate::terminal::{ProgressBars, print, print_json, refusals, rendered, table};

pub(crate) fn run(arguments: &arguments::Plan) -> anyhow::Result<ExitCode> {
    let runtime = arguments.model.runtime();
    let source = ModelSource::parse(&arguments.model.model, arguments.model.revision.as_deref())
        .for_constraints(&arguments.model.constraints());
    let mut bars = ProgressBars::default();
    let overrides = arguments.model.overrides();
    let PlanSpec { spec: subject, is_local, download } = if arguments.full {
        let spec = runtime.model_spec(&source, &overrides, &mut |event| bars.draw(&event))?;
        PlanSpec { spec, is_local: true, download: None }
    } else {
        runtime.plan_spec(&source, &overrides, &mut |event| bars.draw(&event))?
    };
    let constraints = arguments.model.constraints();
    if let Some(missing) =
        constraints.weights.as_ref().filter(|name| subject.card.weights_named(name).is_none())
    {
        let there: Vec<&str> = subject.card.weights.iter().map(|weights| weights.name.as_str()).collect();
        anyhow::bail!("this model has no weights `{missing}`; available: {}", there.join(", "));
    }
    let depth = if arguments.full { ProofDepth::Canary } else { ProofDepth::Twin };
    let plan = runtime.plan(&subject, &constraints, depth, &mut |event| bars.draw(&event))?;
    bars.clear();
    if arguments.json {
        let cache = cache(&subject.card, &plan, runtime.hardware());
        print_json(&json!({
            "card": subject.card,
            "constraints": constraints,
            "plan": plan,
            "kv_cache": cache,
            "local": is_local,
            "download_bytes": download,
        }))?;
    } else {
        let page = PlanPage::new(&subject.card, &plan, &constraints, runtime.hardware());
        print(&page.to_string())?;
        if !is_local {
            print(&not_downloaded(&arguments.model.model, download))?;
        }
        for tool in &runtime.hardware().tools {
            eprintln!("ran `{}`: {}, {:.0} ms", tool.name, tool.outcome, tool.seconds * 1e3);
        }
    }
    Ok(if plan.chosen.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A plan as text: what `sconce plan` prints.
pub struct PlanPage {
    /// The model, on one line.
    pub title: String,
    /// The names of columns, then a row for each viable placement. Empty if none satisfies the constraints.
    pub rows: Vec<Vec<String>>,
    /// Memory, accuracy, and the reasons of refused placements.
    pub notes: String,
}

impl PlanPage {
    /// Describes a plan under `constraints`.
    pub fn new(card: &ModelCard, plan: &Plan, constraints: &Constraints, hardware: &Hardware) -> PlanPage {
        let sizes = &card.sizes.value;
        let generates = card.task.value == Task::Generate;
        let output = if generates {
            format!("vocabulary {}", sizes.vocabulary)
        } else {
            format!("output size {}", card.width())
        };
        let title = format!(
            "{}: {}, {} layers, hidden size {}, {output}, up to {} tokens",
            card.name, card.architecture.value, sizes.layers, sizes.hidden, card.max_length.value
        );
        let mut notes = notes(card, plan, hardware);
        if plan.chosen.is_none() {
            let why = unmet(plan, constraints);
            let Constraints { engine, device, dtype, weights, .. } = constraints;
            let is_of_all = engine.is_none() && device.is_none() && dtype.is_none() && weights.is_none();
            // The notes have the reasons of all placements.
            let why = why
                .lines()
                .next()
                .filter(|_| is_of_all && !plan.refused.is_empty())
                .unwrap_or(why.trim_end());
            notes.insert_str(0, &format!("{why}\n\n"));
            return PlanPage { title, rows: Vec::new(), notes };
        }
        let (rate, one) = if generates { ("tokens/s", "one token") } else { ("texts/s", "one text") };
        let columns = ["", "engine", "device", "dtype", "weights", "error", rate, one, "memory"];
        let rows = plan.viable().enumerate().map(|(index, viable)| {
            let status = match (index, viable.replays) {
                (0, _) => "chosen",
                (_, true) => "next",
                (_, false) => "works",
            };
            row(status, card, viable)
        });
        PlanPage { title, rows: iter::once(columns.map(str::to_owned).to_vec()).chain(rows).collect(), notes }
    }
}

impl fmt::Display for PlanPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n\n", self.title)?;
        if let [columns, rows @ ..] = self.rows.as_slice() {
            let mut placements = table(&columns.iter().map(String::as_str).collect::<Vec<_>>());
            for row in rows {
                placements.add_row(row.clone());
            }
            write!(f, "{}\n\n", rendered(&placements))?;
        }
        f.write_str(&self.notes)
    }
}

/// Memory of the KV cache, accuracy, and the reasons of refused placements.
fn notes(card: &ModelCard, plan: &Plan, hardware: &Hardware) -> String {
    let generates = card.task.value == Task::Generate;
    let mut page = String::new();
    if let (Some(chosen), Some(cache)) = (&plan.chosen, cache(card, plan, hardware)) {
        let _ = writeln!(
            page,
            "KV cache on {}: {} per token, up to {}; the longest context that fits now is {} of {} tokens\n",
            chosen.placement,
            bytes(cache.bytes_per_token),
            bytes(cache.bytes),
            cache.context,
            card.max_length.value
        );
    }
    page += &accuracy_table(plan);
    page += &refusals(plan);
    if let Some(beaten) = plan.slower_accelerator() {
        let note = beaten.note.as_ref().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(page, "\n{} works but is slower than the CPU: {note}", beaten.placement.device);
    }
    if let (Some(chosen), Some(reference)) = (&plan.chosen, &plan.reference) {
        let is_graph =
            card.weights_named(&reference.weights).is_some_and(|weights| weights.format.is_graph());
        let against = if is_graph {
            format!("{reference} (the graph with the widest dtype; no safetensors can run)")
        } else if reference.dtype != Dtype::F32 && chosen.findings.canary.is_none() {
            "f32 on generated weights, since the model does not fit in f32".to_owned()
        } else if reference.dtype != Dtype::F32 {
            format!("{reference}, since the model does not fit in f32")
        } else {
            reference.to_string()
        };
        let _ = writeln!(
            page,
            "\n`error` is the distance from {against}, 1-cos; {}",
            if generates {
                "`tokens/s` is for 8 sequences together, `one token` for a sequence alone"
            } else {
                "`texts/s` is for texts of 128 tokens"
            }
        );
        if plan.viable().any(|viable| viable.band == Band::Unknown) {
            page += "the reference is not f32, so the distance to f32 and the bands are unknown\n";
            page += if is_graph { "hint: add f32 weights to the model folder\n" } else { "" };
        }
    }
    if plan.viable().any(|viable| viable.findings.canary.is_none()) {
        page += "`memory` is the size of the weights; `--full` loads them and measures\n";
    }
    page
}

/// A note that the plan was made without the weights.
fn not_downloaded(model: &str, download: Option<u64>) -> String {
    let size = download.map(|size| format!(" {}", bytes(size))).unwrap_or_default();
    format!(
        "\nthe weights are not downloaded: speed is measured on generated weights of the same sizes\n\
         hint: `sconce pull {model}` downloads{size}\n"
    )
}

/// The KV cache on the chosen placement of a model that generates.
fn cache(card: &ModelCard, plan: &Plan, hardware: &Hardware) -> Option<CacheEstimate> {
    let chosen = plan.chosen.as_ref().filter(|_| card.task.value == Task::Generate)?;
    CacheEstimate::of(card, &chosen.placement, hardware).ok()
}

/// The accuracy on the built-in sample, for placements with a canary.
fn accuracy_table(plan: &Plan) -> String {
    let mut rows = Vec::new();
    let mut remarks = String::new();
    let (mut texts, mut kind) = (0, ("vectors", "least cosine", "mean"));
    for viable in plan.viable() {
        let Viable { placement, band, findings, .. } = viable;
        let Some(Ok(canary)) = &findings.canary else { continue };
        let Some(accuracy) = canary.accuracy.as_ref().filter(|_| !viable.is_own_reference) else { continue };
        texts = accuracy.texts;
        let nodes = canary.nodes.iter().map(|(provider, count)| format!("{count} by {}", short(provider)));
        let near = match accuracy.metric {
            AccuracyMetric::Vectors { min_cosine, mean_cosine } => {
                [format!("{min_cosine:.6}"), format!("{mean_cosine:.6}")]
            }
            AccuracyMetric::Scores { max_error } => {
                kind = ("raw scores", "max |d|", "");
                [format!("{max_error:.1e}"), String::new()]
            }
            AccuracyMetric::Predictions { perplexity, reference_perplexity, top1_agreement, .. } => {
                kind = ("next tokens", "perplexity", "same top token");
                let change = 100.0 * (perplexity / reference_perplexity - 1.0);
                [format!("{perplexity:.3} ({change:+.2} %)"), format!("{:.1} %", 100.0 * top1_agreement)]
            }
        };
        let [first, second] = near;
        rows.push(vec![
            placement.engine.to_string(),
            placement.device.to_string(),
            placement.dtype.to_string(),
            placement.weights.clone(),
            band.to_string(),
            first,
            second,
            format!("{:.5}", accuracy.rank_correlation),
            nodes.collect::<Vec<_>>().join(", "),
        ]);
        if let Some(share) = cpu_share(placement.device, &canary.nodes) {
            let _ = writeln!(remarks, "{placement} ran {share:.0} % of its nodes on the CPU\n");
        }
    }
    if texts == 0 {
        return String::new();
    }
    let (what, first, second) = kind;
    let mut all = table(&["engine", "device", "dtype", "weights", "band", first, second, "ranks", "nodes"]);
    for row in rows {
        all.add_row(row);
    }
    format!(
        "{what} of {texts} built-in texts compared with the reference:\n\n{}\n\n{remarks}",
        rendered(&all)
    )
}

/// The name of an execution provider without its common suffix.
fn short(provider: &str) -> &str {
    provider.strip_suffix("ExecutionProvider").unwrap_or(provider)
}

/// The percentage of an accelerator's graph nodes that ran on the CPU, if it is more than half.
fn cpu_share(device: Device, nodes: &BTreeMap<String, usize>) -> Option<f64> {
    let all: usize = nodes.values().sum();
    let here = nodes.get("CPUExecutionProvider").copied().unwrap_or(0);
    (device != Device::Cpu && 2 * here > all).then(|| 100.0 * here as f64 / all as f64)
}

fn row(status: &str, card: &ModelCard, viable: &Viable) -> Vec<String> {
    let placement = &viable.placement;
    let canary = viable.findings.canary.as_ref().and_then(|found| found.as_ref().ok());
    let memory = canary.and_then(|canary| canary.memory).map(bytes).or_else(|| {
        let weights = card.weights_named(&placement.weights)?;
        Some(format!("~{}", bytes(weights.bytes_in(placement.dtype))))
    });
    let alone = viable.findings.estimate(Goal::Latency, card.sizes.value.layers);
    vec![
        status.to_owned(),
        placement.engine.to_string(),
        placement.device.to_string(),
        placement.dtype.to_string(),
        placement.weights.clone(),
        if viable.is_own_reference {
            "itself".to_owned()
        } else {
            viable.findings.error().map(|error| error.to_string()).unwrap_or_default()
        },
        format!("{:.1}", viable.texts_per_second),
        alone.map(|estimate| format!("{:.1} ms", estimate.seconds * 1e3)).unwrap_or_default(),
        memory.unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_that_mostly_runs_on_the_cpu_is_reported() {
        let nodes = |here, there| {
            BTreeMap::from([
                ("CPUExecutionProvider".to_owned(), here),
                ("CUDAExecutionProvider".to_owned(), there),
            ])
        };
        assert_eq!(cpu_share(Device::Cuda(0), &nodes(75, 25)), Some(75.0));
        assert_eq!(cpu_share(Device::Cuda(0), &nodes(25, 75)), None);
        assert_eq!(cpu_share(Device::Cpu, &nodes(75, 25)), None);
        assert_eq!(cpu_share(Device::Cuda(0), &BTreeMap::new()), None);
    }
}
