//! Split models: several GGUF files that are one set of tensors.

use std::path::{Path, PathBuf};

use super::header::Header;
use crate::weights::WeightsError;

/// Maximum number of files of a model.
const MAX_FILES: usize = 1 << 12;

/// The files of the model that `path` is a file of, by its name: `model-00001-of-00003.gguf` is one of three. Any other
/// file is a model of its own.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str());
    match name.and_then(position) {
        Some((stem, _, count)) => {
            (1..=count).map(|number| path.with_file_name(file_name(stem, number, count))).collect()
        }
        None => vec![path.to_owned()],
    }
}

/// The name of a model's first file; `name` itself unless it is another file of a split model.
pub fn first_name(name: &str) -> String {
    position(name).map_or_else(|| name.to_owned(), |(stem, _, count)| file_name(stem, 1, count))
}

fn file_name(stem: &str, number: usize, count: usize) -> String {
    format!("{stem}-{number:05}-of-{count:05}.gguf")
}

/// Stem, number and count in the name of a split model's file.
fn position(name: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let parse = |digits: &str| (digits.len() == 5).then(|| digits.parse::<usize>().ok())?;
    let (number, count) = (parse(number)?, parse(count)?);
    (number >= 1 && number <= count && count <= MAX_FILES).then_some((stem, number, count))
}

/// Checks that the header of each of `paths` has its place in the set.
pub(super) fn check(paths: &[PathBuf], headers: &[Header]) -> Result<(), WeightsError> {
    for (number, (path, header)) in paths.iter().zip(headers).enumerate() {
        let broken = |why: String| Err(WeightsError::Gguf { path: path.clone(), why });
        let integer = |key: &str| header.metadata.integer(key);
        let count = integer("split.count").unwrap_or(1);
        if count > 1 && count != paths.len() as u64 {
            return broken(format!("`split.count` is {count}, and there are {} files", paths.len()));
        }
        if paths.len() > 1 && integer("split.no") != Some(number as u64) {
            let said = integer("split.no").map_or("missing".to_owned(), |number| number.to_string());
            return broken(format!("`split.no` is {said}, and by its name it should be {number}"));
        }
        let tensors: usize = headers.iter().map(|header| header.tensors.len()).sum();
        if let Some(all) = integer("split.tensors.count").filter(|&all| all != tensors as u64) {
            return broken(format!("`split.tensors.count` is {all}, and the files have {tensors}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_split_model_are_one_set() {
        let set = files(Path::new("a/model-Q8_0-00002-of-00003.gguf"));
        let names =
            ["00001", "00002", "00003"].map(|n| PathBuf::from(format!("a/model-Q8_0-{n}-of-00003.gguf")));
        assert_eq!(set, names);
        assert_eq!(first_name("m-00002-of-00003.gguf"), "m-00001-of-00003.gguf");
    }

    #[test]
    fn other_names_are_files_of_their_own() {
        for name in [
            "model.gguf",
            "model-00004-of-00003.gguf",
            "model-00000-of-00003.gguf",
            "model-1-of-3.gguf",
            "model-00001-of-99999.gguf",
            "model-00001-of-00002.safetensors",
        ] {
            assert_eq!(files(Path::new(name)), [PathBuf::from(name)]);
            assert_eq!(first_name(name), name);
        }
    }
}
