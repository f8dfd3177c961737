//! `sconce models`: lists the models in the hub cache.

use std::process::ExitCode;

use sconce::core::obstacle::bytes;
use sconce::hub::Hub;
use serde_json::json;

use crate::arguments;
use crate::terminal::{print, print_json, rendered, table};

pub(crate) fn run(arguments: &arguments::Models) -> anyhow::Result<ExitCode> {
    let hub = Hub::from_environment();
    let models = hub.cached();
    if arguments.json {
        let models = models.iter().map(|model| {
            json!({ "id": model.id, "revision": model.revision, "commit": model.commit, "bytes": model.bytes,
                    "folder": model.folder, "whole": model.complete })
        });
        print_json(&models.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    if models.is_empty() {
        eprintln!("no models in: `{}`\nhint: `sconce plan MODEL` downloads one", hub.cache.display());
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = table(&["model", "revision", "commit", "size"]);
    for model in &models {
        let commit: String = model.commit.chars().take(12).collect();
        let size = format!("{}{}", bytes(model.bytes), if model.complete { "" } else { ", incomplete" });
        rows.add_row(vec![model.id.clone(), model.revision.clone(), commit, size]);
    }
    print(&format!("{}\n", rendered(&rows)))?;
    Ok(ExitCode::SUCCESS)
}
