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
/// Size limit of a config file.
const MAX_CONFIG_BYTES: u64 = 4 << 20;

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
        let repository = Repository::new(&self.cache, id, revision)?;
        if self.offline {
            return repository.complete_snapshot(wanted, &self.graphs).map(|_| ());
        }
        let client = Client::new(self, &repository)?;
        let listing = client.list()?;
        for file in listing.select(wanted, &self.graphs) {
            let path = folder.join(&file.name);
            let io = |source| HubError::Cache { path: path.clone(), source };
            fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(io)?;
            if is_weights(&file.name) {
                header(&client, &listing.commit, &file, &path)?;
            } else if is_config(&file.name) {
                let response = client.file(&file.name, &listing.commit, "bytes=0-")?;
                let mut bytes = Vec::new();
                response.body.take(MAX_CONFIG_BYTES).read_to_end(&mut bytes).map_err(io)?;
                fs::write(&path, bytes).map_err(io)?;
            } else if let Some(size) = file.size.filter(|_| !is_vocabulary(&file.name)) {
                File::create(&path).and_then(|hole| hole.set_len(size)).map_err(io)?;
            }
        }
        Ok(())
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

/// JSON files except those of the tokenizer, which the card does not read.
fn is_config(name: &str) -> bool {
    (ends(name, "json") || ends(name, "metadata")) && !is_vocabulary(name)
}

fn is_vocabulary(name: &str) -> bool {
    matches!(name, "tokenizer.json" | "vocab.json" | "vocab.txt" | "merges.txt")
}

fn ends(name: &str, kind: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == kind)
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
