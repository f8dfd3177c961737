//! Tiny models of every family, and transformers' outputs for them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use crate::compare;

/// Embedding models, by folder.
pub const TINY: [&str; 6] =
    ["tiny-bert", "tiny-roberta", "tiny-xlm-roberta", "tiny-camembert", "tiny-distilbert", "tiny-mpnet"];

/// Rerankers.
pub const RERANK: [&str; 6] = [
    "tiny-bert-rerank",
    "tiny-roberta-rerank",
    "tiny-xlm-roberta-rerank",
    "tiny-camembert-rerank",
    "tiny-distilbert-rerank",
    "tiny-mpnet-rerank",
];

/// Classifiers.
pub const CLASSIFY: [&str; 6] = [
    "tiny-bert-classify",
    "tiny-roberta-classify",
    "tiny-xlm-roberta-classify",
    "tiny-camembert-classify",
    "tiny-distilbert-classify",
    "tiny-mpnet-classify",
];

/// Sparse embedding models.
pub const SPARSE: [&str; 6] = [
    "tiny-bert-sparse",
    "tiny-roberta-sparse",
    "tiny-xlm-roberta-sparse",
    "tiny-camembert-sparse",
    "tiny-distilbert-sparse",
    "tiny-mpnet-sparse",
];

/// Heads of families whose goldens have no tokenizer: outputs for token ids only.
pub const WIDER_HEADS: [&str; 10] = [
    "tiny-gte-rerank",
    "tiny-gte-sparse",
    "tiny-nomic-classify",
    "tiny-jina-rerank",
    "tiny-deberta-v2-rerank",
    "tiny-modernbert-rerank",
    "tiny-modernbert-classify",
    "tiny-modernbert-sparse",
    "tiny-qwen3-rerank",
    "tiny-qwen3-words",
];

/// Multi-vector models.
pub const TOKENS: [&str; 3] =
    ["tiny-bert-tokens-plain", "tiny-bert-tokens-filled", "tiny-bert-tokens-unseen"];

/// The folder of a golden.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens").join(name)
}

/// A copy of a golden's folder, for tests that change it.
///
/// # Panics
/// If the copy fails.
pub fn copy(name: &str, to: &Path) -> PathBuf {
    copy_folder(&folder(name), to);
    to.to_owned()
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for entry in fs::read_dir(from).expect("the golden is there").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a file can be copied");
        }
    }
}

/// Tensors of a golden file, converted to f64.
pub struct Golden(HashMap<String, (Vec<usize>, Vec<f64>)>);

impl Golden {
    /// Reads `file` of the golden `name`.
    ///
    /// # Panics
    /// If it can't be read.
    pub fn read(name: &str, file: &str) -> Golden {
        let bytes = fs::read(folder(name).join(file)).expect("the golden is there");
        let tensors = SafeTensors::deserialize(&bytes).expect("the golden is whole");
        let read = tensors.iter().map(|(name, view)| {
            let data = view.data();
            #[expect(clippy::wildcard_enum_match_arm, reason = "goldens are stored in three kinds")]
            let values = match view.dtype() {
                Dtype::F32 => {
                    data.as_chunks::<4>().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect()
                }
                Dtype::I64 => data.as_chunks::<8>().0.iter().map(|&b| i64::from_le_bytes(b) as f64).collect(),
                Dtype::F16 => {
                    data.as_chunks::<2>().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f64()).collect()
                }
                other => panic!("no golden is stored as {other:?}"),
            };
            (name.to_owned(), (view.shape().to_vec(), values))
        });
        Golden(read.collect())
    }

    /// Whether the tensor exists.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The values of a tensor.
    ///
    /// # Panics
    /// If the tensor does not exist.
    pub fn numbers(&self, name: &str) -> &[f64] {
        &self.0.get(name).unwrap_or_else(|| panic!("no golden `{name}`")).1
    }

    /// A tensor's rows.
    pub fn rows(&self, name: &str) -> Vec<&[f64]> {
        let width = self.0.get(name).map_or(1, |(shape, _)| shape[shape.len() - 1]);
        self.numbers(name).chunks_exact(width).collect()
    }

    /// A tensor of ids.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.numbers(name).iter().map(|&id| id as u32).collect()
    }

    /// The lengths `L` of the tensors `hidden.L`.
    pub fn lengths(&self) -> Vec<usize> {
        let mut lengths: Vec<usize> =
            self.0.keys().filter_map(|name| name.strip_prefix("hidden.")?.parse().ok()).collect();
        lengths.sort_unstable();
        lengths
    }
}

/// The largest difference of values; infinite if a value is NaN or the lengths differ.
pub fn apart(got: &[f32], want: &[f64]) -> f64 {
    compare::max_difference(got, want)
}

/// Cosine similarity.
pub fn cosine(a: &[f32], b: &[f64]) -> f64 {
    let dot: f64 = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * b).sum();
    let length = |sum: f64| sum.sqrt();
    let a = length(a.iter().map(|&x| f64::from(x) * f64::from(x)).sum());
    let b = length(b.iter().map(|x| x * x).sum());
    dot / (a * b)
}

/// The chat template of a real model, such as `qwen3`.
///
/// # Panics
///
/// If there is none of that name.
pub fn chat_template(name: &str) -> String {
    let file = fs::read(folder("chat-templates").join("chat-templates.json")).expect("a golden");
    let file: serde_json::Value = serde_json::from_slice(&file).expect("JSON");
    file["templates"][name]["template"].as_str().expect("a template").to_owned()
}
