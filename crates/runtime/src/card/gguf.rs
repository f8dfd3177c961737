//! Reads the card of a GGUF file from its metadata.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use sconce_core::card::{Format, GenerationCard, ModelCard, Pooling, PoolingMode, Task, Weights};
use sconce_core::engine::ModelSpec;
use sconce_core::files::ModelFiles;
use sconce_core::head::{OutputHead, Step};
use sconce_core::placement::Dtype;
use sconce_core::sourced::Sourced;
use sconce_engines::gguf::added_tokens::added_tokens;
use sconce_engines::gguf::blocks::StoredType;
use sconce_engines::gguf::config::hub_config;
use sconce_engines::gguf::files::{GgufFiles, read_headers};
use sconce_engines::gguf::header::Header;
use sconce_engines::gguf::metadata::Metadata;
use sconce_engines::gguf::split;
use sconce_engines::weights::WeightsError;
use sconce_engines::{describe, families};

use super::chat;
use super::config::Overrides;
use super::error::CardError;
use super::modules::{self, Modules};

/// Control tokens that end a text or a turn.
const END_TOKENS: [&str; 6] =
    ["<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>"];

/// Ends a turn of Phi-3, and only a message in other families.
const PHI3_END: &str = "<|end|>";

/// Quantized types above this many bits per value count as int8, the others as int4.
const INT4_BITS: u64 = 6;

