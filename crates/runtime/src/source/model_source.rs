//! Parses and resolves a model source: a folder, a GGUF file, a bundle, or a repository of the hub.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use sconce_planner::plan::Constraints;

use super::bundle;
use super::error::SourceError;
use super::hub::{self, Graphs, Hub, HubError, Progress};
use crate::catalogue;
use crate::home::default_home;
use crate::nearest::nearest;

/// File extension of bundles.
const BUNDLE_EXTENSION: &str = ".sconce";
/// File extension of GGUF files.
const GGUF_EXTENSION: &str = ".gguf";

/// Source of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A local folder.
    Folder(PathBuf),
    /// A GGUF file; any file of a split model.
    Gguf(PathBuf),
    /// A bundle file.
    Bundle(PathBuf),
    /// A repository of the hub.
    Hub {
        /// `owner/name`.
        id: String,
        /// Branch, tag or commit.
        revision: String,
        /// Which ONNX graph to fetch.
        graphs: Graphs,
    },
    /// A GGUF file of a repository of the hub.
    HubGguf {
        /// `owner/name`.
        id: String,
        /// Branch, tag or commit.
        revision: String,
        /// A word of the file's name, such as `Q4_K_M`, or its path in the repository.
        quantization: String,
    },
}

impl ModelSource {
    /// Parses `text`: a GGUF file of a repository if it is `owner/name:QUANTIZATION`, a GGUF file if it ends with `.gguf`, a
    /// bundle if it is a file or ends with `.sconce`, a folder if it exists or looks like a path, a model of the
    /// [catalogue](crate::catalogue) if it is a short name, else an id of the hub.
    pub fn parse(text: &str, revision: Option<&str>) -> ModelSource {
        if let Some(source) = short_name(text, revision).filter(|_| !Path::new(text).exists()) {
            return source;
        }
        let revision = revision.unwrap_or("main").to_owned();
        if let Some((id, quantization)) = hub_gguf(text).filter(|_| !Path::new(text).exists()) {
            let (id, quantization) = (id.to_owned(), quantization.to_owned());
            return ModelSource::HubGguf { id, revision, quantization };
        }
        if text.ends_with(GGUF_EXTENSION) && !Path::new(text).is_dir() {
            return ModelSource::Gguf(PathBuf::from(text));
        }
        if Path::new(text).is_file() || text.ends_with(BUNDLE_EXTENSION) {
            return ModelSource::Bundle(PathBuf::from(text));
        }
        let looks_like_a_path = text.starts_with(['.', '/', '~']) || Path::new(text).is_absolute();
        if looks_like_a_path || Path::new(text).is_dir() {
            return ModelSource::Folder(PathBuf::from(text));
        }
        ModelSource::Hub { id: text.to_owned(), revision, graphs: Graphs::default() }
    }

    /// Selects the ONNX graph that satisfies `constraints`.
    #[must_use]
    pub fn for_constraints(self, constraints: &Constraints) -> ModelSource {
        match self {
            ModelSource::Folder(_)
            | ModelSource::Gguf(_)
            | ModelSource::Bundle(_)
            | ModelSource::HubGguf { .. } => self,
            ModelSource::Hub { id, revision, .. } => {
                ModelSource::Hub { id, revision, graphs: Graphs::for_constraints(constraints) }
            }
        }
    }

    /// Default name of the model: its id, the name of its folder or GGUF file, or the name in its bundle.
    pub fn name(&self) -> String {
        let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        match self {
            ModelSource::Folder(folder) => {
                let whole = folder.canonicalize();
                last(whole.as_deref().unwrap_or(folder)).unwrap_or_else(|| folder.display().to_string())
            }
            ModelSource::Gguf(path) => {
                let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                stem.unwrap_or_else(|| path.display().to_string())
            }
            ModelSource::Bundle(path) => bundle::name(path).unwrap_or_else(|_| path.display().to_string()),
            ModelSource::Hub { .. } | ModelSource::HubGguf { .. } => self.to_string(),
        }
    }

