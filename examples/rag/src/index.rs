//! Brings the index up to date with the files: only new and changed ones are embedded.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, bail};
use sconce::Model;
use sha2::{Digest, Sha256};

use crate::chunks::{Chunk, chunks};
use crate::progress::bar;
use crate::store::Store;

/// Extensions of the files that are read.
const EXTENSIONS: [&str; 4] = ["md", "markdown", "rst", "txt"];
/// Chunks that are embedded in one call.
const BATCH: usize = 256;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Update {
    pub changed: usize,
    pub unchanged: usize,
    pub removed: usize,
    pub embedded: usize,
}

/// A file to embed.
struct Changed {
    path: String,
    hash: String,
    chunks: Vec<Chunk>,
}

/// Indexes the files below `paths`. An interrupted run continues where it stopped.
pub fn update(store: &mut Store, model: &Model, class: &str, paths: &[PathBuf]) -> anyhow::Result<Update> {
    let (mut known, mut update, mut changed) = (store.hashes()?, Update::default(), Vec::new());
    for (path, file) in files(paths)? {
        let text = fs::read_to_string(&file).with_context(|| format!("can't read `{path}`"))?;
        let hash = sha256(&text);
        if known.remove(&path) == Some(hash.clone()) {
            update.unchanged += 1;
        } else {
            changed.push(Changed { path, hash, chunks: chunks(&text) });
        }
    }
    for path in known.keys().filter(|path| !changed.iter().any(|file| file.path == **path)) {
        store.replace(path, None, std::iter::empty())?;
        update.removed += 1;
    }
    let total: usize = changed.iter().map(|file| file.chunks.len()).sum();
    let progress = bar("embedding".to_owned(), total as u64);
    let mut batch = Vec::new();
    for file in changed {
        batch.push(file);
        if batch.iter().map(|file| file.chunks.len()).sum::<usize>() >= BATCH {
            progress.inc(embed(store, model, class, &mut batch, &mut update)?);
        }
    }
    embed(store, model, class, &mut batch, &mut update)?;
    progress.finish_and_clear();
    Ok(update)
}

/// Embeds and stores a batch of files. Returns the number of their chunks.
fn embed(
    store: &mut Store,
    model: &Model,
    class: &str,
    batch: &mut Vec<Changed>,
    update: &mut Update,
) -> anyhow::Result<u64> {
    let passages: Vec<String> =
        batch.iter().flat_map(|file| file.chunks.iter().map(Chunk::passage)).collect();
    let embeddings = if passages.is_empty() { Vec::new() } else { vectors(model, class, &passages)? };
    let mut embeddings = embeddings.into_iter();
    for Changed { path, hash, chunks } in batch.drain(..) {
        store.replace(&path, Some(&hash), chunks.into_iter().zip(&mut embeddings))?;
        update.changed += 1;
    }
    update.embedded += passages.len();
    Ok(passages.len() as u64)
}

/// The vectors of passages. They must be of the class of the index.
fn vectors(model: &Model, class: &str, passages: &[String]) -> anyhow::Result<Vec<Vec<f32>>> {
    let embeddings = model.embed_documents(passages)?;
    if embeddings.classes.iter().any(|found| found != class) {
        let found = embeddings.classes.join("`, `");
        bail!("vectors of the class `{found}` do not belong in an index of `{class}`");
    }
    Ok(embeddings.into_vectors())
}

/// The text files below `paths`, by the name under which they are indexed.
fn files(paths: &[PathBuf]) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for path in paths {
        walk(path, &mut found).with_context(|| format!("can't read `{}`", path.display()))?;
    }
    if found.is_empty() {
        bail!("no text files; their extensions are `{}`", EXTENSIONS.join("`, `"));
    }
    Ok(found)
}

fn walk(path: &Path, found: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with('.') {
                walk(&entry.path(), found)?;
            }
        }
    } else if path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known)) {
        found.insert(path.display().to_string(), path.to_owned());
    } else {
        fs::metadata(path)?;
    }
    Ok(())
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
