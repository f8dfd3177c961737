//! `sconce models`: lists the models in the hub's cache.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use sconce::core::obstacle::bytes;
use sconce::hub::Hub;
use sconce::last_use;
use serde_json::json;

use crate::arguments;
use crate::recommended;
use crate::terminal::{pluralize, print, print_json, rendered, table};

pub(crate) fn run(arguments: &arguments::Models) -> anyhow::Result<ExitCode> {
    let hub = Hub::from_environment();
    if arguments.recommended {
        return list_catalogue(arguments, &hub);
    }
    let models = hub.cached();
    if arguments.json {
        let models = models.iter().map(|model| {
            let used = last_use(model).and_then(|used| used.duration_since(SystemTime::UNIX_EPOCH).ok());
            json!({ "id": model.id, "revision": model.revision, "commit": model.commit, "bytes": model.bytes,
                    "folder": model.folder, "whole": model.complete, "last_use": used.map(|used| used.as_secs()) })
        });
        print_json(&models.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    if models.is_empty() {
        eprintln!(
            "no models in: `{}`\nhint: `sconce models --recommended` lists some; `sconce pull NAME` downloads one",
            hub.cache.display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = table(&["model", "revision", "commit", "size", "last use"]);
    for model in &models {
        let commit: String = model.commit.chars().take(12).collect();
        let size = format!("{}{}", bytes(model.bytes), if model.complete { "" } else { ", incomplete" });
        let used = last_use(model).map(|used| ago(used.elapsed().unwrap_or_default())).unwrap_or_default();
        rows.add_row(vec![model.id.clone(), model.revision.clone(), commit, size, used]);
    }
    print(&format!("{}\n", rendered(&rows)))?;
    Ok(ExitCode::SUCCESS)
}

fn list_catalogue(arguments: &arguments::Models, hub: &Hub) -> anyhow::Result<ExitCode> {
    let models = recommended::select(arguments.task);
    if arguments.json {
        print_json(&models.iter().map(|model| recommended::to_json(model, hub)).collect::<Vec<_>>())?;
    } else {
        print(&recommended::render(&models, hub))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The time since an event in its largest unit.
fn ago(time: Duration) -> String {
    const UNITS: [(u64, &str); 3] = [(24 * 60 * 60, "day"), (60 * 60, "hour"), (60, "minute")];
    let seconds = time.as_secs();
    match UNITS.into_iter().find(|(length, _)| seconds >= *length) {
        Some((length, unit)) => format!("{} ago", pluralize((seconds / length) as usize, unit)),
        None => "now".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_their_largest_unit() {
        let all = [0, 59, 60, 7200, 86_400 * 40].map(|seconds| ago(Duration::from_secs(seconds)));
        assert_eq!(all, ["now", "now", "1 minute ago", "2 hours ago", "40 days ago"]);
    }
}
