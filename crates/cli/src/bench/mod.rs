//! `sconce bench`: benchmarks a model on every viable placement, and other servers, in alternating rounds so that
//! noise affects all equally. Language models are benchmarked by steps, or as servers of chats.

mod chat;
mod figure;
mod output;
mod plot;
mod point;
mod report;
mod roofline;
mod runner;
pub(crate) mod server;
mod steps;
mod sweep;
mod workload;

use std::process::ExitCode;

use sconce::prove::ProofDepth;
use sconce::tokenize::ModelTokenizer;
use sconce::{ModelCost, ModelSource, Peak, Task};

use crate::arguments;
use crate::input::Input;
use crate::terminal::ProgressBars;
use plot::Plot;
use report::Report;
use runner::Runner;
use server::Server;

pub(crate) fn run(arguments: &arguments::Bench) -> anyhow::Result<ExitCode> {
    let plot = arguments.plot.as_deref().map(Plot::at).transpose()?;
    if arguments.model.overrides().task == Some(Task::Generate) {
        return chat::run(arguments, plot);
    }
    let texts = match &arguments.input {
        Some(path) => {
            let mut texts = Vec::new();
            for chunk in Input::open(path)?.chunks(usize::MAX) {
                texts.extend(chunk?.into_iter().map(|record| record.text));
            }
            texts
        }
        None => workload::texts(),
    };
    anyhow::ensure!(!texts.is_empty(), "the input has no texts");
    // Report an unreachable server before the long work starts.
    let model = arguments.against_model.as_deref().unwrap_or(&arguments.model.model);
    let mut runners = Vec::new();
    for spec in &arguments.against {
        let server = Server::new(spec, model, arguments.timeout);
        server.embed(&[workload::SHORT])?;
        runners.push(Runner::for_server(server));
    }

    let mut bars = ProgressBars::default();
    let runtime = arguments.model.runtime();
    let source = ModelSource::parse(&arguments.model.model, arguments.model.revision.as_deref())
        .for_constraints(&arguments.model.constraints());
    let subject =
        runtime.model_spec(&source, &arguments.model.overrides(), &mut |event| bars.draw(&event))?;
    if subject.card.task.value == Task::Generate {
        return steps::run(arguments, &runtime, &subject, bars, plot);
    }
    let plan = runtime
        .plan(&subject, &arguments.model.constraints(), ProofDepth::Canary, &mut |event| bars.draw(&event))?;
    if plan.chosen.is_none() {
        let constraints = Box::new(arguments.model.constraints());
        return Err(sconce::Error::NoPlacement { plan: Box::new(plan), constraints }.into());
    }
    for viable in plan.viable() {
        runners.push(Runner::for_placement(&arguments.model, &runtime, &viable.placement, &mut bars)?);
    }
    bars.clear();
    let tokens = ModelTokenizer::open(&subject.files.folder, &subject.card)?;
    let lengths = workload::lengths(&tokens, &texts)?;
    let peak = Peak::measure(arguments.model.threads());

    for round in 0..arguments.rounds {
        for runner in runners.iter_mut().filter(|runner| runner.failed.is_none()) {
            eprintln!("round {} of {}: {}", round + 1, arguments.rounds, runner.name());
            runner.run_round(&texts)?;
        }
    }
    if plot.is_some() {
        sweep::run(&mut runners, &tokens, subject.card.max_length.value)?;
    }
    runner::compare(&mut runners);
    runners.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let report = Report {
        model: &subject.card.name,
        rounds: arguments.rounds,
        work: ModelCost::of(&subject.card).ok(),
        lengths,
        short: tokens.encode("", workload::SHORT)?.ids.len(),
        peak,
        runners,
    };
    let all_ran = report.runners.iter().all(|runner| runner.failed.is_none());
    output::show(arguments, plot, || figure::figure(&report), || report.json(), || report.text(), all_ran)
}
