//! Reads the reference of `sconce verify`: texts with vectors or scores of another implementation.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;
use zip::ZipArchive;

use crate::input::Input;
use crate::npy::Array;

/// Texts with their reference vectors or logits.
pub(crate) struct Reference {
    pub(crate) texts: Vec<String>,
    /// The second texts of pairs. Empty for single texts.
    pub(crate) pairs: Vec<String>,
    pub(crate) vectors: Vec<Vec<f32>>,
}

impl Reference {
    /// Reads `path`. The texts of a `.npy` file come from `input`.
    pub(crate) fn read(path: &Path, input: Option<&Path>) -> anyhow::Result<Reference> {
        let named = || format!("could not read the reference: `{}`", path.display());
        let reference = match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl") => lines(path).with_context(named)?,
            Some("npz") => archive(path).with_context(named)?,
            Some("npy") => {
                let input =
                    input.context("a `.npy` reference has no texts\nhint: pass them with `--input FILE`")?;
                let texts = Input::open(input)?.all()?.into_iter().map(|record| record.text).collect();
                let bytes = fs::read(path).with_context(named)?;
                let vectors = Array::parse(&bytes).with_context(named)?.rows()?;
                Reference { texts, pairs: Vec::new(), vectors }
            }
            Some(_) | None => {
                bail!(
                    "unsupported reference format, expected `.jsonl`, `.npz` or `.npy`: `{}`",
                    path.display()
                )
            }
        };
        let (texts, vectors) = (reference.texts.len(), reference.vectors.len());
        if texts != vectors || texts == 0 {
            bail!("`{}` has {texts} texts and {vectors} vectors", path.display());
        }
        let pairs = reference.pairs.len();
        if pairs != 0 && pairs != texts {
            bail!("`{}` has {texts} texts and {pairs} second texts", path.display());
        }
        Ok(reference)
    }
}

fn lines(path: &Path) -> anyhow::Result<Reference> {
    let mut reference = Reference { texts: Vec::new(), pairs: Vec::new(), vectors: Vec::new() };
    for (number, record) in Input::open(path)?.all()?.into_iter().enumerate() {
        let numbers = ["embedding", "scores"].iter().find_map(|field| record.fields.get(*field)?.as_array());
        reference.pairs.extend(record.fields.get("pair").and_then(Value::as_str).map(str::to_owned));
        let vector = numbers.map(|numbers| numbers.iter().filter_map(Value::as_f64).map(|x| x as f32));
        let vector =
            vector.with_context(|| format!("no field `embedding` or `scores` in text {}", number + 1))?;
        reference.vectors.push(vector.collect());
        reference.texts.push(record.text);
    }
    Ok(reference)
}

fn archive(path: &Path) -> anyhow::Result<Reference> {
    let mut archive = ZipArchive::new(File::open(path)?)?;
    let mut array = |name: &str| {
        let mut bytes = Vec::new();
        let file = archive.by_name(&format!("{name}.npy"));
        file.with_context(|| format!("no array `{name}`"))?.read_to_end(&mut bytes)?;
        Array::parse(&bytes)
    };
    let pairs = array("pairs").map_or_else(|_| Ok(Vec::new()), |pairs| pairs.strings())?;
    let numbers = array("scores").or_else(|_| array("embeddings"))?;
    Ok(Reference { texts: array("texts")?.strings()?, pairs, vectors: numbers.rows()? })
}
