//! `sconce bundle`: packs a model, its files and its evidence into one file.

use std::process::ExitCode;

use sconce::ModelSource;
use sconce::core::obstacle::bytes;
use sconce::prove::ProofDepth;
use serde_json::json;

use crate::arguments;
use crate::output_file::OutputFile;
use crate::terminal::{ProgressBars, pluralize, print_json};

pub(crate) fn run(arguments: &arguments::Bundle) -> anyhow::Result<ExitCode> {
    let runtime = arguments.model.runtime();
    let source = ModelSource::parse(&arguments.model.model, arguments.model.revision.as_deref());
    let mut bars = ProgressBars::default();
    let subject =
        runtime.model_spec(&source, &arguments.model.overrides(), &mut |event| bars.draw(&event))?;
    let constraints = arguments.model.constraints();
    let depth = if arguments.full { ProofDepth::Canary } else { ProofDepth::Twin };
    let plan = runtime.plan(&subject, &constraints, depth, &mut |event| bars.draw(&event))?;
    bars.clear();
    let evidence = json!({
        "sconce": env!("CARGO_PKG_VERSION"),
        "hardware": runtime.hardware(),
        "card": subject.card,
        "constraints": constraints,
        "plan": plan,
    });
    let evidence = [("plan.json", serde_json::to_vec_pretty(&evidence)?)];
    let name = arguments.name.clone().unwrap_or_else(|| source.name());
    let output = OutputFile::create(&arguments.output)?;
    let list = sconce::bundle::write(&subject, &name, &evidence, output.file()?, &arguments.output)?;
    output.commit()?;
    let all = bytes(list.files.iter().map(|file| file.bytes).sum());
    eprintln!(
        "`{}`: {}, {all}, as `{name}`",
        arguments.output.display(),
        pluralize(list.files.len(), "file")
    );
    if arguments.json {
        print_json(&list)?;
    }
    Ok(ExitCode::SUCCESS)
}
