//! Benchmarks the steps of a language model on every viable placement, without a server: a prompt, and steps that generate
//! one token of each sequence.

mod report;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use sconce::core::engine::ModelSpec;
use sconce::core::generator::Generator;
use sconce::prove::ProofDepth;
use sconce::{Device, ModelCost, Peak, Placement, Runtime, StepTimer};

use super::output;
use super::plot::Plot;
use crate::arguments::Bench;
use crate::terminal::{ProgressBars, eprint_line};
use report::{Decode, Measured, Report, step_bytes};

/// Tokens of a prompt.
const PROMPT: usize = 512;
/// Generated tokens per round and sequence.
const STEPS: usize = 16;

pub(super) fn run(
    arguments: &Bench,
    runtime: &Runtime,
    subject: &ModelSpec,
    mut bars: ProgressBars,
    plot: Option<Plot>,
) -> anyhow::Result<ExitCode> {
    if arguments.input.is_some() || !arguments.against.is_empty() {
        bail!(
            "`--input` and `--against` are not used for the steps of a language model\n\
             hint: `--task chat` measures chats, also with other servers"
        );
    }
    let constraints = arguments.model.constraints();
    let plan = runtime.plan(subject, &constraints, ProofDepth::Canary, &mut |event| bars.draw(&event))?;
    bars.clear();
    if plan.chosen.is_none() {
        let constraints = Box::new(constraints);
        return Err(sconce::Error::NoPlacement { plan: Box::new(plan), constraints }.into());
    }
    let card = &subject.card;
    let most = card.max_length.value.saturating_sub(STEPS).max(1);
    let prompt = arguments.input_tokens.map_or(PROMPT, |tokens| tokens as usize).min(most);
    let peak = Peak::measure(arguments.model.threads());
    let mut all = Vec::new();
    for viable in plan.viable() {
        eprint_line(&format!("{}", viable.placement));
        let mut measured = Measured::of(viable, step_bytes(card, &viable.placement));
        if let Err(error) = measure(runtime, subject, prompt, arguments, &mut measured) {
            measured.failed = Some(format!("{error:#}"));
        }
        all.push(measured);
    }
    let report = Report {
        model: &card.name,
        prompt,
        rounds: arguments.rounds,
        cost: ModelCost::of(card).ok(),
        peak,
        all,
    };
    let all_ran = report.all.iter().all(|measured| measured.failed.is_none());
    output::show(arguments, plot, || report.figure(), || report.json(), || report.text(), all_ran)
}

/// Loads a placement and times its steps; the fastest round counts.
fn measure(
    runtime: &Runtime,
    subject: &ModelSpec,
    prompt: usize,
    arguments: &Bench,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let placement = measured.placement.clone();
    let engine = runtime.engines().iter().find(|engine| engine.id() == placement.engine);
    let engine = engine.ok_or_else(|| anyhow!("this build has no engine `{}`", placement.engine))?;
    let loaded = engine.load(subject, &placement).map_err(|obstacle| anyhow!("{obstacle}"))?;
    let generator = loaded.generator().ok_or_else(|| anyhow!("this placement does not generate"))?;
    let context = prompt + STEPS;
    let sequences: Vec<usize> = arguments.concurrency.iter().copied().map(usize::from).collect();
    let fitting: Vec<usize> =
        sequences.into_iter().filter(|&count| fits(generator, &placement, count, context)).collect();
    let Some(largest) = fitting.iter().copied().max() else {
        bail!("the KV cache of {context} tokens does not fit in memory\nhint: lower `--input-tokens`");
    };
    let timer = StepTimer::new(generator, largest, context)?;
    measured.prompt = best(arguments.rounds, prompt, || timer.prompt(prompt))?;
    for cached in [0, prompt] {
        for &sequences in &fitting {
            let tokens_per_s =
                best(arguments.rounds, sequences * STEPS, || timer.decode(sequences, cached, STEPS))?;
            measured.decode.push(Decode { sequences, cached, tokens_per_s });
        }
    }
    Ok(())
}

/// Whether the KV cache takes at most half of the available memory. Other devices refuse what does not fit.
fn fits(generator: &dyn Generator, placement: &Placement, sequences: usize, context: usize) -> bool {
    let most = sconce::available().filter(|_| placement.device == Device::Cpu);
    most.is_none_or(|bytes| StepTimer::cache_bytes(generator, sequences, context) <= bytes / 2)
}

/// Tokens per second of the fastest round. A round before the first warms up.
fn best<E: Into<anyhow::Error>>(
    rounds: u16,
    tokens: usize,
    mut round: impl FnMut() -> Result<Duration, E>,
) -> anyhow::Result<f64> {
    round().map_err(Into::into)?;
    let mut least = Duration::MAX;
    for _ in 0..rounds {
        least = least.min(round().map_err(Into::into)?);
    }
    Ok(tokens as f64 / least.as_secs_f64())
}
