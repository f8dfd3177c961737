//! `sconce rm`: removes models from the hub's cache.

use std::process::ExitCode;

use anyhow::bail;
use sconce::ModelSource;
use sconce::core::obstacle::bytes;
use sconce::hub::Hub;

use crate::arguments;
use crate::terminal::{pluralize, print};

pub(crate) fn run(arguments: &arguments::Remove) -> anyhow::Result<ExitCode> {
    let hub = Hub::from_environment();
    let revision = arguments.revision.as_deref();
    for name in &arguments.models {
        let source = ModelSource::parse(name, revision);
        let removed = match &source {
            ModelSource::Hub { id, .. } => hub.remove(id, revision)?,
            ModelSource::HubGguf { id, quantization, .. } => hub.remove_gguf(id, revision, quantization)?,
            ModelSource::Folder(_) | ModelSource::Gguf(_) | ModelSource::Bundle(_) => {
                bail!("`{name}` is not in the hub's cache\nhint: `sconce models` lists the models there")
            }
        };
        let files = pluralize(removed.files, "file");
        print(&format!("removed {source}: {files}, {}\n", bytes(removed.bytes)))?;
    }
    Ok(ExitCode::SUCCESS)
}
