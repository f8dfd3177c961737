//! `sconce bench`: the real model on every placement that works, taking turns so that noise falls on all alike.

use std::process::ExitCode;
use std::time::Instant;

use sconce::planner::cases::CANARIES;
use sconce::prove::Depth;
use sconce::{Model, ModelSource, Placement, Wish};
use serde_json::json;

use crate::arguments;
use crate::input::Input;
use crate::screen::{Bars, print, print_json, rendered, table};

/// Texts of the built-in workload.
const TEXTS: usize = 256;
/// Runs of one short text.
const ALONE: usize = 60;

/// One placement with its figures.
struct Runner {
    placement: Placement,
    model: Model,
    tokens: usize,
    seconds: f64,
    alone: f64,
}

pub(crate) fn run(arguments: &arguments::Bench) -> anyhow::Result<ExitCode> {
    let texts = match &arguments.input {
        Some(path) => {
            let mut texts = Vec::new();
            for chunk in Input::open(path)?.chunks(usize::MAX) {
                texts.extend(chunk?.into_iter().map(|record| record.text));
            }
            texts
        }
        None => workload(),
    };
    anyhow::ensure!(!texts.is_empty(), "there is no text to run");
    let mut bars = Bars::default();
    let mut runners = open(&arguments.model, &mut bars)?;
    bars.clear();
    for round in 0..arguments.rounds {
        for runner in &mut runners {
            eprintln!("round {} of {}: {}", round + 1, arguments.rounds, runner.placement);
            let started = Instant::now();
            runner.tokens = runner.model.embed(&texts)?.tokens;
            runner.seconds = runner.seconds.min(started.elapsed().as_secs_f64());
        }
    }
    for runner in &mut runners {
        runner.alone = alone(&runner.model)?;
    }
    runners.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    if arguments.json {
        let figures = runners.iter().map(|runner| {
            json!({
                "placement": runner.placement, "texts_per_s": texts.len() as f64 / runner.seconds,
                "tokens_per_s": runner.tokens as f64 / runner.seconds, "one_text_ms": runner.alone * 1e3,
            })
        });
        print_json(&json!({ "texts": texts.len(), "placements": figures.collect::<Vec<_>>() }))?;
    } else {
        print(&page(&runners, texts.len(), arguments.rounds))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Every placement that works and was wished for, with the real weights loaded there.
fn open(arguments: &arguments::ModelArguments, bars: &mut Bars) -> anyhow::Result<Vec<Runner>> {
    let runtime = arguments.runtime();
    let source = ModelSource::parse(&arguments.model, arguments.revision.as_deref());
    let subject = runtime.subject(&source, &arguments.overrides(), &mut |event| bars.draw(&event))?;
    let plan = runtime.plan(&subject, &arguments.wish(), Depth::Canary, &mut |event| bars.draw(&event))?;
    if plan.chosen.is_none() {
        return Err(sconce::Error::NoPlacement { plan: Box::new(plan) }.into());
    }
    let mut runners = Vec::new();
    for sound in plan.sound() {
        let placement = sound.placement.clone();
        let wish = Wish {
            engine: Some(placement.engine),
            device: Some(placement.device),
            dtype: Some(placement.dtype),
            weights: Some(placement.weights.clone()),
            ..arguments.wish()
        };
        let mut builder =
            Model::builder(&arguments.model).runtime(&runtime).wish(wish).overrides(arguments.overrides());
        if let Some(revision) = &arguments.revision {
            builder = builder.revision(revision);
        }
        let model = builder.open_telling(&mut |event| bars.draw(&event))?;
        runners.push(Runner { placement, model, tokens: 0, seconds: f64::INFINITY, alone: 0.0 });
    }
    Ok(runners)
}

/// The median time of one short text.
fn alone(model: &Model) -> anyhow::Result<f64> {
    let mut times = Vec::with_capacity(ALONE);
    for _ in 0..ALONE {
        let started = Instant::now();
        model.embed(&[CANARIES[2]])?;
        times.push(started.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ALONE / 2])
}

fn page(runners: &[Runner], texts: usize, rounds: u16) -> String {
    let mut rows = table(&["engine", "device", "dtype", "weights", "texts/s", "tokens/s", "one text", ""]);
    let best = runners.first().map_or(1.0, |runner| runner.seconds);
    for runner in runners {
        let placement = &runner.placement;
        let share = best / runner.seconds;
        rows.add_row(vec![
            placement.engine.to_string(),
            placement.device.to_string(),
            placement.dtype.to_string(),
            placement.weights.clone(),
            format!("{:.1}", texts as f64 / runner.seconds),
            format!("{:.0}", runner.tokens as f64 / runner.seconds),
            format!("{:.2} ms", runner.alone * 1e3),
            "#".repeat((share * 30.0).round().max(1.0) as usize),
        ]);
    }
    let tokens = runners.first().map_or(0, |runner| runner.tokens);
    let head =
        format!("{texts} texts, {tokens} tokens, best of {rounds} rounds in turns, tokenizing included");
    format!("{head}\n\n{}\n", rendered(&rows))
}

/// Texts of unlike lengths out of a few sentences.
fn workload() -> Vec<String> {
    let text = |number: usize| {
        let sentences = (0..=number % 5).map(|step| CANARIES[(number + step * 3) % CANARIES.len()]);
        sentences.collect::<Vec<_>>().join(" ")
    };
    (0..TEXTS).map(text).collect()
}
