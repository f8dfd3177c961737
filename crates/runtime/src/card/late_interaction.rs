//! The head of late-interaction (`ColBERT`) models: the token projection, and the settings of queries and documents.

use std::collections::BTreeMap;
use std::path::Path;

use sconce_core::card::{Pooling, PoolingMode};
use sconce_core::head::{Dense, DenseActivation, Expansion, LateInteraction, OutputHead, Step};
use sconce_core::sourced::Sourced;
use sconce_engines::weights::Header;
use serde_json::Value;

use super::config::ConfigFiles;
use super::error::CardError;
use super::json::{non_null, relative_path};
use super::modules::{Modules, dense, dense_weights};
use super::weights;

const SENTENCE: &str = "config_sentence_transformers.json";
const TRANSFORMER: &str = "sentence_bert_config.json";
/// Settings file of Stanford's checkpoints.
const ARTIFACT: &str = "artifact.metadata";
/// Default length of an expanded query.
const DEFAULT_QUERY_LENGTH: usize = 32;
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// Reads the token projection from `modules.json`, or from `linear.weight` of Stanford's checkpoints.
pub(super) fn read(files: &ConfigFiles<'_>) -> Result<Modules, CardError> {
    let (mut steps, mut module_files, mut skip) = (Vec::new(), BTreeMap::new(), None);
    for module in files.modules.and_then(Value::as_array).into_iter().flatten() {
        let path = relative_path("modules.json", module["path"].as_str().unwrap_or_default())?;
        let kind = module["type"].as_str().unwrap_or_default();
        let file = format!("{path}/config.json");
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" if path.is_empty() => {}
            "Dense" => {
                steps.push(Step::Dense(dense(path, &file, &files.json.required(&file)?)?));
                module_files.insert(path.to_owned(), dense_weights(files.json, path)?);
            }
            "Normalize" => steps.push(Step::Normalize),
            "MultiVectorMask" => {
                skip = Some(Sourced::new(strings(&files.json.required(&file)?["skiplist_words"]), file));
            }
            _ => return Err(CardError::UnknownModule(format!("`{kind}`"))),
        }
    }
    let mut by = "modules.json".to_owned();
    if steps.is_empty() {
        let (dense, file) = stanford(files)?;
        steps.push(Step::Dense(dense));
        by = file;
    }
    // All late-interaction models normalize; older files do not declare it.
    if steps.last() != Some(&Step::Normalize) {
        steps.push(Step::Normalize);
    }
    let mut sides = sides(files)?;
    if let Some(skip) = skip {
        sides = Sourced::new(
            LateInteraction { skip: skip.value, ..sides.value },
            format!("{}, {}", sides.source, skip.source),
        );
    }
    Ok(Modules {
        pooling: Sourced::new(Pooling { modes: vec![PoolingMode::Mean], include_prompt: true }, by.clone()),
        steps: Sourced::new(Vec::new(), by.clone()),
        head: OutputHead {
            tokens: Some(Sourced::new(steps, by)),
            late_interaction: Some(sides),
            ..OutputHead::default()
        },
        files: module_files,
    })
}

/// The `linear.weight` projection of a Stanford checkpoint.
fn stanford(files: &ConfigFiles<'_>) -> Result<(Dense, String), CardError> {
    let (_, sets) = weights::find(files.json.folder())?;
    for (name, paths) in sets {
        for path in &paths {
            if let Some(output) = projection_width(path)? {
                let dense = Dense {
                    folder: None,
                    weight: vec!["linear.weight".to_owned()],
                    bias: Vec::new(),
                    selected_rows: None,
                    input: files.sizes.hidden,
                    output,
                    activation: DenseActivation::Identity,
                };
                return Ok((dense, name));
            }
        }
    }
    Err(CardError::HalfConfigured {
        file: "modules.json".to_owned(),
        lack: "names no projection and the weights have no `linear.weight`",
        what: "the token projection",
        flags: "`--task embed`, if the model computes one vector per text",
    })
}

fn projection_width(path: &Path) -> Result<Option<usize>, CardError> {
    let header = Header::read(path)?;
    let tensors = header.metadata.tensors();
    Ok(tensors.get("linear.weight").and_then(|info| info.shape.first().copied()))
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Query and document settings from sentence-transformers, `PyLate` or Stanford's files.
fn sides(files: &ConfigFiles<'_>) -> Result<Sourced<LateInteraction>, CardError> {
    let none = Value::Null;
    let transformer = files.json.optional(TRANSFORMER)?.unwrap_or_default();
    let size = |value: &Value| value.as_u64().map(|size| size as usize);
    if let Some(artifact) = files.json.optional(ARTIFACT)? {
        let marker = |key: &str, usual: &str| {
            artifact[key].as_str().map_or_else(|| format!("{usual} "), |token| format!("{token} "))
        };
        let sides = LateInteraction {
            query: marker("query_token_id", "[unused0]"),
            document: marker("doc_token_id", "[unused1]"),
            query_length: None,
            document_length: size(&artifact["doc_maxlen"]),
            expansion: Some(Expansion {
                to: size(&artifact["query_maxlen"]).unwrap_or(DEFAULT_QUERY_LENGTH),
                attended: artifact["attend_to_mask_tokens"].as_bool().unwrap_or(false),
            }),
            skip: if artifact["mask_punctuation"].as_bool().unwrap_or(true) {
                punctuation()
            } else {
                Vec::new()
            },
        };
        return Ok(Sourced::new(sides, ARTIFACT));
    }
    let sentence = files.sentence.unwrap_or(&none);
    let pylate = ["query_prefix", "document_prefix", "do_query_expansion", "attend_to_expansion_tokens"]
        .iter()
        .any(|key| sentence.get(key).is_some());
    let before = |prefix: &str, prompt: &str| {
        let prefix = sentence[prefix].as_str().unwrap_or_default();
        let prompt = sentence["prompts"][prompt].as_str().unwrap_or_default();
        format!("{prefix}{}", prompt.strip_prefix(prefix).unwrap_or(prompt))
    };
    let said = |key: &str| size(&sentence[key]).or_else(|| size(&transformer[key]));
    let expansion = match non_null(&transformer, "query_expansion") {
        Some(expansion) => Some(Expansion {
            to: size(&expansion["length"]).unwrap_or(DEFAULT_QUERY_LENGTH),
            attended: expansion["attend"].as_bool().unwrap_or(false),
        }),
        None if pylate && sentence["do_query_expansion"].as_bool() != Some(false) => Some(Expansion {
            to: said("query_length").unwrap_or(DEFAULT_QUERY_LENGTH),
            attended: sentence["attend_to_expansion_tokens"].as_bool().unwrap_or(false),
        }),
        None => None,
    };
    let skip = match non_null(sentence, "skiplist_words") {
        Some(list) => strings(list),
        None if pylate => punctuation(),
        None => Vec::new(),
    };
    let sides = LateInteraction {
        query: before("query_prefix", "query"),
        document: before("document_prefix", "document"),
        query_length: said("query_length"),
        document_length: said("document_length"),
        expansion,
        skip,
    };
    let knobs = ["query_expansion", "query_length", "document_length"];
    let by = match (files.sentence.is_some(), knobs.iter().any(|key| non_null(&transformer, key).is_some())) {
        (true, true) => format!("{SENTENCE}, {TRANSFORMER}"),
        (true, false) => SENTENCE.to_owned(),
        (false, true) => TRANSFORMER.to_owned(),
        (false, false) => "no file".to_owned(),
    };
    Ok(Sourced::new(sides, by))
}

fn punctuation() -> Vec<String> {
    PUNCTUATION.chars().map(String::from).collect()
}
