//! JSON files of a model's folder.

use std::io::ErrorKind;
use std::path::{Component, Path};

use sconce_engines::regular_file;
use serde_json::Value;

use super::CardError;
use crate::source::similar_path;

/// The most bytes of a file: parsed it takes many times as many.
const LONGEST: u64 = 16 << 20;

/// The JSON files of one folder.
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

    /// The file's value, or none where there is no such file.
    pub(super) fn optional(&self, file: &str) -> Result<Option<Value>, CardError> {
        let bytes = match regular_file::read(&self.folder.join(file), LONGEST) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CardError::Io { file: file.to_owned(), source }),
        };
        let value = serde_json::from_slice(&bytes)
            .map_err(|source| CardError::Json { file: file.to_owned(), source })?;
        Ok(Some(value))
    }

    /// The file's value, or the error that names what is missing.
    pub(super) fn required(&self, file: &str) -> Result<Value, CardError> {
        if !self.folder.is_dir() {
            let similar = similar_path(self.folder);
            return Err(CardError::NoFolder { folder: self.folder.to_owned(), similar });
        }
        let missing = || CardError::Missing { file: file.to_owned(), folder: self.folder.to_owned() };
        self.optional(file)?.ok_or_else(missing)
    }
}

/// A key that is there and not null.
pub(super) fn entry<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|value| !value.is_null())
}

/// `path` as written in `file`, if it stays inside the folder.
pub(super) fn inside<'a>(file: &str, path: &'a str) -> Result<&'a str, CardError> {
    let stays =
        Path::new(path).components().all(|part| matches!(part, Component::Normal(_))) && !path.contains('\\');
    if stays {
        Ok(path)
    } else {
        Err(CardError::PathEscapes { file: file.to_owned(), path: path.to_owned() })
    }
}
