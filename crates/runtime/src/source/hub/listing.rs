//! The file list of a repository at one commit.

use serde::Deserialize;

use super::error::HubError;
use super::graphs::{Graphs, is_part};
use super::names::{is_blob, is_plain, is_unsafe_path};

/// Files of a repository at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    /// Commit hash.
    pub(super) commit: String,
    /// All files.
    files: Vec<File>,
}

/// An entry of the file list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct File {
    /// Path in the repository.
    pub(super) name: String,
    /// Size in bytes; mirrors may omit it.
    pub(super) size: Option<u64>,
    /// Blob name in the cache, the `ETag`; mirrors may omit it.
    pub(super) blob: Option<String>,
    /// SHA-256, which the hub reports for LFS files.
    pub(super) sha256: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    /// Parses the hub's response. Rejects names that would escape the cache.
    pub(super) fn parse(id: &str, json: &[u8]) -> Result<Listing, HubError> {
        let answer: Answer = serde_json::from_slice(json)
            .map_err(|source| HubError::Unreadable { id: id.to_owned(), source })?;
        if !is_plain(&answer.sha) {
            return Err(HubError::Hostile { what: "commit", value: answer.sha });
        }
        let files = answer.siblings.into_iter().map(File::check).collect::<Result<_, _>>()?;
        Ok(Listing { commit: answer.sha, files })
    }

    /// The names of all files.
    pub(super) fn names(&self) -> Vec<&str> {
        self.files.iter().map(|file| file.name.as_str()).collect()
    }

    /// The files with these names.
    pub(super) fn select_named(&self, names: &[String]) -> Vec<File> {
        self.files.iter().filter(|file| names.contains(&file.name)).cloned().collect()
    }

    /// The wanted files, weights last: a snapshot with weights has all other files.
    pub(super) fn select(&self, wanted: &dyn Fn(&str) -> bool, graphs: &Graphs) -> Vec<File> {
        let graph = graphs.select(&self.names());
        let of_graph = |name: &str| graph.as_ref().is_some_and(|graph| is_part(graph, name));
        let is_selected = |file: &&File| wanted(&file.name) || of_graph(&file.name);
        let mut files: Vec<File> = self.files.iter().filter(is_selected).cloned().collect();
        files.sort_by_key(|file| of_graph(&file.name) || file.name.ends_with(".safetensors"));
        files
    }
}

impl File {
    fn check(sibling: Sibling) -> Result<File, HubError> {
        if is_unsafe_path(&sibling.rfilename) {
            return Err(HubError::Hostile { what: "file name", value: sibling.rfilename });
        }
        let (sha256, size) = sibling.lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
        let blob = sha256.clone().or(sibling.blob_id);
        if let Some(blob) = blob.as_ref().filter(|blob| !is_blob(blob)) {
            return Err(HubError::Hostile { what: "name of a blob", value: blob.clone() });
        }
        Ok(File { name: sibling.rfilename, size: size.or(sibling.size), blob, sha256 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"{ "id": "o/m", "private": false, "sha": "abc123", "siblings": [
        { "rfilename": "model.safetensors", "size": 90, "blobId": "f00d",
          "lfs": { "sha256": "5a5a", "size": 90, "pointerSize": 134 } },
        { "rfilename": "README.md", "size": 5, "blobId": "beef" },
        { "rfilename": "config.json" } ] }"#;

    #[test]
    fn the_hubs_answer_is_read_and_weights_come_last() {
        let listing = Listing::parse("o/m", ANSWER.as_bytes()).expect("reads");
        assert_eq!(listing.commit, "abc123");
        let expected = [
            File { name: "config.json".into(), size: None, blob: None, sha256: None },
            File {
                name: "model.safetensors".into(),
                size: Some(90),
                blob: Some("5a5a".into()),
                sha256: Some("5a5a".into()),
            },
        ];
        assert_eq!(listing.select(&|name| name != "README.md", &Graphs::default()), expected);
    }

    #[test]
    fn an_answer_that_leads_out_of_the_cache_is_unsafe_path() {
        for (from, to) in [
            ("abc123", "../../x"),
            ("config.json", "../x"),
            ("config.json", "/x"),
            ("5a5a", "../x"),
            ("beef", "/x"),
        ] {
            let error = Listing::parse("o/m", ANSWER.replace(from, to).as_bytes()).expect_err(to);
            assert!(matches!(error, HubError::Hostile { .. }), "{error}");
        }
    }

    #[test]
    fn an_answer_that_is_no_list_is_unreadable() {
        for text in ["", "{}", "[]", "<html>", r#"{"sha": 1, "siblings": []}"#] {
            let error = Listing::parse("o/m", text.as_bytes()).expect_err(text);
            assert!(matches!(error, HubError::Unreadable { .. }), "{error}");
        }
    }
}