/// The GGUF file of the model at `path`: the file itself, or the only one in a folder without `config.json`. Of a split
/// model it is the first file.
pub(super) fn find(path: &Path) -> Result<Option<PathBuf>, CardError> {
    if is_gguf(path) && !path.is_dir() {
        return Ok(Some(path.to_owned()));
    }
    if path.join("config.json").exists() {
        return Ok(None);
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let names = entries
        .filter(|path| is_gguf(path))
        .filter_map(|path| path.file_name().and_then(|name| name.to_str()).map(split::first_name));
    let names: BTreeSet<String> = names.collect();
    if names.len() > 1 {
        let names: Vec<String> = names.into_iter().collect();
        return Err(CardError::SeveralGguf { folder: path.to_owned(), names });
    }
    Ok(names.first().map(|name| path.join(name)))
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// Reads the card of the model in `file`, under the name `name`.
pub(super) fn read(name: &str, file: &Path, overrides: &Overrides) -> Result<ModelSpec, CardError> {
    let paths = split::files(file);
    let headers = read_headers(&paths)?;
    let tensors = GgufFiles::open(&paths)?;
    let config = hub_config(&headers, &|name| tensors.rotary_factors(name));
    let config = config.map_err(|why| WeightsError::Gguf { path: file.to_owned(), why })?;
    let sizes = families::sizes(&config);
    if let Some(size) = families::too_large(&sizes) {
        return Err(CardError::TooLarge(size));
    }
    let empty = Metadata::default();
    let metadata = headers.first().map_or(&empty, |header| &header.metadata);
    let architecture = metadata.string("general.architecture").unwrap_or_default();
    let task = task(metadata, architecture, overrides)?;
    let file_name = file_name(&paths[0]);
    let (pooling, steps) = match task.value {
        Task::Generate => {
            let Modules { pooling, steps, .. } = modules::unpooled();
            (pooling, steps)
        }
        Task::Embed | Task::Rerank | Task::Classify | Task::Sparse | Task::Tokens => {
            pooling(&file_name, metadata, architecture, overrides)?
        }
    };
    let positions = describe::max_length(&config, &sizes).unwrap_or(sizes.positions);
    let max_length = match overrides.max_length {
        Some(asked) if asked == 0 || asked > positions => {
            return Err(CardError::MaxLength { asked, positions });
        }
        Some(asked) => Sourced::new(asked, "--max-length"),
        None => Sourced::new(positions, format!("{architecture}.context_length")),
    };
    let weights = describe_weights(&file_name, &headers);
    let held = weights.values.unwrap_or(0);
    let promised = describe::parameter_count(&config, &sizes).unwrap_or(0);
    if promised > u128::from(held) {
        return Err(CardError::Sizes { promised, held });
    }
    let model_type = config["model_type"].as_str().unwrap_or_default().to_owned();
    let card = ModelCard {
        name: name.to_owned(),
        architecture: Sourced::new(model_type, "general.architecture"),
        task,
        sizes: Sourced::new(sizes, format!("{architecture}.*")),
        config,
        max_length,
        pooling,
        steps,
        head: OutputHead::default(),
        generation: GenerationCard { end_tokens: end_tokens(metadata), ..chat::read_gguf(metadata) },
        prompts: Sourced::new(BTreeMap::new(), "no key"),
        default_prompt: None,
        dimensions: None,
        weights: vec![weights],
    };
    let folder = file.parent().unwrap_or(Path::new("")).to_owned();
    let files =
        ModelFiles { folder, weights: BTreeMap::from([(file_name, paths)]), modules: BTreeMap::new() };
    Ok(ModelSpec { card, files })
}

/// The task: from the user, or by the keys of the metadata. A decoder that names no pooling generates.
fn task(metadata: &Metadata, architecture: &str, overrides: &Overrides) -> Result<Sourced<Task>, CardError> {
    let pooling = format!("{architecture}.pooling_type");
    match overrides.task {
        Some(task @ (Task::Embed | Task::Generate)) => Ok(Sourced::new(task, "--task")),
        Some(task @ (Task::Rerank | Task::Classify | Task::Sparse | Task::Tokens)) => {
            Err(CardError::GgufTask(task))
        }
        None if overrides.pooling.is_some() => Ok(Sourced::new(Task::Embed, "--pooling")),
        None if metadata.get(&pooling).is_some() => Ok(Sourced::new(Task::Embed, pooling)),
        None if architecture.ends_with("bert") => Ok(Sourced::new(Task::Embed, "general.architecture")),
        None => Ok(Sourced::new(Task::Generate, "general.architecture")),
    }
}

/// The end tokens: those that a key names, of a text or of a turn, and control tokens that are known to end one. Files name
/// only one of several.
fn end_tokens(metadata: &Metadata) -> Option<Sourced<Vec<u32>>> {
    let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
    let tokens = keys.iter().filter_map(|key| u32::try_from(metadata.integer(key)?).ok());
    let ends_phi3 = |text: &str| {
        text == PHI3_END && metadata.string("general.architecture").is_some_and(|name| name == "phi3")
    };
    let ends = |text: &str| END_TOKENS.contains(&text) || ends_phi3(text);
    let named = added_tokens(metadata).filter(|token| token.is_control && ends(token.text));
    let mut tokens: Vec<u32> = tokens.chain(named.map(|token| token.id)).collect();
    tokens.sort_unstable();
    tokens.dedup();
    (!tokens.is_empty()).then(|| Sourced::new(tokens, keys[0]))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

type PoolingAndSteps = (Sourced<Pooling>, Sourced<Vec<Step>>);

/// Pooling from `pooling_type` or the user. No key declares normalization.
fn pooling(
    file: &str,
    metadata: &Metadata,
    architecture: &str,
    overrides: &Overrides,
) -> Result<PoolingAndSteps, CardError> {
    let key = format!("{architecture}.pooling_type");
    let declared = match metadata.integer(&key) {
        Some(1) => Some(PoolingMode::Mean),
        Some(2) => Some(PoolingMode::Cls),
        Some(3) => Some(PoolingMode::LastToken),
        _ => None,
    };
    let mode = match (overrides.pooling, declared) {
        (Some(mode), _) => Some(Sourced::new(mode, "--pooling")),
        (None, Some(mode)) => Some(Sourced::new(mode, key)),
        (None, None) => None,
    };
    let unknown = |lack, what, flags| CardError::HalfConfigured { file: file.to_owned(), lack, what, flags };
    match (mode, overrides.normalize) {
        (Some(mode), Some(normalize)) => {
            let pooling = Pooling { modes: vec![mode.value], include_prompt: true };
            let steps = if normalize { vec![Step::Normalize] } else { Vec::new() };
            Ok((Sourced::new(pooling, mode.source), Sourced::new(steps, "--normalize")))
        }
        (Some(_), None) => {
            Err(unknown("has no key for the normalization", "the normalization", "`--normalize true|false`"))
        }
        (None, Some(_)) => Err(unknown("names no pooling", "the pooling mode", "`--pooling mean|cls|…`")),
        (None, None) => Err(unknown(
            "names no pooling",
            "the pooling mode and the normalization",
            "`--pooling mean|cls|…` and `--normalize true|false`",
        )),
    }
}

/// Describes the weights. Their dtype is that of the type that holds most values.
fn describe_weights(name: &str, headers: &[Header]) -> Weights {
    let mut by_type: BTreeMap<StoredType, u64> = BTreeMap::new();
    let tensors = || headers.iter().flat_map(|header| &header.tensors);
    for tensor in tensors() {
        *by_type.entry(tensor.stored).or_insert(0) += tensor.values();
    }
    let values = by_type.values().sum();
    let most = by_type.into_iter().max_by_key(|(_, values)| *values);
    Weights {
        name: name.to_owned(),
        format: Format::Gguf,
        stored: most.map_or(Dtype::F32, |(stored, _)| dtype(stored)),
        bytes: tensors().map(|tensor| tensor.length).sum(),
        values: Some(values),
        identity: String::new(),
    }
}

fn dtype(stored: StoredType) -> Dtype {
    if stored.is_quantized() {
        let bits = 8 * stored.block_bytes() as u64 / stored.block_length() as u64;
        return if bits >= INT4_BITS { Dtype::Int8 } else { Dtype::Int4 };
    }
    if stored == StoredType::F16 {
        Dtype::F16
    } else if stored == StoredType::BF16 {
        Dtype::Bf16
    } else {
        Dtype::F32
    }
}

#[cfg(test)]
mod tests {
    use sconce_engines::gguf::header::Header;
    use sconce_testkit::gguf::{self, Value};

    use super::*;

    fn ends(architecture: &str, key: &str) -> Vec<u32> {
        let tokens = ["a", "<|im_end|>", "<|end|>", "</s>", "<|eot_id|>"].map(str::to_owned).to_vec();
        // The last one is no control token.
        let types = Value::I32s(vec![1, 3, 3, 3, 1]);
        let metadata = [
            ("general.architecture", Value::String(architecture.to_owned())),
            ("tokenizer.ggml.tokens", Value::Strings(tokens)),
            ("tokenizer.ggml.token_type", types),
            (key, Value::U32(3)),
        ];
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, gguf::file(&metadata, &[])).expect("writes");
        let header = Header::read(&path).expect("it is whole");
        end_tokens(&header.metadata).map(|tokens| tokens.value).unwrap_or_default()
    }

    #[test]
    fn a_text_ends_at_the_tokens_of_keys_and_at_known_control_tokens() {
        assert_eq!(ends("llama", "tokenizer.ggml.eos_token_id"), [1, 3]);
        assert_eq!(ends("llama", "tokenizer.ggml.eot_token_id"), [1, 3]);
        assert_eq!(ends("llama", "tokenizer.ggml.other"), [1]);
        // It ends a turn of Phi-3, and only a message elsewhere.
        assert_eq!(ends("phi3", "tokenizer.ggml.eos_token_id"), [1, 2, 3]);
    }
}
