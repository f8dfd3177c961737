//! Fetches the metadata of a GGUF file, without the tensors.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sconce_engines::gguf::header::{Header, TensorInfo};

use super::cache::Repository;
use super::client::Client;
use super::config::Hub;
use super::error::HubError;
use super::gguf;
use super::listing;

/// Size of the first range request. Metadata with a large vocabulary takes several MB.
const FIRST_BYTES: u64 = 1 << 20;
/// Limit of the metadata and the tensor table in bytes.
const MAX_HEADER_BYTES: u64 = 256 << 20;
/// Prefix of the tensors with factors of the rotary embedding, which are part of the card.
const ROTARY: &str = "rope_";
/// Size limit of such a tensor in bytes.
const MAX_ROTARY_BYTES: u64 = 1 << 20;

impl Hub {
    /// Writes the GGUF file of `quantization` into `folder`: metadata and tensor table, followed by a hole. The cache is not
    /// changed. Returns the path of its first file, and the size of all its files in bytes, if the hub reports it.
    pub fn peek_gguf(
        &self,
        id: &str,
        revision: &str,
        quantization: &str,
        folder: &Path,
    ) -> Result<(PathBuf, Option<u64>), HubError> {
        let repository = Repository::new(&self.cache, id, revision)?;
        let client = Client::new(self, &repository)?;
        let listing = client.list()?;
        let names = gguf::select(id, &listing.names(), quantization)?;
        let files = listing.select_named(&names);
        for file in &files {
            let path = folder.join(&file.name);
            let io = |source| HubError::Cache { path: path.clone(), source };
            fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(io)?;
            metadata(&client, &listing.commit, file, &path)?;
        }
        let first = names.first().map_or("", String::as_str);
        Ok((folder.join(first), files.iter().map(|file| file.size).sum()))
    }

    /// The path of a GGUF file that is completely cached.
    pub fn cached_gguf(&self, id: &str, revision: &str, quantization: &str) -> Option<PathBuf> {
        let repository = Repository::new(&self.cache, id, revision);
        repository.and_then(|repository| gguf::cached(&repository, quantization)).ok()
    }
}

/// Writes the start of a file to `path`, followed by a hole: twice as much until the tensor table is complete.
fn metadata(client: &Client<'_>, commit: &str, file: &listing::File, path: &Path) -> Result<(), HubError> {
    let io = |source| HubError::Cache { path: path.to_owned(), source };
    let corrupt = |what: String| HubError::Corrupt { file: file.name.clone(), what };
    let mut start: Vec<u8> = Vec::new();
    let mut wanted = FIRST_BYTES;
    loop {
        let range = format!("bytes={}-{}", start.len(), wanted - 1);
        let response = client.file(&file.name, commit, &range)?;
        let total = response.total.or(file.size);
        let total = total.ok_or_else(|| corrupt("the hub does not say how long it is".to_owned()))?;
        if response.start != start.len() as u64 {
            // The hub ignores ranges and sends the whole file.
            start.clear();
        }
        let missing = wanted.min(total).saturating_sub(start.len() as u64);
        response.body.take(missing).read_to_end(&mut start).map_err(io)?;
        let mut out = File::create(path).map_err(io)?;
        out.write_all(&start).and_then(|()| out.set_len(total)).map_err(io)?;
        let fetched = start.len() as u64;
        if fetched >= total {
            return Ok(());
        }
        // Zeros of the hole may parse as a header that ends in the hole.
        let is_complete = |header: &Header| {
            header.tensors.iter().map(|tensor| tensor.start).min().is_some_and(|data| data <= fetched)
        };
        if let Some(header) = Header::read(path).ok().filter(is_complete) {
            return rotary_factors(client, commit, file, &header, &mut out).map_err(io)?;
        }
        if wanted >= MAX_HEADER_BYTES {
            return Err(corrupt(format!("its metadata has more than {MAX_HEADER_BYTES} bytes")));
        }
        wanted *= 2;
    }
}

/// Writes the factors of the rotary embedding into the hole.
fn rotary_factors(
    client: &Client<'_>,
    commit: &str,
    file: &listing::File,
    header: &Header,
    out: &mut File,
) -> io::Result<Result<(), HubError>> {
    let is_small = |tensor: &&TensorInfo| tensor.length > 0 && tensor.length <= MAX_ROTARY_BYTES;
    for tensor in header.tensors.iter().filter(|tensor| tensor.name.starts_with(ROTARY)).filter(is_small) {
        let range = format!("bytes={}-{}", tensor.start, tensor.start + tensor.length - 1);
        let response = match client.file(&file.name, commit, &range) {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        let mut body = response.body;
        io::copy(&mut body.by_ref().take(tensor.start - response.start.min(tensor.start)), &mut io::sink())?;
        out.seek(SeekFrom::Start(tensor.start))?;
        io::copy(&mut body.take(tensor.length), out)?;
    }
    Ok(Ok(()))
}