    /// Downloads the model into the hub's cache, or unpacks its bundle, and returns its folder or GGUF file.
    pub fn download(&self, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf, SourceError> {
        self.fetch(false, &default_home().join("bundles"), progress)
    }

    /// The local folder or GGUF file of the model. Fetches it from the hub, or unpacks it to `bundles`, if necessary.
    pub(crate) fn fetch(
        &self,
        offline: bool,
        bundles: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, SourceError> {
        match self {
            ModelSource::Folder(path) | ModelSource::Gguf(path) => Ok(path.clone()),
            ModelSource::Bundle(path) => Ok(bundle::unpack(path, bundles)?),
            ModelSource::Hub { id, revision, graphs } => {
                let mut hub = Hub { graphs: graphs.clone(), ..Hub::from_environment() };
                hub.offline |= offline;
                let fetched = hub.fetch(id, revision, &hub::is_wanted, progress);
                fetched.map_err(|error| not_found(id, &hub, error))
            }
            ModelSource::HubGguf { id, revision, quantization } => {
                let mut hub = Hub::from_environment();
                hub.offline |= offline;
                let fetched = hub.fetch_gguf(id, revision, quantization, progress);
                fetched.map_err(|error| not_found(id, &hub, error))
            }
        }
    }
}

/// The source of a short name, or of `NAME:QUANTIZATION` for a model with GGUF files.
fn short_name(text: &str, revision: Option<&str>) -> Option<ModelSource> {
    let (name, quantization) = match text.split_once(':') {
        Some((name, quantization)) => (name, Some(quantization)),
        None => (text, None),
    };
    let model = catalogue::by_name(name)?;
    if let Some(quantization) = quantization {
        let (id, revision) = (model.gguf.clone()?, revision.unwrap_or("main").to_owned());
        return Some(ModelSource::HubGguf { id, revision, quantization: quantization.to_owned() });
    }
    let revision = revision.or(model.revision.as_deref()).unwrap_or("main").to_owned();
    Some(ModelSource::Hub { id: model.id.clone(), revision, graphs: Graphs::default() })
}

/// The id and the quantization of `owner/name:QUANTIZATION`.
fn hub_gguf(text: &str) -> Option<(&str, &str)> {
    let (id, quantization) = text.split_once(':')?;
    let (owner, name) = id.split_once('/')?;
    let is_id =
        !owner.is_empty() && !owner.starts_with(['.', '~']) && !name.is_empty() && !name.contains('/');
    (is_id && !quantization.is_empty()).then_some((id, quantization))
}

/// The hub's error, with a suggestion of a similar folder, cached model or model of the catalogue.
pub(crate) fn not_found(id: &str, hub: &Hub, error: HubError) -> SourceError {
    // Hub ids have an owner. A path whose parent exists is meant as a path.
    let parent = Path::new(id).parent().filter(|parent| !parent.as_os_str().is_empty());
    let is_path = parent.is_none_or(Path::is_dir);
    let folder = if is_path { similar_path(Path::new(id)) } else { None };
    // A model of the catalogue has the right name.
    let is_listed = catalogue::models().iter().any(|model| model.id.eq_ignore_ascii_case(id));
    let similar = folder.or_else(|| if is_listed { None } else { similar_model(id, hub) });
    if !is_path && similar.is_none() {
        return SourceError::Hub(error);
    }
    SourceError::NotFound { name: id.to_owned(), is_path, similar, hub: Box::new(error) }
}

/// The cached model or the model of the catalogue with the most similar name. A name without an owner is compared with
/// short names.
fn similar_model(id: &str, hub: &Hub) -> Option<String> {
    let known = |name: &&str| !name.eq_ignore_ascii_case(id);
    let cached: Vec<String> = hub.cached().into_iter().map(|model| model.id).collect();
    let cached_ids = cached.iter().map(String::as_str);
    let has_owner = id.contains('/');
    let listed = catalogue::models()
        .iter()
        .map(|model| if has_owner { model.id.as_str() } else { model.name.as_str() });
    let repository = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
    let same_repository = || cached_ids.clone().find(|cached| repository(cached) == id);
    let similar = nearest(id, cached_ids.clone().chain(listed).filter(known)).or_else(same_repository);
    similar.map(str::to_owned)
}

/// The sibling folder or bundle with the most similar name.
pub(crate) fn similar_path(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let entries = fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?.flatten();
    let models = entries.filter(|entry| {
        entry.path().is_dir()
            || [BUNDLE_EXTENSION, GGUF_EXTENSION]
                .iter()
                .any(|end| entry.path().to_string_lossy().ends_with(end))
    });
    let names: Vec<String> = models.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let name = nearest(path.file_name()?.to_str()?, names.iter().map(String::as_str))?;
    Some(folder.map_or(PathBuf::from(name), |folder| folder.join(name)).display().to_string())
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Folder(path) | ModelSource::Gguf(path) | ModelSource::Bundle(path) => {
                write!(f, "{}", path.display())
            }
            ModelSource::Hub { id, .. } => f.write_str(id),
            ModelSource::HubGguf { id, quantization, .. } => write!(f, "{id}:{quantization}"),
        }
    }
}
