//! Reads the card of a model without fetching its weights.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sconce_core::card::{Format, ModelCard};
use sconce_core::engine::ModelSpec;
use sconce_engines::unread_tensors::unread_tensors;
use sconce_engines::weights::Header;
use serde::Serialize;

use crate::card::{self, CardError, Overrides};
use crate::error::Error;
use crate::home::{default_home, fresh_folder};
use crate::source::hub::{self, Hub};
use crate::source::{ModelSource, SourceError, bundle, not_found};

/// A model card, and the tensors that no engine reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// The card.
    #[serde(flatten)]
    pub card: ModelCard,
    /// Unused tensors by set of weights: neither the family's description nor the head reads them.
    pub unread: BTreeMap<String, Vec<String>>,
}

/// Reads the card from the config files and weight headers of a folder, the cache or the hub. Weights are not fetched.
pub fn inspect(source: &ModelSource, overrides: &Overrides, offline: bool) -> Result<Inspection, Error> {
    let bundles = default_home().join("bundles");
    let read = |folder: &Path| Ok(inspection(card::read(&source.to_string(), folder, overrides)?)?);
    with_config_files(source, offline, &bundles, read)
}

/// Reads the card, without fetching weights.
pub(crate) fn card(
    source: &ModelSource,
    overrides: &Overrides,
    offline: bool,
    bundles: &Path,
) -> Result<ModelCard, Error> {
    Ok(spec(source, overrides, offline, bundles)?.card)
}

/// Reads the card and lists the files, without fetching weights. The files of a model on the hub are gone afterwards.
pub(crate) fn spec(
    source: &ModelSource,
    overrides: &Overrides,
    offline: bool,
    bundles: &Path,
) -> Result<ModelSpec, Error> {
    let read = |folder: &Path| Ok(card::read(&source.to_string(), folder, overrides)?);
    with_config_files(source, offline, bundles, read)
}

/// A model whose weights are not fetched.
pub(crate) struct Peeked<T> {
    pub(crate) value: T,
    /// Size of the model's files in bytes, if the hub reports it.
    pub(crate) bytes: Option<u64>,
}

/// Calls `read` with a folder of the config files, weight headers and tokenizer of a model of the hub. `None` if the model is
/// not on the hub, or is cached already.
pub(crate) fn peek_with_tokenizer<T>(
    source: &ModelSource,
    offline: bool,
    read: impl Fn(&Path) -> Result<T, Error>,
) -> Result<Option<Peeked<T>>, Error> {
    let mut hub = Hub::from_environment();
    hub.offline |= offline;
    match source {
        _ if hub.offline => Ok(None),
        ModelSource::Folder(_) | ModelSource::Gguf(_) | ModelSource::Bundle(_) => Ok(None),
        ModelSource::Hub { id, revision, graphs } => {
            hub.graphs = graphs.clone();
            if hub.cached_snapshot(id, revision, &hub::is_wanted).is_some() {
                return Ok(None);
            }
            let folder = TempFolder::new();
            let peeked = hub.peek_with_tokenizer(id, revision, &hub::is_wanted, &folder.0);
            let bytes = peeked.map_err(|error| not_found(id, &hub, error))?;
            Ok(Some(Peeked { value: read(&folder.0)?, bytes }))
        }
        ModelSource::HubGguf { id, revision, quantization } => {
            if hub.cached_gguf(id, revision, quantization).is_some() {
                return Ok(None);
            }
            let folder = TempFolder::new();
            let peeked = hub.peek_gguf(id, revision, quantization, &folder.0);
            let (file, bytes) = peeked.map_err(|error| not_found(id, &hub, error))?;
            Ok(Some(Peeked { value: read(&file)?, bytes }))
        }
    }
}

/// Calls `read` with a folder of the model's config files and weight headers.
fn with_config_files<T>(
    source: &ModelSource,
    offline: bool,
    bundles: &Path,
    read: impl Fn(&Path) -> Result<T, Error>,
) -> Result<T, Error> {
    match source {
        ModelSource::Folder(path) | ModelSource::Gguf(path) => read(path),
        ModelSource::HubGguf { .. } => match peek_with_tokenizer(source, offline, &read)? {
            Some(peeked) => Ok(peeked.value),
            None => read(&source.fetch(offline, bundles, &mut |_| {})?),
        },
        ModelSource::Bundle(path) => read(&bundle::unpack(path, bundles).map_err(SourceError::from)?),
        ModelSource::Hub { id, revision, graphs } => {
            let mut hub = Hub { graphs: graphs.clone(), ..Hub::from_environment() };
            hub.offline |= offline;
            if let Some(folder) = hub.cached_snapshot(id, revision, &hub::is_wanted) {
                return read(&folder);
            }
            let folder = TempFolder::new();
            let peeked = hub.peek(id, revision, &hub::is_wanted, &folder.0);
            peeked.map_err(|error| not_found(id, &hub, error))?;
            read(&folder.0)
        }
    }
}

fn inspection(ModelSpec { card, files }: ModelSpec) -> Result<Inspection, CardError> {
    let mut all = BTreeMap::new();
    for weights in card.weights.iter().filter(|weights| weights.format == Format::Safetensors) {
        let mut names = Vec::new();
        for path in files.weights.get(&weights.name).into_iter().flatten() {
            names.extend(Header::read(path)?.metadata.tensors().into_keys());
        }
        let unread = unread_tensors(&card, &names);
        if !unread.is_empty() {
            all.insert(weights.name.clone(), unread);
        }
    }
    Ok(Inspection { card, unread: all })
}

/// A folder that is deleted on drop.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new() -> TempFolder {
        TempFolder(fresh_folder(&std::env::temp_dir()))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
