//! Validates ids, revisions and file names, and selects the files of a model.

use super::error::HubError;

/// Whether to fetch this file of a repository: config, tokenizer, safetensors. Code, pickles and weights of other
/// engines are excluded; `Graphs` selects the ONNX graph.
pub fn is_wanted(file: &str) -> bool {
    match file.split_once('/') {
        None => is_wanted_at_root(file),
        Some((folder, file)) => match module_kind(folder) {
            Some("Pooling" | "SpladePooling" | "MultiVectorMask" | "LogitScore") => file == "config.json",
            Some("Dense") => matches!(file, "config.json" | "model.safetensors"),
            Some(_) | None => false,
        },
    }
}

fn is_wanted_at_root(file: &str) -> bool {
    let is_of = |extension: &str| file.strip_suffix(extension).is_some_and(|stem| !stem.is_empty());
    is_of(".json")
        || is_of(".safetensors")
        || matches!(file, "vocab.txt" | "merges.txt" | "artifact.metadata" | "chat_template.jinja")
}

/// `Pooling` of `1_Pooling`.
fn module_kind(folder: &str) -> Option<&str> {
    let (number, kind) = folder.split_once('_')?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(kind)
}

/// Rejects ids other than `name` and `owner/name`.
pub(super) fn check_id(id: &str) -> Result<(), HubError> {
    let parts: Vec<&str> = id.split('/').collect();
    // The cache encodes `/` as `--`: an id with `--` would be ambiguous.
    let is_valid = parts.len() <= 2 && parts.iter().all(|part| is_plain(part)) && !id.contains("--");
    if is_valid { Ok(()) } else { Err(HubError::BadId { id: id.to_owned() }) }
}

/// Rejects revisions that can't be a path in the cache.
pub(super) fn check_revision(revision: &str) -> Result<(), HubError> {
    if revision.split('/').all(is_plain) {
        Ok(())
    } else {
        Err(HubError::BadRevision { revision: revision.to_owned() })
    }
}

/// Whether a string from the hub is safe as a path component: letters, digits, `.`, `_`, `-`, and no `..`.
pub(super) fn is_plain(part: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !part.is_empty()
        && part.len() <= 128
        && part.bytes().all(known)
        && !part.starts_with(['.', '-'])
        && !part.contains("..")
}

/// Whether a string from the hub is safe as a blob name. Names with `.` are partial files and locks.
pub(super) fn is_blob(name: &str) -> bool {
    is_plain(name) && !name.contains('.')
}

/// Whether a relative path would escape its folder on any system.
pub(crate) fn is_unsafe_path(file: &str) -> bool {
    let is_bad = |part: &str| matches!(part, "" | "." | "..");
    file.split('/').any(is_bad) || file.contains(|c: char| c == '\\' || c == ':' || c.is_control())
}

/// Whether the revision is a commit hash.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Percent-encodes a path; `/` is kept.
pub(super) fn encode(file: &str) -> String {
    use std::fmt::Write;

    let mut text = String::with_capacity(file.len());
    for byte in file.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-' | b'~') {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_tokenizer_and_safetensors_are_wanted() {
        for file in [
            "config.json",
            "modules.json",
            "sentence_bert_config.json",
            "config_sentence_transformers.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "vocab.txt",
            "merges.txt",
            "chat_template.jinja",
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
        ] {
            assert!(is_wanted(file), "{file}");
        }
    }

    #[test]
    fn code_pickles_and_the_weights_of_other_engines_are_not() {
        for file in [
            "pytorch_model.bin",
            "model.pt",
            "model.onnx",
            "onnx/model.onnx",
            "onnx/config.json",
            "tf_model.h5",
            "flax_model.msgpack",
            "modeling_custom.py",
            "README.md",
            ".gitattributes",
            ".json",
            "1_Pooling/pytorch_model.bin",
            "2_Dense/pytorch_model.bin",
            "2_Dense/deep/model.safetensors",
            "x_Dense/config.json",
            "_Dense/config.json",
            "config.json/",
            "../config.json",
            "/config.json",
            "",
        ] {
            assert!(!is_wanted(file), "{file}");
        }
    }

    #[test]
    fn ids_are_a_name_or_an_owner_and_a_name() {
        for id in ["bert-base-uncased", "intfloat/e5-small-v2", "BAAI/bge-m3", "a/b_c.d-1"] {
            assert!(check_id(id).is_ok(), "{id}");
        }
        for id in [
            "", "/", "a/", "/a", "a/b/c", "..", "a/..", "../a", "a..b", ".a/b", "a b", "a\\b", "a--b",
            "a/b?c", "ä", "a\n",
        ] {
            assert!(check_id(id).is_err(), "{id}");
        }
    }

    #[test]
    fn revisions_are_branches_tags_and_commits() {
        for revision in ["main", "v1.0", "refs/pr/3", "0123456789abcdef0123456789abcdef01234567"] {
            assert!(check_revision(revision).is_ok(), "{revision}");
        }
        for revision in ["", "/", "../x", "a/../b", "/etc", "a//b", "a\\b", "-x", "a b", "a%2e"] {
            assert!(check_revision(revision).is_err(), "{revision}");
        }
    }

    #[test]
    fn a_file_name_that_leads_out_of_its_folder_is_unsafe_path() {
        for file in
            ["../x", "a/../x", "/etc/passwd", "a\\b", "..\\x", "", "a//b", "./a", "C:x", "a\0b", "a\n", ".."]
        {
            assert!(is_unsafe_path(file), "{file}");
        }
        for file in ["config.json", "1_Pooling/config.json", ".gitattributes", "a b.json", "x..y"] {
            assert!(!is_unsafe_path(file), "{file}");
        }
    }

    #[test]
    fn a_name_is_encoded_for_its_address() {
        assert_eq!(encode("1_Pooling/a b#?%.json"), "1_Pooling/a%20b%23%3F%25.json");
    }
}
