//! The head of sparse (SPLADE) models: a masked-language-model head and max pooling.

use sconce_core::card::{Pooling, PoolingMode, Task};
use sconce_core::head::{OutputHead, Step};
use sconce_core::sourced::Sourced;
use sconce_engines::family_heads;
use serde_json::Value;

use super::config::ConfigFiles;
use super::error::CardError;
use super::json::relative_path;
use super::modules::Modules;

/// Reads the family's masked-language-model head and the pooling from `modules.json`; SPLADE's default pooling without
/// it.
pub(super) fn read(files: &ConfigFiles<'_>, by: &str) -> Result<Modules, CardError> {
    let ConfigFiles { architecture, config, sizes, .. } = *files;
    let tokens =
        family_heads::masked_lm(architecture, config, sizes.hidden, sizes.vocabulary).ok_or_else(|| {
            let architecture = architecture.to_owned();
            CardError::NoHead { architecture, task: Task::Sparse, known: family_heads::model_types() }
        })?;
    let pooling = files.modules.and_then(|modules| {
        modules.as_array()?.iter().find(|module| module["type"].as_str().is_some_and(is_pooling))
    });
    let (times, by) = match pooling {
        None => (1, by.to_owned()),
        Some(module) => {
            let path = relative_path("modules.json", module["path"].as_str().unwrap_or_default())?;
            let file = format!("{path}/config.json");
            (times(&file, &files.json.required(&file)?)?, file)
        }
    };
    let largest = Pooling { modes: vec![PoolingMode::Max], include_prompt: true };
    Ok(Modules {
        pooling: Sourced::new(largest, by.clone()),
        steps: Sourced::new(vec![Step::LogRelu(times)], by),
        head: OutputHead { tokens: Some(Sourced::new(tokens, "config.json")), ..OutputHead::default() },
        files: std::collections::BTreeMap::new(),
    })
}

fn is_pooling(kind: &str) -> bool {
    kind.ends_with(".SpladePooling")
}

/// Number of log1p applications.
fn times(file: &str, config: &Value) -> Result<u8, CardError> {
    let unknown = |key: &'static str| CardError::UnknownValue {
        file: file.to_owned(),
        key,
        value: config[key].to_string(),
    };
    match config["pooling_strategy"].as_str() {
        Some("max") | None => {}
        Some(_) => return Err(unknown("pooling_strategy")),
    }
    match config["activation_function"].as_str() {
        Some("relu") | None => Ok(1),
        Some("log1p_relu") => Ok(2),
        Some(_) => Err(unknown("activation_function")),
    }
}
