//! Where a model comes from: a folder, or the hub through its cache.

use std::fmt;
use std::path::{Path, PathBuf};

use sconce_planner::plan::Wish;

use crate::event::Event;
use crate::hub::{self, Graphs, Hub, HubError};

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A folder on this machine.
    Folder(PathBuf),
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
    /// What `text` names: a folder where there is one or it looks like a path, else a model of the hub.
    pub fn parse(text: &str, revision: Option<&str>) -> ModelSource {
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
            ModelSource::Folder(folder) => ModelSource::Folder(folder),
            ModelSource::Hub { id, revision, .. } => {
                ModelSource::Hub { id, revision, graphs: Graphs::wished(wish) }
            }
        }
    }

    /// The folder with the model's files, fetched first where it must be.
    pub(crate) fn fetch(
        &self,
        offline: bool,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<PathBuf, HubError> {
        match self {
            ModelSource::Folder(folder) => Ok(folder.clone()),
            ModelSource::Hub { id, revision, graphs } => {
                let mut hub = Hub { graphs: graphs.clone(), ..Hub::from_environment() };
                hub.offline |= offline;
                hub.fetch(id, revision, &hub::is_wanted, &mut |progress| events(Event::Hub(progress)))
            }
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Folder(folder) => write!(f, "{}", folder.display()),
            ModelSource::Hub { id, .. } => f.write_str(id),
        }
    }
}
