//! Where a model comes from: a folder, a bundle, or the hub through its cache.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use sconce_planner::plan::Constraints;

use crate::bundle;
use crate::error::Error;
use crate::event::Event;
use crate::hub::{self, Graphs, Hub, HubError};
use crate::nearest::nearest;

/// How the names of bundles end.
const BUNDLE: &str = ".sconce";

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A folder on this machine.
    Folder(PathBuf),
    /// A file with a model in it.
    Bundle(PathBuf),
    /// A model of the hub.
    Hub {
        /// `owner/name`.
        id: String,
        /// A branch, a tag or a commit.
        revision: String,
        /// Which of its graphs is fetched.
        graphs: Graphs,
    },
}

impl ModelSource {
    /// What `text` names: a bundle where there is a file or it is called so, a folder where there is one or it looks
    /// like a path, else a model of the hub.
    pub fn parse(text: &str, revision: Option<&str>) -> ModelSource {
        if Path::new(text).is_file() || text.ends_with(BUNDLE) {
            return ModelSource::Bundle(PathBuf::from(text));
        }
        let looks_like_a_path = text.starts_with(['.', '/', '~']) || Path::new(text).is_absolute();
        if looks_like_a_path || Path::new(text).is_dir() {
            return ModelSource::Folder(PathBuf::from(text));
        }
        let revision = revision.unwrap_or("main").to_owned();
        ModelSource::Hub { id: text.to_owned(), revision, graphs: Graphs::default() }
    }

    /// The same, with the graph that `constraints` asks for.
    #[must_use]
    pub fn wished(self, constraints: &Constraints) -> ModelSource {
        match self {
            ModelSource::Folder(_) | ModelSource::Bundle(_) => self,
            ModelSource::Hub { id, revision, .. } => {
                ModelSource::Hub { id, revision, graphs: Graphs::wished(constraints) }
            }
        }
    }

    /// What the model is called where nobody says otherwise: its id, its folder's name, the name in its bundle.
    pub fn name(&self) -> String {
        let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        match self {
            ModelSource::Folder(folder) => {
                let whole = folder.canonicalize();
                last(whole.as_deref().unwrap_or(folder)).unwrap_or_else(|| folder.display().to_string())
            }
            ModelSource::Bundle(path) => bundle::name(path).unwrap_or_else(|_| path.display().to_string()),
            ModelSource::Hub { id, .. } => id.clone(),
        }
    }

    /// The folder with the model's files, fetched or unpacked under `bundles` first where it must be.
    pub(crate) fn fetch(
        &self,
        offline: bool,
        bundles: &Path,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<PathBuf, Error> {
        match self {
            ModelSource::Folder(folder) => Ok(folder.clone()),
            ModelSource::Bundle(path) => Ok(bundle::unpack(path, bundles)?),
            ModelSource::Hub { id, revision, graphs } => {
                let mut hub = Hub { graphs: graphs.clone(), ..Hub::from_environment() };
                hub.offline |= offline;
                let fetched =
                    hub.fetch(id, revision, &hub::is_wanted, &mut |progress| events(Event::Hub(progress)));
                fetched.map_err(|error| not_found(id, &hub, error))
            }
        }
    }
}

/// The hub's error, with what was looked for here and what may have been meant.
pub(crate) fn not_found(id: &str, hub: &Hub, error: HubError) -> Error {
    // An id of the hub has an owner; a path into a folder that exists was meant as a path.
    let parent = Path::new(id).parent().filter(|parent| !parent.as_os_str().is_empty());
    let is_path = parent.is_none_or(Path::is_dir);
    let cached: Vec<String> =
        hub.cached().into_iter().map(|model| model.id).filter(|known| known != id).collect();
    let short = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
    let known = cached.iter().map(String::as_str);
    let cached = nearest(id, known.clone()).or_else(|| known.clone().find(|known| short(known) == id));
    let folder = if is_path { similar_path(Path::new(id)) } else { None };
    let similar = folder.or_else(|| cached.map(str::to_owned));
    if !is_path && similar.is_none() {
        return Error::Hub(error);
    }
    Error::NotFound { name: id.to_owned(), is_path, similar, hub: Box::new(error) }
}

/// The folder or bundle beside `path` whose name is most like it.
pub(crate) fn similar_path(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let entries = fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?.flatten();
    let models =
        entries.filter(|entry| entry.path().is_dir() || entry.path().to_string_lossy().ends_with(BUNDLE));
    let names: Vec<String> = models.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let name = nearest(path.file_name()?.to_str()?, names.iter().map(String::as_str))?;
    Some(folder.map_or(PathBuf::from(name), |folder| folder.join(name)).display().to_string())
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Folder(path) | ModelSource::Bundle(path) => write!(f, "{}", path.display()),
            ModelSource::Hub { id, .. } => f.write_str(id),
        }
    }
}
