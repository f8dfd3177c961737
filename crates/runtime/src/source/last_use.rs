//! When models of the hub were used last.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::hub::CachedModel;
use super::model_source::ModelSource;
use crate::home::{default_home, write_atomically};

/// When a cached model was used last: by sconce, or as its largest file was read, if the file system records that.
pub fn last_use(model: &CachedModel) -> Option<SystemTime> {
    let by_sconce =
        fs::metadata(record_path(&default_home(), &model.id)).and_then(|record| record.modified()).ok();
    let files = super::hub::files(&model.folder).into_iter().filter_map(|(_, path)| fs::metadata(path).ok());
    let read = files.max_by_key(fs::Metadata::len).and_then(|largest| largest.accessed().ok());
    by_sconce.max(read)
}

/// Records the use of a model of the hub. A failure is ignored.
pub(crate) fn record_use(home: &Path, source: &ModelSource) {
    if let ModelSource::Hub { id, .. } | ModelSource::HubGguf { id, .. } = source {
        let _ = write_atomically(&record_path(home, id), id.as_bytes());
    }
}

fn record_path(home: &Path, id: &str) -> PathBuf {
    home.join("uses").join(id.replace('/', "--"))
}
