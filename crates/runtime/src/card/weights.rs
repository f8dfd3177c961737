//! Finds the sets of weight files in a folder.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype as Stored;
use sconce_core::card::{Format, Weights};
use sconce_core::placement::Dtype;
use sconce_engines::onnx::header;
use sconce_engines::weights::Header;

use super::error::CardError;
use super::json::{Json, relative_path};

const INDEX: &str = "model.safetensors.index.json";

type Found = (Vec<Weights>, BTreeMap<String, Vec<PathBuf>>);

/// Finds all sets of weights: `model.safetensors`, `model.*.safetensors`, the shards of an index, and the graphs
/// `model.onnx` and `onnx/model*.onnx`.
pub(super) fn find(folder: &Path) -> Result<Found, CardError> {
    let mut sets = BTreeMap::new();
    let mut weights = Vec::new();
    if let Some(index) = Json::in_folder(folder).optional(INDEX)? {
        let shards =
            index["weight_map"].as_object().into_iter().flatten().filter_map(|(_, shard)| shard.as_str());
        let mut paths = Vec::new();
        for shard in shards.collect::<BTreeSet<_>>() {
            paths.push(folder.join(relative_path(INDEX, shard)?));
        }
        if paths.is_empty() {
            let value = index["weight_map"].to_string();
            return Err(CardError::UnknownValue { file: INDEX.to_owned(), key: "weight_map", value });
        }
        sets.insert("model.safetensors".to_owned(), paths);
    }
    for name in names(folder) {
        if is_single_file(&name) {
            sets.insert(name.clone(), vec![folder.join(name)]);
        }
    }
    for (name, paths) in &sets {
        weights.push(describe(name, paths)?);
    }
    for name in graphs(folder) {
        let (graph, paths) = describe_graph(folder, &name)?;
        weights.push(graph);
        sets.insert(name, paths);
    }
    if sets.is_empty() {
        let pickle = names(folder).into_iter().filter(|name| is_pickle(name)).min();
        let folder = folder.to_owned();
        return Err(match pickle {
            Some(file) => CardError::OnlyPickle { file, folder },
            None => CardError::NoWeights(folder),
        });
    }
    // The planner prefers the first of equally good sets: the widest dtype.
    weights.sort_by_key(|weights| (weights.format, Reverse(weights.stored.bits())));
    Ok((weights, sets))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// `model.safetensors` and `model.fp16.safetensors`, but not `model-00001-of-00002.safetensors`.
fn is_single_file(name: &str) -> bool {
    name.strip_prefix("model")
        .and_then(|rest| rest.strip_suffix("safetensors"))
        .is_some_and(|rest| !rest.contains("-of-"))
}

/// `model.onnx` and `onnx/model_quantized.onnx`, by name.
fn graphs(folder: &Path) -> Vec<String> {
    let is_graph = |name: &String| name.starts_with("model") && extension(name) == Some("onnx");
    let inside = names(&folder.join("onnx")).into_iter().filter(is_graph).map(|name| format!("onnx/{name}"));
    let mut graphs: Vec<String> = names(folder).into_iter().filter(is_graph).chain(inside).collect();
    graphs.sort();
    graphs
}

fn extension(name: &str) -> Option<&str> {
    Path::new(name).extension().and_then(|extension| extension.to_str())
}

/// `pytorch_model.bin`, and `pytorch_model-00001-of-00002.bin`.
fn is_pickle(name: &str) -> bool {
    name.starts_with("pytorch_model") && extension(name) == Some("bin")
}

fn describe(name: &str, paths: &[PathBuf]) -> Result<Weights, CardError> {
    let mut by_kind = BTreeMap::from([(Dtype::F32, 0), (Dtype::F16, 0), (Dtype::Bf16, 0)]);
    for path in paths {
        let header = Header::read(path)?;
        for info in header.metadata.tensors().values() {
            let length = (info.data_offsets.1 - info.data_offsets.0) as u64;
            if let Some(dtype) = stored(info.dtype) {
                *by_kind.entry(dtype).or_insert(0) += length;
            }
        }
    }
    let bytes = by_kind.values().sum();
    let stored = by_kind.into_iter().max_by_key(|(_, bytes)| *bytes).map_or(Dtype::F32, |(dtype, _)| dtype);
    let format = Format::Safetensors;
    Ok(Weights { name: name.to_owned(), format, stored, bytes, values: None, identity: String::new() })
}

/// Describes a graph and its external data files. An unreadable graph is described by its name; the engine reports the
/// error.
fn describe_graph(folder: &Path, name: &str) -> Result<(Weights, Vec<PathBuf>), CardError> {
    let path = folder.join(name);
    let header = header::Header::read(&path).ok();
    let mut paths = vec![path.clone()];
    for other in header.iter().flat_map(|header| &header.external) {
        paths.push(path.with_file_name(relative_path(name, other)?));
    }
    // The engine reports missing files.
    let length: u64 = paths.iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.len()).sum();
    let stored = header.as_ref().and_then(|header| header.stored).unwrap_or_else(|| header::by_name(name));
    let bytes = header.map_or(length, |header| header.bytes).max(1).min(length.max(1));
    let identity = String::new();
    Ok((
        Weights { name: name.to_owned(), format: Format::Onnx, stored, bytes, values: None, identity },
        paths,
    ))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the format keeps growing kinds that no encoder uses")]
fn stored(dtype: Stored) -> Option<Dtype> {
    match dtype {
        Stored::F32 => Some(Dtype::F32),
        Stored::F16 => Some(Dtype::F16),
        Stored::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}
