//! JSON files of a model folder.

use std::io::ErrorKind;
use std::path::{Component, Path};

use sconce_engines::regular_file;
use serde_json::Value;

use super::error::CardError;
use crate::source::similar_path;

/// Size limit of a file in bytes: the parsed value takes many times as much memory.
const MAX_BYTES: u64 = 16 << 20;

/// JSON files of one folder.
pub(super) struct Json<'a> {
    folder: &'a Path,
}

impl<'a> Json<'a> {
    pub(super) fn in_folder(folder: &'a Path) -> Json<'a> {
        Json { folder }
    }

    pub(super) fn folder(&self) -> &'a Path {
        self.folder
    }

    /// Reads a file. `None` if it does not exist.
    pub(super) fn optional(&self, file: &str) -> Result<Option<Value>, CardError> {
        let bytes = match regular_file::read(&self.folder.join(file), MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CardError::Io { file: file.to_owned(), source }),
        };
        let value = serde_json::from_slice(&bytes)
            .map_err(|source| CardError::Json { file: file.to_owned(), source })?;
        Ok(Some(value))
    }

    /// Reads a text file. `None` if it does not exist.
    pub(super) fn text(&self, file: &str) -> Result<Option<String>, CardError> {
        let unreadable = |source| CardError::Io { file: file.to_owned(), source };
        match regular_file::read(&self.folder.join(file), MAX_BYTES) {
            Ok(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(error) => Err(unreadable(std::io::Error::new(ErrorKind::InvalidData, error))),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(unreadable(source)),
        }
    }

    /// Reads a file that must exist.
    pub(super) fn required(&self, file: &str) -> Result<Value, CardError> {
        if !self.folder.is_dir() {
            let similar = similar_path(self.folder);
            return Err(CardError::NoFolder { folder: self.folder.to_owned(), similar });
        }
        let missing = || CardError::Missing { file: file.to_owned(), folder: self.folder.to_owned() };
        self.optional(file)?.ok_or_else(missing)
    }
}

/// The value of a key, unless it is null.
pub(super) fn non_null<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|value| !value.is_null())
}

/// Rejects a `path` from `file` that escapes the model folder.
pub(super) fn relative_path<'a>(file: &str, path: &'a str) -> Result<&'a str, CardError> {
    let is_relative =
        Path::new(path).components().all(|part| matches!(part, Component::Normal(_))) && !path.contains('\\');
    if is_relative {
        Ok(path)
    } else {
        Err(CardError::PathEscapes { file: file.to_owned(), path: path.to_owned() })
    }
}
