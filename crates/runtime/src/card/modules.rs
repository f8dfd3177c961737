//! Pooling and the modules after it, from sentence-transformers' files and the user's overrides.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sconce_core::card::{Pooling, PoolingMode};
use sconce_core::head::{Dense, DenseActivation, OutputHead, Step};
use sconce_core::sourced::Sourced;
use serde_json::Value;

use super::config::Overrides;
use super::error::CardError;
use super::json::{Json, relative_path};

const MODULES: &str = "modules.json";

/// Pooling and modules after the transformer.
pub(super) struct Modules {
    pub(super) pooling: Sourced<Pooling>,
    pub(super) steps: Sourced<Vec<Step>>,
    pub(super) head: OutputHead,
    pub(super) files: BTreeMap<String, PathBuf>,
}

/// Modules of a model that generates: nothing is pooled.
pub(super) fn unpooled() -> Modules {
    let pooling = Pooling { modes: vec![PoolingMode::LastToken], include_prompt: true };
    Modules {
        pooling: Sourced::new(pooling, "the task"),
        steps: Sourced::new(Vec::new(), "the task"),
        head: OutputHead::default(),
        files: BTreeMap::new(),
    }
}

/// Reads `modules.json` and its files, and applies the overrides.
pub(super) fn read(json: &Json<'_>, overrides: &Overrides) -> Result<Modules, CardError> {
    let (mut head, lack) = match json.optional(MODULES)? {
        Some(modules) => (from_modules(json, &modules)?, "names no pooling"),
        None => (ParsedModules::default(), "is missing"),
    };
    if let Some(mode) = overrides.pooling {
        let include_prompt = head.pooling.as_ref().is_none_or(|pooling| pooling.value.include_prompt);
        head.pooling = Some(Sourced::new(Pooling { modes: vec![mode], include_prompt }, "--pooling"));
    }
    if let Some(normalize) = overrides.normalize {
        let mut steps = head.steps.map(|steps| steps.value).unwrap_or_default();
        steps.retain(|step| *step != Step::Normalize);
        if normalize {
            steps.push(Step::Normalize);
        }
        head.steps = Some(Sourced::new(steps, "--normalize"));
    }
    let undeclared = |what, flags| CardError::HalfConfigured { file: MODULES.to_owned(), lack, what, flags };
    match (head.pooling, head.steps) {
        (Some(pooling), Some(steps)) => {
            Ok(Modules { pooling, steps, head: OutputHead::default(), files: head.files })
        }
        (None, Some(_)) => Err(undeclared("the pooling mode", "`--pooling mean|cls|…`")),
        (Some(_), None) => Err(undeclared("the normalization", "`--normalize true|false`")),
        (None, None) => Err(undeclared(
            "the pooling mode and the normalization",
            "`--pooling mean|cls|…` and `--normalize true|false`",
        )),
    }
}

#[derive(Default)]
struct ParsedModules {
    pooling: Option<Sourced<Pooling>>,
    steps: Option<Sourced<Vec<Step>>>,
    files: BTreeMap<String, PathBuf>,
}

fn from_modules(json: &Json<'_>, modules: &Value) -> Result<ParsedModules, CardError> {
    let mut head = ParsedModules::default();
    let mut steps = Vec::new();
    for module in modules.as_array().into_iter().flatten() {
        let path = relative_path(MODULES, module["path"].as_str().unwrap_or_default())?;
        let kind = module["type"].as_str().unwrap_or_default();
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" if path.is_empty() => {}
            "Pooling" => {
                let file = format!("{path}/config.json");
                head.pooling = Some(Sourced::new(pooling(&file, &json.required(&file)?)?, file));
            }
            "Dense" => {
                let file = format!("{path}/config.json");
                steps.push(Step::Dense(dense(path, &file, &json.required(&file)?)?));
                head.files.insert(path.to_owned(), dense_weights(json, path)?);
            }
            "Normalize" => steps.push(Step::Normalize),
            "Transformer" => return Err(CardError::UnknownModule(format!("`{kind}` in `{path}`"))),
            _ => return Err(CardError::UnknownModule(format!("`{kind}`"))),
        }
    }
    head.steps = Some(Sourced::new(steps, MODULES));
    Ok(head)
}

/// Weight file of a dense module.
pub(super) fn dense_weights(json: &Json<'_>, path: &str) -> Result<PathBuf, CardError> {
    let weights = json.folder().join(path).join("model.safetensors");
    if weights.is_file() {
        return Ok(weights);
    }
    let (folder, pickle) = (json.folder().to_owned(), format!("{path}/pytorch_model.bin"));
    Err(if folder.join(&pickle).is_file() {
        CardError::OnlyPickle { file: pickle, folder }
    } else {
        CardError::Missing { file: format!("{path}/model.safetensors"), folder }
    })
}

/// Parses both layouts of a pooling config: a boolean key per mode, or mode names under `pooling_mode`.
fn pooling(file: &str, config: &Value) -> Result<Pooling, CardError> {
    let unknown = |value: &Value| CardError::UnknownValue {
        file: file.to_owned(),
        key: "pooling_mode",
        value: value.to_string(),
    };
    let named = |value: &Value| match value.as_str() {
        Some("cls") => Ok(PoolingMode::Cls),
        Some("max") => Ok(PoolingMode::Max),
        Some("mean") => Ok(PoolingMode::Mean),
        Some("mean_sqrt_len_tokens") => Ok(PoolingMode::MeanSqrtLen),
        Some("weightedmean") => Ok(PoolingMode::WeightedMean),
        Some("lasttoken") => Ok(PoolingMode::LastToken),
        Some(_) | None => Err(unknown(value)),
    };
    let modes = match &config["pooling_mode"] {
        Value::Null => {
            PoolingMode::ALL.into_iter().filter(|mode| config[mode.key()].as_bool() == Some(true)).collect()
        }
        Value::Array(several) => several.iter().map(named).collect::<Result<Vec<_>, _>>()?,
        name @ (Value::String(_) | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            vec![named(name)?]
        }
    };
    if modes.is_empty() {
        return Err(unknown(config));
    }
    Ok(Pooling { modes, include_prompt: config["include_prompt"].as_bool().unwrap_or(true) })
}

/// Parses the config of a dense module.
pub(super) fn dense(folder: &str, file: &str, config: &Value) -> Result<Dense, CardError> {
    let activation = config["activation_function"].as_str().unwrap_or_default();
    let activation = match activation.rsplit('.').next().unwrap_or_default() {
        "Tanh" => DenseActivation::Tanh,
        "Identity" => DenseActivation::Identity,
        "ReLU" => DenseActivation::Relu,
        "GELU" => DenseActivation::Gelu,
        other => {
            let (file, value) = (file.to_owned(), other.to_owned());
            return Err(CardError::UnknownValue { file, key: "activation_function", value });
        }
    };
    let size = |key: &'static str| match config[key].as_u64() {
        Some(size) => Ok(size as usize),
        None => Err(CardError::UnknownValue { file: file.to_owned(), key, value: config[key].to_string() }),
    };
    let has_bias = config["bias"].as_bool().unwrap_or(true);
    Ok(Dense {
        folder: Some(folder.to_owned()),
        weight: vec!["linear.weight".to_owned()],
        bias: if has_bias { vec!["linear.bias".to_owned()] } else { Vec::new() },
        selected_rows: None,
        input: size("in_features")?,
        output: size("out_features")?,
        activation,
    })
}
