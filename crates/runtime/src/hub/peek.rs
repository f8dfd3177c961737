//! A model's settings and the headers of its weights, without the weights: enough to say what it is.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use super::Hub;
use super::cache::Repository;
use super::client::Client;
use super::error::HubError;
use super::listing;

/// Bytes asked for first: the headers of nearly all weight files are shorter.
const FIRST: u64 = 1 << 18;
/// The longest header that the format allows.
const LONGEST_HEADER: u64 = 100_000_000;
/// The longest settings that are read.
const LONGEST_SETTINGS: u64 = 4 << 20;

impl Hub {
    /// Puts what of `id` is small into `folder`: settings whole, and for each weight file its header and a hole as
    /// long as its numbers. Nothing is kept in the cache.
    pub fn peek(
        &self,
        id: &str,
        revision: &str,
        wanted: &dyn Fn(&str) -> bool,
        folder: &Path,
    ) -> Result<(), HubError> {
        let repository = Repository::new(&self.cache, id, revision)?;
        if self.offline {
            return repository.whole(wanted, &self.graphs).map(|_| ());
        }
        let client = Client::new(self, &repository)?;
        let listing = client.list()?;
        for file in listing.pick(wanted, &self.graphs) {
            let path = folder.join(&file.name);
            let kept = |source| HubError::Cache { path: path.clone(), source };
            fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(kept)?;
            if is_weights(&file.name) {
                header(&client, &listing.commit, &file, &path)?;
            } else if is_settings(&file.name) {
                let reply = client.file(&file.name, &listing.commit, "bytes=0-")?;
                let mut bytes = Vec::new();
                reply.body.take(LONGEST_SETTINGS).read_to_end(&mut bytes).map_err(kept)?;
                fs::write(&path, bytes).map_err(kept)?;
            } else if let Some(size) = file.size.filter(|_| !is_vocabulary(&file.name)) {
                File::create(&path).and_then(|hole| hole.set_len(size)).map_err(kept)?;
            }
        }
        Ok(())
    }

    /// The folder of a model that the cache holds whole.
    pub fn cached_whole(
        &self,
        id: &str,
        revision: &str,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Option<std::path::PathBuf> {
        let repository = Repository::new(&self.cache, id, revision);
        repository.and_then(|repository| repository.whole(wanted, &self.graphs)).ok()
    }
}

fn is_weights(name: &str) -> bool {
    ends(name, "safetensors")
}

/// Texts of the tokenizer say nothing that is told of a model.
fn is_settings(name: &str) -> bool {
    (ends(name, "json") || ends(name, "metadata")) && !is_vocabulary(name)
}

fn is_vocabulary(name: &str) -> bool {
    matches!(name, "tokenizer.json" | "vocab.json" | "vocab.txt" | "merges.txt")
}

fn ends(name: &str, kind: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == kind)
}

/// The beginning of a weight file at `path`, and a hole in place of the rest.
fn header(client: &Client<'_>, commit: &str, file: &listing::File, path: &Path) -> Result<(), HubError> {
    let kept = |source| HubError::Cache { path: path.to_owned(), source };
    let corrupt = |what: &str| HubError::Corrupt { file: file.name.clone(), what: what.into() };
    let begin = |bytes: u64| client.file(&file.name, commit, &format!("bytes=0-{}", bytes - 1));
    let reply = begin(FIRST)?;
    let total = reply.total.or(file.size).ok_or_else(|| corrupt("the hub does not say how long it is"))?;
    let mut start = Vec::new();
    reply.body.take(FIRST).read_to_end(&mut start).map_err(kept)?;
    let prefix: [u8; 8] =
        start.first_chunk().copied().ok_or_else(|| corrupt("it is shorter than 8 bytes"))?;
    let length = u64::from_le_bytes(prefix);
    if length > LONGEST_HEADER || length.saturating_add(8) > total {
        return Err(corrupt("its header is longer than it is"));
    }
    let needed = length + 8;
    if (start.len() as u64) < needed {
        start.clear();
        begin(needed)?.body.take(needed).read_to_end(&mut start).map_err(kept)?;
    }
    start.truncate(needed as usize);
    write(path, &start, total).map_err(kept)
}

fn write(path: &Path, start: &[u8], total: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(start)?;
    file.set_len(total)
}
