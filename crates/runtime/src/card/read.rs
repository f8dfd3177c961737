//! Reads the card of a model from its folder. Facts that no file states are rejected, never guessed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sconce_core::card::{
    Dimensions, Format, GenerationCard, ModelCard, Pooling, PoolingMode, Sizes, Task, Weights,
};
use sconce_core::engine::ModelSpec;
use sconce_core::files::ModelFiles;
use sconce_core::head::{OutputHead, Step};
use sconce_core::placement::Dtype;
use sconce_core::sourced::Sourced;
use sconce_engines::{describe, families};
use serde_json::Value;

use super::config::{ConfigFiles, Overrides};
use super::error::CardError;
use super::json::{Json, non_null};
use super::{chat, classifier, gguf, late_interaction, modules, sparse, task, weights};
use crate::catalogue;
use crate::source::bundle;

/// Reads the card of the model in `folder`, or of a GGUF file, under the name `name`. Prompts that the files omit come from
/// the [catalogue](crate::catalogue).
pub fn read(name: &str, folder: &Path, overrides: &Overrides) -> Result<ModelSpec, CardError> {
    let mut spec = read_files(name, folder, overrides)?;
    // A model without a KV cache has the same results, and the same class, with any.
    if spec.card.task.value == Task::Generate {
        spec.card.generation.kv_cache_dtype = overrides.kv_cache_dtype.unwrap_or_default();
    }
    if let Some(prompts) = catalogue_prompts(&spec.card, name, folder) {
        spec.card.prompts = Sourced::new(prompts, catalogue::SOURCE);
    }
    Ok(spec)
}

/// The prompts of the catalogue for a model that gives vectors and whose files have no prompt, or only empty ones.
fn catalogue_prompts(card: &ModelCard, name: &str, folder: &Path) -> Option<BTreeMap<String, String>> {
    if card.task.value != Task::Embed || !card.prompts.value.values().all(String::is_empty) {
        return None;
    }
    // A bundle has those that its model had where it was written.
    if let Ok(prompts) = bundle::prompts(Path::new(name)) {
        return (!prompts.is_empty()).then_some(prompts);
    }
    let path = folder.canonicalize();
    let model = catalogue::of_source(name, path.as_deref().unwrap_or(folder))?;
    let is_it = model.model_type == card.architecture.value && !model.prompts.is_empty();
    is_it.then(|| model.prompts.clone())
}

/// Reads the card from files alone.
fn read_files(name: &str, folder: &Path, overrides: &Overrides) -> Result<ModelSpec, CardError> {
    if let Some(file) = gguf::find(folder)? {
        return gguf::read(name, &file, overrides);
    }
    let json = Json::in_folder(folder);
    let config = json.required("config.json")?;
    let architecture = config["model_type"].as_str().ok_or(CardError::NoModelType)?.to_owned();
    let sizes = families::sizes(&config);
    if let Some(size) = families::too_large(&sizes) {
        return Err(CardError::TooLarge(size));
    }
    let modules = json.optional("modules.json")?;
    let sentence = json.optional("config_sentence_transformers.json")?;
    let task = task::find(&config, modules.as_ref(), sentence.as_ref(), overrides);
    let files = ConfigFiles {
        json: &json,
        architecture: &architecture,
        config: &config,
        sizes: &sizes,
        modules: modules.as_ref(),
        sentence: sentence.as_ref(),
    };
    let parts = match task.value {
        Task::Embed => modules::read(&json, overrides)?,
        Task::Generate => modules::unpooled(),
        Task::Rerank | Task::Classify => classifier::read(&files, task.value)?,
        Task::Sparse => sparse::read(&files, &task.source)?,
        Task::Tokens => late_interaction::read(&files)?,
    };
    let (weights, weight_files) = weights::find(folder)?;
    let max_length = max_length(&json, &config, &sizes, overrides)?;
    let (prompts, default_prompt) = prompts(sentence.as_ref());
    let generation = json.optional("generation_config.json")?;
    let end_tokens = end_tokens(generation.as_ref(), &config);
    let generation = match task.value {
        Task::Generate => GenerationCard { end_tokens, ..chat::read(&json)? },
        Task::Embed | Task::Rerank | Task::Classify | Task::Sparse | Task::Tokens => {
            GenerationCard { end_tokens, ..GenerationCard::default() }
        }
    };
    let card = ModelCard {
        name: name.to_owned(),
        architecture: Sourced::new(architecture, "config.json"),
        task,
        sizes: Sourced::new(sizes, "config.json"),
        max_length,
        pooling: parts.pooling,
        steps: parts.steps,
        head: parts.head,
        generation,
        prompts,
        default_prompt,
        dimensions: dimensions(&config, sentence.as_ref()),
        config,
        weights,
    };
    let files = ModelFiles { folder: folder.to_owned(), weights: weight_files, modules: parts.files };
    check_sizes(&card, &files)?;
    check_widths(&card)?;
    Ok(ModelSpec { card, files })
}

/// The end tokens: from the generation config, else from the model config. Both have one token or a list.
fn end_tokens(generation: Option<&Value>, config: &Value) -> Option<Sourced<Vec<u32>>> {
    let read = |config: &Value| {
        let listed = config["eos_token_id"].as_array().cloned();
        let tokens = listed.unwrap_or_else(|| vec![config["eos_token_id"].clone()]);
        let tokens = tokens.iter().map(|token| token.as_u64().and_then(|token| u32::try_from(token).ok()));
        tokens.collect::<Option<Vec<u32>>>().filter(|tokens| !tokens.is_empty())
    };
    let generation = generation.and_then(read).map(|tokens| Sourced::new(tokens, "generation_config.json"));
    generation.or_else(|| Some(Sourced::new(read(config)?, "config.json")))
}

