//! `sconce plan`: the grid of placements, each with its figures or its refusal.

use std::process::ExitCode;

use sconce::core::obstacle::bytes;
use sconce::planner::evidence::Goal;
use sconce::planner::explain::grouped;
use sconce::planner::plan::Sound;
use sconce::prove::Depth;
use sconce::{ModelCard, ModelSource, Plan};
use serde_json::json;

use crate::arguments;
use crate::screen::{Bars, rendered, table};

pub(crate) fn run(arguments: &arguments::Plan) -> anyhow::Result<ExitCode> {
    let runtime = arguments.model.runtime();
    let source = ModelSource::parse(&arguments.model.model, arguments.model.revision.as_deref());
    let mut bars = Bars::default();
    let subject = runtime.subject(&source, &arguments.model.overrides(), &mut |event| bars.draw(&event))?;
    let depth = if arguments.full { Depth::Canary } else { Depth::Twin };
    let wish = arguments.model.wish();
    let plan = runtime.plan(&subject, &wish, depth, &mut |event| bars.draw(&event))?;
    bars.clear();
    if arguments.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&json!({ "card": subject.card, "wish": wish, "plan": plan }))?
        );
    } else {
        print!("{}", described(&subject.card, &plan));
        for tool in &runtime.hardware().tools {
            eprintln!("asked `{}`: {}, {:.0} ms", tool.name, tool.outcome, tool.seconds * 1e3);
        }
    }
    Ok(if plan.chosen.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The plan as a page.
pub(crate) fn described(card: &ModelCard, plan: &Plan) -> String {
    let sizes = &card.sizes.value;
    let mut page = format!(
        "{}: {}, {} layers of {}, vectors of {}, texts up to {} tokens\n\n",
        card.name,
        card.architecture.value,
        sizes.layers,
        sizes.hidden,
        card.width(),
        card.max_length.value
    );
    let mut rows =
        table(&["", "engine", "device", "dtype", "weights", "error", "texts/s", "one text", "memory"]);
    for (index, sound) in plan.sound().enumerate() {
        let standing = match (index, sound.replays) {
            (0, _) => "chosen",
            (_, true) => "next",
            (_, false) => "works",
        };
        rows.add_row(figures(standing, card, sound));
    }
    if plan.chosen.is_some() {
        page += &format!("{}\n\n", rendered(&rows));
    } else {
        page += "nothing that was wished for works here\n\n";
    }
    for group in grouped(plan) {
        page += &format!("refused  {}  [{}]\n         {}\n", group.label, group.code, group.reason);
        if let Some(remedy) = group.remedy {
            page += &format!("         hint: {remedy}\n");
        }
    }
    if let Some(beaten) = plan.beaten_accelerator() {
        let note = beaten.note.as_ref().map(ToString::to_string).unwrap_or_default();
        page += &format!("\n{} works here and loses to the processor: {note}\n", beaten.placement.device);
    }
    let estimated = plan.sound().any(|sound| sound.findings.canary.is_none());
    page += "\nerror: distance from the f32 reference (1-cos); texts/s: texts of 128 tokens, from one layer's time\n";
    if estimated {
        page += "memory is that of the weights; `--full` loads them and measures\n";
    }
    page
}

fn figures(standing: &str, card: &ModelCard, sound: &Sound) -> Vec<String> {
    let placement = &sound.placement;
    let canary = sound.findings.canary.as_ref().and_then(|found| found.as_ref().ok());
    let memory = canary.and_then(|canary| canary.memory).map(bytes).or_else(|| {
        let weights = card.weights_named(&placement.weights)?;
        Some(format!("~{}", bytes(weights.bytes / weights.stored.bytes() * placement.dtype.bytes())))
    });
    let alone = sound.findings.estimate(Goal::Latency, card.sizes.value.layers);
    vec![
        standing.to_owned(),
        placement.engine.to_string(),
        placement.device.to_string(),
        placement.dtype.to_string(),
        placement.weights.clone(),
        sound.findings.error().map(|error| error.to_string()).unwrap_or_default(),
        format!("{:.1}", sound.texts_per_second),
        alone.map(|estimate| format!("{:.1} ms", estimate.seconds * 1e3)).unwrap_or_default(),
        memory.unwrap_or_default(),
    ]
}
