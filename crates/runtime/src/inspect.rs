//! What a model says of itself, before its weights are fetched.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sconce_core::card::{Format, ModelCard};
use sconce_core::engine::ModelSpec;
use sconce_engines::unread_tensors::unread_tensors;
use sconce_engines::weights::Header;
use serde::Serialize;

use crate::bundle;
use crate::card::{self, CardError, Overrides};
use crate::error::Error;
use crate::home::{default_home, fresh_folder};
use crate::hub::{self, Hub};
use crate::source::{ModelSource, not_found};

/// What a model says of itself, and what of its weights nothing here reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// What it says.
    #[serde(flatten)]
    pub card: ModelCard,
    /// By set of weights, the tensors that have no place in the description of the family nor in the head.
    pub unread: BTreeMap<String, Vec<String>>,
}

/// What the model says of itself, from its settings and the headers of its weights: a folder's, the cache's, or the
/// hub's, of which only those are fetched.
pub fn inspect(source: &ModelSource, overrides: &Overrides, offline: bool) -> Result<Inspection, Error> {
    let bundles = default_home().join("bundles");
    let read = |folder: &Path| Ok(inspection(card::read(&source.to_string(), folder, overrides)?)?);
    with_settings(source, offline, &bundles, read)
}

/// What the model says of itself, without its weights being fetched.
pub(crate) fn card(
    source: &ModelSource,
    overrides: &Overrides,
    offline: bool,
    bundles: &Path,
) -> Result<ModelCard, Error> {
    let read = |folder: &Path| Ok(card::read(&source.to_string(), folder, overrides)?.card);
    with_settings(source, offline, bundles, read)
}

/// What `read` makes of a folder with the model's settings and the headers of its weights.
fn with_settings<T>(
    source: &ModelSource,
    offline: bool,
    bundles: &Path,
    read: impl Fn(&Path) -> Result<T, Error>,
) -> Result<T, Error> {
    match source {
        ModelSource::Folder(folder) => read(folder),
        ModelSource::Bundle(path) => read(&bundle::unpack(path, bundles)?),
        ModelSource::Hub { id, revision, graphs } => {
            let mut hub = Hub { graphs: graphs.clone(), ..Hub::from_environment() };
            hub.offline |= offline;
            if let Some(folder) = hub.cached_whole(id, revision, &hub::is_wanted) {
                return read(&folder);
            }
            let folder = Passing::new();
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

/// A folder that goes away.
struct Passing(PathBuf);

impl Passing {
    fn new() -> Passing {
        Passing(fresh_folder(&std::env::temp_dir()))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
