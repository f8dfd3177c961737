//! Fetches the config files and weight headers of a model, without the weights.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use super::cache::Repository;
use super::client::Client;
use super::config::Hub;
use super::error::HubError;
use super::listing;

/// Size of the first range request: nearly all weight headers are shorter.
const FIRST_BYTES: u64 = 1 << 18;
/// Header size limit of safetensors.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Size limit of a config file, as of a card.
const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Size limit of a tokenizer file.
const MAX_TOKENIZER_BYTES: u64 = 128 << 20;

impl Hub {
    /// Writes the config files of `id` into `folder`, and each weight file as its header followed by a hole. The cache
    /// is not changed.
    pub fn peek(
        &self,
        id: &str,
        revision: &str,
        wanted: &dyn Fn(&str) -> bool,
        folder: &Path,
    ) -> Result<(), HubError> {
        self.peek_files(id, revision, wanted, false, folder).map(|_| ())
    }

    /// Like [`peek`](Hub::peek), with the files of the tokenizer. Returns the size of all `wanted` files in bytes, if the hub
    /// reports it.
    pub fn peek_with_tokenizer(
        &self,
        id: &str,
        revision: &str,
        wanted: &dyn Fn(&str) -> bool,
        folder: &Path,
    ) -> Result<Option<u64>, HubError> {
        self.peek_files(id, revision, wanted, true, folder)
    }

    fn peek_files(
        &self,
        id: &str,
        revision: &str,
        wanted: &dyn Fn(&str) -> bool,
        with_tokenizer: bool,
        folder: &Path,
    ) -> Result<Option<u64>, HubError> {
        let repository = Repository::new(&self.cache, id, revision)?;
        if self.offline {
            return repository.complete_snapshot(wanted, &self.graphs).map(|_| None);
        }
        let client = Client::new(self, &repository)?;
        let listing = client.list()?;
        let files = listing.select(wanted, &self.graphs);
        let bytes = files.iter().map(|file| file.size).sum();
        for file in files {
            let path = folder.join(&file.name);
            let io = |source| HubError::Cache { path: path.clone(), source };
            fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(io)?;
            if is_weights(&file.name) {
                header(&client, &listing.commit, &file, &path)?;
            } else if is_config(&file.name) {
                // A larger file is none that a card reads.
                if file.size.is_some_and(|size| size > MAX_CONFIG_BYTES) {
                    continue;
                }
                whole(&client, &listing.commit, &file, &path, MAX_CONFIG_BYTES)?;
            } else if is_vocabulary(&file.name) && with_tokenizer {
                whole(&client, &listing.commit, &file, &path, MAX_TOKENIZER_BYTES)?;
            } else if let Some(size) = file.size.filter(|_| !is_vocabulary(&file.name)) {
                File::create(&path).and_then(|hole| hole.set_len(size)).map_err(io)?;
            }
        }
        Ok(bytes)
    }

    /// The snapshot folder of a model that is completely cached.
    pub fn cached_snapshot(
        &self,
        id: &str,
        revision: &str,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Option<std::path::PathBuf> {
        let repository = Repository::new(&self.cache, id, revision);
        repository.and_then(|repository| repository.complete_snapshot(wanted, &self.graphs)).ok()
    }
}

fn is_weights(name: &str) -> bool {
    ends(name, "safetensors")
}

/// JSON files and chat templates, except the files of the tokenizer, which the card does not read.
fn is_config(name: &str) -> bool {
    ["json", "metadata", "jinja"].iter().any(|kind| ends(name, kind)) && !is_vocabulary(name)
}

fn is_vocabulary(name: &str) -> bool {
    matches!(name, "tokenizer.json" | "vocab.json" | "vocab.txt" | "merges.txt")
}

fn ends(name: &str, kind: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == kind)
}

/// Writes a file of at most `limit` bytes to `path`.
fn whole(
    client: &Client<'_>,
    commit: &str,
    file: &listing::File,
    path: &Path,
    limit: u64,
) -> Result<(), HubError> {
    let io = |source| HubError::Cache { path: path.to_owned(), source };
    // An empty file has no range.
    if file.size == Some(0) {
        return fs::write(path, []).map_err(io);
    }
    let response = client.file(&file.name, commit, "bytes=0-")?;
    let mut bytes = Vec::new();
    response.body.take(limit + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > limit {
        let what = format!("it has more than {limit} bytes");
        return Err(HubError::Corrupt { file: file.name.clone(), what });
    }
    fs::write(path, bytes).map_err(io)
}

/// Writes the header of a weight file to `path`, followed by a hole.
fn header(client: &Client<'_>, commit: &str, file: &listing::File, path: &Path) -> Result<(), HubError> {
    let io = |source| HubError::Cache { path: path.to_owned(), source };
    let corrupt = |what: &str| HubError::Corrupt { file: file.name.clone(), what: what.into() };
    let begin = |bytes: u64| client.file(&file.name, commit, &format!("bytes=0-{}", bytes - 1));
    let response = begin(FIRST_BYTES)?;
    let total = response.total.or(file.size).ok_or_else(|| corrupt("the hub does not say how long it is"))?;
    let mut start = Vec::new();
    response.body.take(FIRST_BYTES).read_to_end(&mut start).map_err(io)?;
    let prefix: [u8; 8] =
        start.first_chunk().copied().ok_or_else(|| corrupt("it is shorter than 8 bytes"))?;
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER_BYTES || length.saturating_add(8) > total {
        return Err(corrupt("its header is longer than it is"));
    }
    let needed = length + 8;
    if (start.len() as u64) < needed {
        start.clear();
        begin(needed)?.body.take(needed).read_to_end(&mut start).map_err(io)?;
    }
    start.truncate(needed as usize);
    write(path, &start, total).map_err(io)
}

fn write(path: &Path, start: &[u8], total: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(start)?;
    file.set_len(total)
}
