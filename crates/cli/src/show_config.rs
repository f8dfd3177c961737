//! `sconce config`: prints the effective configuration and the origin of each value.

use std::process::ExitCode;

use serde_json::json;
use toml::Value;

use crate::arguments;
use crate::config::{API_KEY_VARIABLE, Effective, TEMPLATE, effective};
use crate::terminal::{print, print_json, rendered, table};

pub(crate) fn run(arguments: &arguments::Config) -> anyhow::Result<ExitCode> {
    if arguments.template {
        print(TEMPLATE)?;
        return Ok(ExitCode::SUCCESS);
    }
    let all = effective(&arguments.flags)?;
    all.entries()?;
    // Validate what `serve` would validate.
    let values = all.values()?;
    values.worker()?;
    values.tls()?;
    values.telemetry()?;
    if arguments.json {
        print_json(&as_json(&all))?;
    } else {
        print(&as_table(&all))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_table(all: &Effective) -> String {
    let mut rows = table(&["key", "value", "from"]);
    for setting in &all.settings {
        rows.add_row(vec![setting.key.name.clone(), setting.value.to_string(), setting.origin.to_string()]);
    }
    for (name, value) in environment() {
        rows.add_row(vec![name.to_owned(), value, "environment".to_owned()]);
    }
    for (name, model) in &all.models {
        let name = name.as_deref().map_or_else(|| "models".to_owned(), |name| format!("models.{name}"));
        for (key, value) in model {
            rows.add_row(vec![format!("{name}.{key}"), value.to_string(), all.models_from.to_string()]);
        }
    }
    format!("{}\n", rendered(&rows))
}

/// Environment variables outside of the configuration. Secrets are not shown.
fn environment() -> Vec<(&'static str, String)> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let shown = [
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_SERVICE_NAME",
        "OTEL_RESOURCE_ATTRIBUTES",
        "OTEL_TRACES_SAMPLER",
        "OTEL_TRACES_SAMPLER_ARG",
        "SCONCE_HOME",
        "HF_HOME",
        "HF_ENDPOINT",
    ];
    let hidden = [API_KEY_VARIABLE, "OTEL_EXPORTER_OTLP_HEADERS", "HF_TOKEN"];
    let shown = shown.into_iter().filter_map(|name| set(name).map(|value| (name, format!("{value:?}"))));
    let hidden = hidden.into_iter().filter_map(|name| set(name).map(|_| (name, "(set)".to_owned())));
    shown.chain(hidden).collect()
}

fn as_json(all: &Effective) -> serde_json::Value {
    let settings = all.settings.iter().map(|setting| {
        let entry = json!({
            "value": plain(&setting.value), "from": setting.origin.to_string(), "default": plain(&setting.key.default),
            "description": setting.key.comment, "sighup": setting.key.reloadable,
        });
        (setting.key.name.clone(), entry)
    });
    let models = all.models.iter().map(|(name, model)| {
        let settings: serde_json::Map<_, _> =
            model.iter().map(|(key, value)| (key.clone(), plain(value))).collect();
        json!({ "name": name, "settings": settings, "from": all.models_from.to_string() })
    });
    json!({
        "settings": settings.collect::<serde_json::Map<_, _>>(),
        "models": models.collect::<Vec<_>>(),
        "environment": environment().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
    })
}

fn plain(value: &Value) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}
