//! From a model's folder to one file.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use sconce_core::engine::ModelSpec;
use tar::{Builder, Header};

use super::{BundleError, EVIDENCE, LIST, List, Listed, MODEL, VERSION, digest_of, digits, modified};
use crate::hub::is_wanted;

/// Writes the files that `subject` is read from, and `evidence` by its file name, into `output`. Errors name `path`.
pub fn write(
    subject: &ModelSpec,
    name: &str,
    evidence: &[(&str, Vec<u8>)],
    output: File,
    path: &Path,
) -> Result<List, BundleError> {
    let folder = &subject.files.folder;
    let mut files = Vec::new();
    let names = names(subject).map_err(|source| BundleError::Unbundled { path: folder.clone(), source })?;
    for name in &names {
        let path = folder.join(name);
        let read = digest_of(&path).and_then(|digest| Ok((digest, modified(&path)?)));
        let ((bytes, sha256), modified) = read.map_err(|source| BundleError::Unbundled { path, source })?;
        files.push(Listed { path: format!("{MODEL}/{name}"), bytes, sha256, modified });
    }
    for (name, content) in evidence {
        let sha256 = {
            use sha2::Digest;
            digits(&sha2::Sha256::digest(content))
        };
        files.push(Listed {
            path: format!("{EVIDENCE}/{name}"),
            bytes: content.len() as u64,
            sha256,
            modified: 0,
        });
    }
    let made_by = env!("CARGO_PKG_VERSION").to_owned();
    let list = List { sconce_bundle: VERSION, name: name.to_owned(), made_by, files };
    fill(output, &list, folder, &names, evidence)
        .map_err(|source| BundleError::Unwritten { path: path.to_owned(), source })?;
    Ok(list)
}

/// What of the folder belongs to the model, by name: what would be fetched from a hub, and every set of weights.
fn names(subject: &ModelSpec) -> io::Result<BTreeSet<String>> {
    let folder = &subject.files.folder;
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
    let weights = subject.files.weights.values().flatten().chain(subject.files.modules.values());
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
    list: &List,
    folder: &Path,
    names: &BTreeSet<String>,
    evidence: &[(&str, Vec<u8>)],
) -> io::Result<()> {
    let mut tar = Builder::new(BufWriter::new(output));
    let text = serde_json::to_vec_pretty(list)?;
    append(&mut tar, LIST, text.len() as u64, text.as_slice())?;
    let mut contents: Vec<Box<dyn Read>> = Vec::new();
    for name in names {
        contents.push(Box::new(Late { path: folder.join(name), file: None }));
    }
    contents.extend(
        evidence.iter().map(|(_, content)| Box::new(io::Cursor::new(content.clone())) as Box<dyn Read>),
    );
    for (listed, content) in list.files.iter().zip(contents) {
        // A file that grows meanwhile must not run into the next one.
        append(&mut tar, &listed.path, listed.bytes, content.take(listed.bytes))?;
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

/// A file that is opened when it is read.
struct Late {
    path: PathBuf,
    file: Option<File>,
}

impl Read for Late {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(File::open(&self.path)?),
        };
        file.read(buffer)
    }
}
