//! Writes a model folder as one file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use sconce_core::engine::ModelSpec;
use tar::{Builder, Header};

use super::error::BundleError;
use super::manifest::{EVIDENCE, MANIFEST, MODEL, Manifest, ManifestFile, VERSION, digest_of, hex, modified};
use crate::catalogue;
use crate::source::hub::is_wanted;

/// Writes the files of `spec`, and `evidence` by file name, to `output`. Errors contain `path`.
pub fn write(
    spec: &ModelSpec,
    name: &str,
    evidence: &[(&str, Vec<u8>)],
    output: File,
    path: &Path,
) -> Result<Manifest, BundleError> {
    let folder = &spec.files.folder;
    let mut files = Vec::new();
    let names = names(spec).map_err(|source| BundleError::Unbundled { path: folder.clone(), source })?;
    for name in &names {
        let path = folder.join(name);
        let read = digest_of(&path).and_then(|digest| Ok((digest, modified(&path)?)));
        let ((bytes, sha256), modified) = read.map_err(|source| BundleError::Unbundled { path, source })?;
        files.push(ManifestFile { path: format!("{MODEL}/{name}"), bytes, sha256, modified });
    }
    for (name, content) in evidence {
        let sha256 = {
            use sha2::Digest;
            hex(&sha2::Sha256::digest(content))
        };
        files.push(ManifestFile {
            path: format!("{EVIDENCE}/{name}"),
            bytes: content.len() as u64,
            sha256,
            modified: 0,
        });
    }
    let made_by = env!("CARGO_PKG_VERSION").to_owned();
    // Where the bundle is read, neither its name nor its folder need be those of the catalogue.
    let prompts = &spec.card.prompts;
    let prompts = if prompts.source == catalogue::SOURCE { prompts.value.clone() } else { BTreeMap::new() };
    let manifest = Manifest { sconce_bundle: VERSION, name: name.to_owned(), made_by, prompts, files };
    fill(output, &manifest, folder, &names, evidence)
        .map_err(|source| BundleError::Unwritten { path: path.to_owned(), source })?;
    Ok(manifest)
}

/// Files of the model: those that would be fetched from a hub, and every set of weights.
fn names(spec: &ModelSpec) -> io::Result<BTreeSet<String>> {
    let folder = &spec.files.folder;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if folder.join(&name).is_dir() {
            for inside in fs::read_dir(folder.join(&name))? {
                let Ok(inside) = inside?.file_name().into_string() else { continue };
                names.insert(format!("{name}/{inside}"));
            }
        } else {
            names.insert(name);
        }
    }
    names.retain(|name| is_wanted(name) && folder.join(name).is_file());
    let weights = spec.files.weights.values().flatten().chain(spec.files.modules.values());
    for path in weights {
        let inside = path.strip_prefix(folder).ok().and_then(Path::to_str);
        let inside =
            inside.ok_or_else(|| io::Error::other(format!("`{}` lies elsewhere", path.display())))?;
        names.insert(inside.replace(std::path::MAIN_SEPARATOR, "/"));
    }
    Ok(names)
}

fn fill(
    output: File,
    manifest: &Manifest,
    folder: &Path,
    names: &BTreeSet<String>,
    evidence: &[(&str, Vec<u8>)],
) -> io::Result<()> {
    let mut tar = Builder::new(BufWriter::new(output));
    let text = serde_json::to_vec_pretty(manifest)?;
    append(&mut tar, MANIFEST, text.len() as u64, text.as_slice())?;
    let mut contents: Vec<Box<dyn Read>> = Vec::new();
    for name in names {
        contents.push(Box::new(LazyFile { path: folder.join(name), file: None }));
    }
    contents.extend(
        evidence.iter().map(|(_, content)| Box::new(io::Cursor::new(content.clone())) as Box<dyn Read>),
    );
    for (file, content) in manifest.files.iter().zip(contents) {
        // A file that grows in the meantime must not overlap the next entry.
        append(&mut tar, &file.path, file.bytes, content.take(file.bytes))?;
    }
    let mut writer = tar.into_inner()?;
    writer.flush()?;
    writer.get_ref().sync_all()
}

fn append(tar: &mut Builder<impl Write>, path: &str, bytes: u64, content: impl Read) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_size(bytes);
    header.set_mode(0o644);
    tar.append_data(&mut header, path, content)
}

/// A file that is opened on the first read.
struct LazyFile {
    path: PathBuf,
    file: Option<File>,
}

impl Read for LazyFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(File::open(&self.path)?),
        };
        file.read(buffer)
    }
}