/// `max_length`: from the user, sentence-transformers or the tokenizer, in this order; at most the number of positions.
fn max_length(
    json: &Json<'_>,
    config: &Value,
    sizes: &Sizes,
    overrides: &Overrides,
) -> Result<Sourced<usize>, CardError> {
    let positions = describe::max_length(config, sizes).unwrap_or(sizes.positions);
    if let Some(asked) = overrides.max_length {
        if asked == 0 || asked > positions {
            return Err(CardError::MaxLength { asked, positions });
        }
        return Ok(Sourced::new(asked, "--max-length"));
    }
    // Tokenizers without a limit set 1e30.
    let length = |value: &Value| {
        value.as_u64().filter(|&length| length > 0 && length < 1 << 31).map(|length| length as usize)
    };
    let said =
        [("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")];
    for (file, key) in said {
        if let Some(value) = json.optional(file)?.as_ref().and_then(|config| length(&config[key])) {
            return Ok(if value <= positions {
                Sourced::new(value, file)
            } else {
                Sourced::new(positions, "config.json")
            });
        }
    }
    Ok(Sourced::new(positions, "config.json"))
}

type Prompts = (Sourced<BTreeMap<String, String>>, Option<Sourced<String>>);

fn prompts(sentence: Option<&Value>) -> Prompts {
    const FILE: &str = "config_sentence_transformers.json";
    let Some(config) = sentence else { return (Sourced::new(BTreeMap::new(), "no file"), None) };
    let entries = config["prompts"].as_object().into_iter().flatten();
    let prompts: BTreeMap<_, _> =
        entries.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))).collect();
    let default = config["default_prompt_name"].as_str().filter(|name| prompts.contains_key(*name));
    (Sourced::new(prompts.clone(), FILE), default.map(|name| Sourced::new(name.to_owned(), FILE)))
}

/// Matryoshka dimensions, if a file declares them.
fn dimensions(config: &Value, sentence: Option<&Value>) -> Option<Sourced<Dimensions>> {
    if let Some(lengths) = config["matryoshka_dimensions"].as_array() {
        let lengths = lengths.iter().filter_map(Value::as_u64).map(|length| length as usize).collect();
        return Some(Sourced::new(Dimensions::Only(lengths), "config.json"));
    }
    if config["is_matryoshka"].as_bool() == Some(true) {
        return Some(Sourced::new(Dimensions::Any, "config.json"));
    }
    let cut = non_null(sentence?, "truncate_dim")?.as_u64()?;
    Some(Sourced::new(Dimensions::Only(vec![cut as usize]), "config_sentence_transformers.json"))
}

/// Rejects a config with more parameters than the weight files can hold, before memory is allocated for it.
fn check_sizes(card: &ModelCard, files: &ModelFiles) -> Result<(), CardError> {
    let Some(promised) = describe::parameter_count(&card.config, &card.sizes.value) else { return Ok(()) };
    let length = |path: &PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.len());
    let held = files.weights.values().map(|paths| paths.iter().map(length).sum()).max().unwrap_or(0);
    // A parameter takes at least one byte, or half a byte in int4 graphs.
    let halved = card.weights.iter().any(|weights| weights.stored == Dtype::Int4);
    if promised > u128::from(held) * if halved { 2 } else { 1 } {
        Err(CardError::Sizes { promised, held })
    } else {
        Ok(())
    }
}

/// Checks that each module's input width is the output width of the module before it.
fn check_widths(card: &ModelCard) -> Result<(), CardError> {
    let pooled = card.token_width() * card.pooling.value.modes.len();
    for (mut width, steps) in
        [(card.sizes.value.hidden, card.token_steps()), (pooled, card.steps.value.as_slice())]
    {
        for step in steps {
            if let Step::Dense(dense) = step {
                if dense.input != width {
                    let folder = dense.folder.clone().or_else(|| dense.weight.first().cloned());
                    return Err(CardError::Width {
                        folder: folder.unwrap_or_default(),
                        takes: dense.input,
                        given: width,
                    });
                }
                width = dense.output;
            }
        }
    }
    Ok(())
}

/// The card of a small BERT without files, for checks of a machine without a model.
pub fn sample() -> ModelSpec {
    let by = "sconce";
    let sizes =
        Sizes { layers: 6, hidden: 384, heads: 12, intermediate: 1536, vocabulary: 30522, positions: 512 };
    let card = ModelCard {
        name: "a small BERT".to_owned(),
        architecture: Sourced::new("bert".to_owned(), by),
        task: Sourced::new(Task::Embed, by),
        sizes: Sourced::new(sizes, by),
        config: serde_json::json!({ "model_type": "bert", "hidden_act": "gelu", "type_vocab_size": 2 }),
        max_length: Sourced::new(512, by),
        pooling: Sourced::new(Pooling { modes: vec![PoolingMode::Mean], include_prompt: true }, by),
        steps: Sourced::new(vec![Step::Normalize], by),
        head: OutputHead::default(),
        generation: GenerationCard::default(),
        prompts: Sourced::new(BTreeMap::new(), by),
        default_prompt: None,
        dimensions: None,
        weights: [Format::Safetensors, Format::Onnx]
            .map(|format| Weights {
                name: String::new(),
                format,
                stored: Dtype::F32,
                bytes: 0,
                values: None,
                identity: String::new(),
            })
            .to_vec(),
    };
    ModelSpec { card, files: ModelFiles::default() }
}
