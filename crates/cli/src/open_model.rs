//! Opens the model named on the command line, with progress bars.

use sconce::{Model, Task};

use crate::arguments::ModelArguments;
use crate::terminal::{ProgressBars, eprint_line};

/// Opens the model. `task` applies unless the user passed `--task`.
pub(crate) fn open(arguments: &ModelArguments, task: Option<Task>) -> anyhow::Result<Model> {
    let runtime = arguments.runtime();
    let mut overrides = arguments.overrides();
    overrides.task = overrides.task.or(task);
    let mut builder = Model::builder(&arguments.model)
        .runtime(&runtime)
        .constraints(arguments.constraints())
        .overrides(overrides);
    if let Some(revision) = &arguments.revision {
        builder = builder.revision(revision);
    }
    let mut bars = ProgressBars::default();
    let model = builder.open_with_progress(&mut |event| bars.draw(&event))?;
    bars.clear();
    if let Some(error) = runtime.evidence_error() {
        eprint_line(&format!(
            "warning: evidence can't be stored in `{}`: {error}; every start proves the model again\n\
             hint: set `SCONCE_HOME` to a writable folder",
            runtime.evidence().0.display()
        ));
    }
    Ok(model)
}
