//! The head of a model that turns a text into weights of words: a masked language model and SPLADE's pooling.

use sconce_core::card::{Pooling, PoolingMode, Task};
use sconce_core::head::{OutputHead, Step};
use sconce_core::sourced::Sourced;
use sconce_engines::family_heads;
use serde_json::Value;

use super::json::inside;
use super::modules::Modules;
use super::{CardError, Facts};

/// The family's masked language model, and the pooling that `modules.json` names; where the user says that it is
/// such a model and no file says how it pools, SPLADE's usual way.
pub(super) fn read(facts: &Facts<'_>, by: &str) -> Result<Modules, CardError> {
    let Facts { architecture, config, sizes, .. } = *facts;
    let tokens =
        family_heads::masked_lm(architecture, config, sizes.hidden, sizes.vocabulary).ok_or_else(|| {
            let architecture = architecture.to_owned();
            CardError::NoHead { architecture, task: Task::Sparse, known: family_heads::model_types() }
        })?;
    let pooling = facts.modules.and_then(|modules| {
        modules.as_array()?.iter().find(|module| module["type"].as_str().is_some_and(is_pooling))
    });
    let (times, by) = match pooling {
        None => (1, by.to_owned()),
        Some(module) => {
            let path = inside("modules.json", module["path"].as_str().unwrap_or_default())?;
            let file = format!("{path}/config.json");
            (times(&file, &facts.json.required(&file)?)?, file)
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

/// How often the logarithm is taken.
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
