//! `sconce pool load` and `unload`: which models a pool should run.

use std::thread;
use std::time::Duration;

use sconce::ModelSource;
use sconce_pool::model_path;
use serde_json::{Value, json};

use crate::arguments::{PoolLoad, PoolUnload};
use crate::http_client::Client;
use crate::terminal::{eprint_line, rendered, table};

/// Interval at which `--wait` asks for the state.
const INTERVAL: Duration = Duration::from_millis(250);

/// Tells a pool to run a model.
pub(crate) fn load(arguments: &PoolLoad) -> anyhow::Result<()> {
    let client = Client::new(&arguments.gateway)?;
    let name = arguments.name.clone().unwrap_or_else(|| ModelSource::parse(&arguments.model, None).name());
    let mut body = json!({
        "source": arguments.model,
        "name": name,
        "min_replicas": arguments.replicas.min,
        "max_replicas": arguments.replicas.max,
    });
    if let Some(class) = &arguments.class {
        body["class"] = json!(class);
    }
    client.post_json("/v1/models", &body)?;
    if arguments.wait {
        return wait(&client, &name, &arguments.model);
    }
    let hint = format!("hint: `sconce pool status {}` shows where it is loaded", client.url);
    eprint_line(&format!("{name}: {}\n{hint}", replicas(arguments.replicas.min, arguments.replicas.max)));
    Ok(())
}

/// Tells a pool to run a model no longer.
pub(crate) fn unload(arguments: &PoolUnload) -> anyhow::Result<()> {
    let client = Client::new(&arguments.gateway)?;
    client.delete(&model_path(&arguments.model))?;
    eprint_line(&format!("{}: workers unload it once its requests in flight have finished", arguments.model));
    Ok(())
}

/// Waits until the minimum number of replicas is loaded. Prints each new problem.
fn wait(client: &Client, name: &str, source: &str) -> anyhow::Result<()> {
    let mut told = String::new();
    loop {
        let report: Value = serde_json::from_str(&client.get("/v1/report")?)?;
        let desired = desired(&report).find(|one| one["model"] == name && one["source"] == source);
        if let Some(one) = desired {
            let count = |field: &str| one[field].as_u64().unwrap_or(0);
            if count("loaded") >= count("min_replicas") {
                eprint_line(&format!("{name}: {} loaded", count("loaded")));
                return Ok(());
            }
            let problem = one["problem"].as_str().unwrap_or("");
            if !problem.is_empty() && problem != told {
                eprint_line(&format!("{name}: {problem}"));
                problem.clone_into(&mut told);
            }
        }
        thread::sleep(INTERVAL);
    }
}

fn desired(report: &Value) -> impl Iterator<Item = &Value> {
    report["placement"]["desired"].as_array().into_iter().flatten()
}

fn replicas(min: u32, max: u32) -> String {
    match (min, max) {
        (0, 1) => "loaded on demand".to_owned(),
        (0, max) => format!("loaded on demand, at most {max} replicas"),
        (1, 1) => "1 replica".to_owned(),
        (min, max) if min == max => format!("{min} replicas"),
        (min, max) => format!("{min} to {max} replicas"),
    }
}

/// The desired state of a report as a table. Empty if nothing is desired.
pub(crate) fn table_of(report: &Value) -> String {
    let mut rows = table(&["model", "source", "replicas", "loaded", "loading", "class", "problem"]);
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    for one in desired(report) {
        rows.add_row(vec![
            text(&one["model"]),
            text(&one["source"]),
            format!("{}..{}", one["min_replicas"], one["max_replicas"]),
            one["loaded"].to_string(),
            one["loading"].to_string(),
            text(&one["class"]),
            text(&one["problem"]),
        ]);
    }
    let mut shown = match desired(report).count() {
        0 => String::new(),
        _ => rendered(&rows) + "\n",
    };
    if report["placement"]["held"] == true {
        shown += "many workers have vanished: no model is loaded or unloaded for a minute\n";
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_desired_state_is_shown_with_problems() {
        let none = json!({ "placement": { "desired": [], "held": false } });
        assert_eq!((table_of(&none), table_of(&json!({}))), (String::new(), String::new()));
        let one = json!({
            "model": "minilm", "source": "org/minilm", "min_replicas": 1, "max_replicas": 3, "loaded": 1,
            "loading": 2, "problem": "`studio`: 900 MiB are needed, 20 are free",
        });
        let text = table_of(&json!({ "placement": { "desired": [one], "held": true } }));
        for part in ["minilm", "org/minilm", "1..3", "`studio`: 900 MiB"] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        assert!(text.ends_with("no model is loaded or unloaded for a minute\n"), "{text}");
    }
}
