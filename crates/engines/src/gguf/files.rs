//! Tensors of GGUF files, under the names and with the conventions of the hub.

use std::collections::HashMap;
use std::path::PathBuf;

use super::blocks::StoredType;
use super::header::{Header, TensorInfo};
use super::names::{self, Convention};
use super::split;
use crate::stored_tensor::StoredTensor;
use crate::weights::{Tensors, WeightsError, read_at};

/// Maximum number of experts.
const MAX_EXPERTS: usize = 1 << 10;
/// Maximum number of rotary factors.
const MAX_FACTORS: usize = 1 << 13;

/// Tensors of the GGUF files of one model.
pub struct GgufFiles {
    locations: HashMap<String, Location>,
}

struct Location {
    path: PathBuf,
    info: TensorInfo,
    change: Change,
}

/// How a tensor is converted to the hub's convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    None,
    /// Each of these heads has adjacent rotary pairs; the hub has them in two halves.
    SplitPairs {
        heads: usize,
    },
    /// The weights include one.
    SubtractOne,
}

impl GgufFiles {
    /// Reads the headers of `paths`, all files of one model.
    pub fn open(paths: &[PathBuf]) -> Result<GgufFiles, WeightsError> {
        let headers = read_headers(paths)?;
        let first = paths.first().zip(headers.first());
        let Some((path, header)) = first else { return Err(WeightsError::Missing("a GGUF file".to_owned())) };
        let broken = |path: &PathBuf, why: String| WeightsError::Gguf { path: path.clone(), why };
        let architecture = header.metadata.string("general.architecture").unwrap_or_default();
        let names = names::of(architecture).ok_or_else(|| {
            broken(path, format!("no tensor names for `{architecture}`; known: {}", names::known()))
        })?;
        let heads = |key: &str| {
            let key = format!("{architecture}.attention.{key}");
            header.metadata.integer(&key).and_then(|heads| usize::try_from(heads).ok())
        };
        let query_heads = heads("head_count").unwrap_or(1).max(1);
        let key_heads = heads("head_count_kv").unwrap_or(query_heads).max(1);
        let mut locations = HashMap::new();
        for (path, header) in paths.iter().zip(&headers) {
            for info in &header.tensors {
                let name = &info.name;
                let hub = names.on_hub(name).ok_or_else(|| WeightsError::Unplaced(name.clone()))?;
                let change = match names.convention {
                    Convention::AdjacentPairs if name.contains(".attn_q.") => {
                        Change::SplitPairs { heads: query_heads }
                    }
                    Convention::AdjacentPairs if name.contains(".attn_k.") => {
                        Change::SplitPairs { heads: key_heads }
                    }
                    Convention::NormsPlusOne if name.ends_with("norm.weight") => Change::SubtractOne,
                    Convention::Same | Convention::AdjacentPairs | Convention::NormsPlusOne => Change::None,
                };
                if let Change::SplitPairs { heads } = change
                    && !info.shape[0].is_multiple_of(2 * heads)
                {
                    let rows = info.shape[0];
                    return Err(broken(path, format!("`{name}` has {rows} rows for {heads} heads")));
                }
                for (hub, info) in experts(&hub, info) {
                    let location = Location { path: path.clone(), info, change };
                    if locations.insert(hub, location).is_some() {
                        return Err(broken(path, format!("the tensor `{name}` is in two files")));
                    }
                }
            }
        }
        Ok(GgufFiles { locations })
    }
}

/// The tensors of all experts, which files have as one, with the experts first; other tensors as they are.
fn experts(hub: &str, info: &TensorInfo) -> Vec<(String, TensorInfo)> {
    let [count, rest @ ..] = &info.shape[..] else { return Vec::new() };
    if !hub.contains("{e}") {
        return vec![(hub.to_owned(), info.clone())];
    }
    let length = info.length / (*count).max(1) as u64;
    let expert = |index: usize| {
        let start = info.start + index as u64 * length;
        let info = TensorInfo { shape: rest.to_vec(), start, length, ..info.clone() };
        (hub.replace("{e}", &index.to_string()), info)
    };
    (0..(*count).min(MAX_EXPERTS)).map(expert).collect()
}

/// Reads the headers of all files of one model, and checks that they belong together.
pub fn read_headers(paths: &[PathBuf]) -> Result<Vec<Header>, WeightsError> {
    let headers = paths.iter().map(|path| Header::read(path)).collect::<Result<Vec<_>, _>>()?;
    split::check(paths, &headers)?;
    Ok(headers)
}

impl GgufFiles {
    /// The values of a tensor of rotary factors; none if it does not exist, or is no such tensor.
    pub fn rotary_factors(&self, name: &str) -> Option<Vec<f32>> {
        let shape = self.shape(name).filter(|_| names::ROTARY_FACTORS.contains(&name))?;
        (shape.len() == 1 && shape[0] <= MAX_FACTORS).then(|| self.read(name, &shape).ok()).flatten()
    }
}

impl Tensors for GgufFiles {
    fn names(&self) -> Vec<String> {
        self.locations.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.locations.get(name).map(|location| location.info.shape.clone())
    }

    fn stored_type(&self, name: &str) -> Option<StoredType> {
        self.locations.get(name).map(|location| match location.change {
            Change::None | Change::SplitPairs { .. } => location.info.stored,
            Change::SubtractOne => StoredType::F32,
        })
    }

    fn stored(&self, name: &str) -> Result<Option<StoredTensor>, WeightsError> {
        let Some(Location { path, info, change }) = self.locations.get(name) else { return Ok(None) };
        let missing = || WeightsError::Missing(name.to_owned());
        let length = usize::try_from(info.length).map_err(|_| missing())?;
        let bytes = read_at(path, info.start, length)?;
        let tensor = StoredTensor { stored: info.stored, shape: info.shape.clone(), bytes };
        Ok(Some(match change {
            Change::None => tensor,
            Change::SplitPairs { heads } => split_pairs(&tensor, *heads),
            Change::SubtractOne => subtract_one(&tensor),
        }))
    }
}

/// Reorders the rows of each head from adjacent rotary pairs to two halves.
fn split_pairs(tensor: &StoredTensor, heads: usize) -> StoredTensor {
    let pairs = tensor.shape[0] / heads / 2;
    let half = |first: usize| (0..pairs).map(move |pair| first + 2 * pair);
    tensor.reordered((0..heads).flat_map(|head| {
        let first = head * 2 * pairs;
        half(first).chain(half(first + 1))
    }))
}

fn subtract_one(tensor: &StoredTensor) -> StoredTensor {
    let values = tensor.dequantize().into_iter().map(|value| value - 1.0);
    let bytes = values.flat_map(f32::to_le_bytes).collect();
    StoredTensor { stored: StoredType::F32, shape: tensor.shape.clone(), bytes }
}

#[cfg(test)]
mod tests;
