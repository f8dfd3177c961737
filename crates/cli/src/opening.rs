//! Opens the model that was typed, with bars for what takes long.

use sconce::{Model, Task};

use crate::arguments::ModelArguments;
use crate::screen::Bars;

/// The model, used for `task` where the command says so.
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
    let mut bars = Bars::default();
    let model = builder.open_telling(&mut |event| bars.draw(&event))?;
    bars.clear();
    Ok(model)
}
