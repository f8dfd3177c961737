//! Selects one quantization of a repository with GGUF files: `owner/name:Q4_K_M`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sconce_engines::gguf::split;

use super::cache::{self, Repository};
use super::config::{Hub, Progress};
use super::error::HubError;
use super::listing::Listing;

impl Hub {
    /// The GGUF file of `id` at `revision` whose name has `quantization`, or is it; the first file of a split model. Fetches
    /// the files that the cache lacks.
    pub fn fetch_gguf(
        &self,
        id: &str,
        revision: &str,
        quantization: &str,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, HubError> {
        let repository = Repository::new(&self.cache, id, revision)?;
        if self.offline {
            return cached(&repository, quantization);
        }
        let chosen = |listing: &Listing| {
            let names = select(id, &listing.names(), quantization)?;
            Ok(listing.select_named(&names))
        };
        match self.fetch_from_hub(&repository, &chosen, progress) {
            Ok(snapshot) => in_snapshot(&repository, &snapshot, quantization),
            Err(error) if error.is_transient() => {
                let file = cached(&repository, quantization).map_err(|_| ());
                let Ok(file) = file else { return Err(error) };
                progress(Progress::FromCache { why: &error });
                Ok(file)
            }
            Err(error) => Err(error),
        }
    }
}

/// The file in the cache, if all files of its model are there.
pub(super) fn cached(repository: &Repository, quantization: &str) -> Result<PathBuf, HubError> {
    let snapshot = repository.cached_commit().map(|commit| repository.snapshot(&commit));
    let file = snapshot.map(|snapshot| in_snapshot(repository, &snapshot, quantization));
    let is_whole = |file: &PathBuf| split::files(file).iter().all(|part| part.is_file());
    match file {
        Some(Ok(file)) if is_whole(&file) => Ok(file),
        Some(Ok(_) | Err(HubError::NoQuantization { .. })) | None => {
            Err(repository.not_cached(&format!(":{quantization}"), Vec::new()))
        }
        Some(Err(error)) => Err(error),
    }
}

fn in_snapshot(repository: &Repository, snapshot: &Path, quantization: &str) -> Result<PathBuf, HubError> {
    let files = cache::files(snapshot);
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let names = select(&repository.id, &names, quantization)?;
    Ok(snapshot.join(names.first().map_or("", String::as_str)))
}

/// The names of all files of the model with this quantization, in order.
pub(super) fn select(id: &str, names: &[&str], quantization: &str) -> Result<Vec<String>, HubError> {
    // Files of vision encoders, `mmproj-…`, are no models.
    let is_model = |name: &&&str| {
        let path = Path::new(**name);
        let is_projector = path.file_name().is_some_and(|last| last.to_string_lossy().starts_with("mmproj"));
        path.extension().is_some_and(|extension| extension == "gguf") && !is_projector
    };
    let models = |chosen: &dyn Fn(&str) -> bool| -> BTreeSet<String> {
        let chosen = names.iter().filter(is_model).filter(|name| chosen(name));
        chosen.map(|name| first_name(name)).collect()
    };
    let exact = models(&|name| name == quantization);
    let found = if exact.is_empty() { models(&|name| has(name, quantization)) } else { exact };
    let (id, quantization) = (id.to_owned(), quantization.to_owned());
    match found.iter().collect::<Vec<_>>()[..] {
        [first] => {
            let files = split::files(Path::new(first));
            Ok(files.iter().map(|file| file.to_string_lossy().into_owned()).collect())
        }
        [] => {
            Err(HubError::NoQuantization { id, quantization, files: models(&|_| true).into_iter().collect() })
        }
        _ => Err(HubError::AmbiguousQuantization { id, quantization, files: found.into_iter().collect() }),
    }
}

/// The path of the first file of the model that `name` is a file of.
fn first_name(name: &str) -> String {
    match name.rsplit_once('/') {
        Some((folder, last)) => format!("{folder}/{}", split::first_name(last)),
        None => split::first_name(name),
    }
}

/// Whether `quantization` is a word of `name`: `Q4_K` is none of `model-Q4_K_M.gguf` or `model-IQ4_K.gguf`.
pub(super) fn has(name: &str, quantization: &str) -> bool {
    let (name, wanted) = (name.to_ascii_lowercase(), quantization.to_ascii_lowercase());
    let mut found = name.match_indices(&wanted).filter(|_| !wanted.is_empty());
    found.any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + wanted.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantization_is_a_word_of_the_name() {
        let names = [
            "config.json",
            "model-Q4_K_M.gguf",
            "model-Q4_K_S.gguf",
            "model-IQ4_XS.gguf",
            "model.q8_0.gguf",
            "mmproj-model-f16.gguf",
            "BF16/model-BF16-00001-of-00002.gguf",
            "BF16/model-BF16-00002-of-00002.gguf",
            "F16/model-00001-of-00001.gguf",
            "a-Q6_K.gguf",
            "b-Q6_K.gguf",
        ];
        let selected = |quantization: &str| select("o/m", &names, quantization);
        for (quantization, files) in [
            ("Q4_K_M", &["model-Q4_K_M.gguf"][..]),
            ("q4_k_m", &["model-Q4_K_M.gguf"]),
            ("Q8_0", &["model.q8_0.gguf"]),
            ("BF16", &["BF16/model-BF16-00001-of-00002.gguf", "BF16/model-BF16-00002-of-00002.gguf"]),
            ("F16", &["F16/model-00001-of-00001.gguf"]),
            ("b-Q6_K.gguf", &["b-Q6_K.gguf"]),
        ] {
            assert_eq!(selected(quantization).expect(quantization), files);
        }
        for quantization in ["Q4_K", "Q4_XS", "4_K_M", "", "config.json"] {
            let error = selected(quantization).expect_err(quantization);
            assert!(matches!(&error, HubError::NoQuantization { files, .. } if files.len() == 8), "{error}");
        }
        let error = selected("Q6_K").expect_err("two models").to_string();
        assert!(error.contains("a-Q6_K.gguf") && error.contains("`o/m:a-Q6_K.gguf`"), "{error}");
    }
}
