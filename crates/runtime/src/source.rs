//! Where a model comes from: a folder, a bundle, or the hub through its cache.

use std::fmt;
use std::path::{Path, PathBuf};

use sconce_planner::plan::Wish;

use crate::bundle;
use crate::error::Error;
use crate::event::Event;
use crate::hub::{self, Graphs, Hub};

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

    /// The same, with the graph that `wish` asks for.
    #[must_use]
    pub fn wished(self, wish: &Wish) -> ModelSource {
        match self {
            ModelSource::Folder(_) | ModelSource::Bundle(_) => self,
            ModelSource::Hub { id, revision, .. } => {
                ModelSource::Hub { id, revision, graphs: Graphs::wished(wish) }
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
                Ok(hub.fetch(id, revision, &hub::is_wanted, &mut |progress| events(Event::Hub(progress)))?)
            }
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Folder(path) | ModelSource::Bundle(path) => write!(f, "{}", path.display()),
            ModelSource::Hub { id, .. } => f.write_str(id),
        }
    }
}
