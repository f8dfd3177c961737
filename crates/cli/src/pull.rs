//! `sconce pull`: downloads models into the hub's cache.

use std::process::ExitCode;

use anyhow::bail;
use sconce::hub::Hub;
use sconce::{Event, ModelSource};

use crate::arguments;
use crate::terminal::{ProgressBars, eprint_line, print};

pub(crate) fn run(arguments: &arguments::Pull) -> anyhow::Result<ExitCode> {
    for name in &arguments.models {
        let source = ModelSource::parse(name, arguments.revision.as_deref());
        if !matches!(source, ModelSource::Hub { .. } | ModelSource::HubGguf { .. }) {
            bail!("`{name}` is on this machine\nhint: `sconce plan {name}` shows where it can run");
        }
        if Hub::from_environment().offline {
            bail!("`HF_HUB_OFFLINE` is set, and `{source}` is on the hub\nhint: unset it to download");
        }
        eprint_line(&format!("{source} at {}", revision(&source)));
        let mut bars = ProgressBars::default();
        let folder = source.download(&mut |progress| bars.draw(&Event::Hub(progress)))?;
        bars.clear();
        print(&format!("{}\n", folder.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn revision(source: &ModelSource) -> &str {
    match source {
        ModelSource::Hub { revision, .. } | ModelSource::HubGguf { revision, .. } => revision,
        ModelSource::Folder(_) | ModelSource::Gguf(_) | ModelSource::Bundle(_) => "",
    }
}
