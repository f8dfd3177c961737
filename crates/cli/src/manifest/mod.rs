//! `sconce doctor --manifest`: why a foreign project that uses Candle does not run on its accelerator, and
//! which lines of Cargo.toml to change.

mod accelerator;
mod amend;
mod cargo;
mod change;
mod declared;
mod enable;
mod fix;
mod print;
mod raise;
mod shadow;
mod tree;
mod verdict;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use change::Change;
use declared::Manifest;
use fix::Remedy;
use shadow::Shadow;
use tree::{Package, Source, Tree};
use verdict::Finding;

/// Where Metal lives; read as well when the host is another and a manifest speaks of Metal.
const MAC: &str = "aarch64-apple-darwin";

/// What to examine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    /// A Cargo.toml, or the folder of one.
    pub(crate) path: PathBuf,
    /// The target to read the features for; the host's if none is given.
    pub(crate) target: Option<String>,
    /// As for `cargo build --features`.
    pub(crate) features: Vec<String>,
    /// As for `cargo build --all-features`.
    pub(crate) all_features: bool,
    /// As for `cargo build --no-default-features`.
    pub(crate) no_default_features: bool,
}

/// What was found, and what to do about it.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    manifest: PathBuf,
    /// Candle's crates as they are resolved, by target.
    resolved: Vec<(String, Vec<Package>)>,
    findings: Vec<Finding>,
    remedy: Remedy,
    trial: Trial,
}

/// What became of the changes on a copy of the project.
#[derive(Debug, PartialEq, Eq)]
enum Trial {
    /// There was nothing to try.
    Nothing,
    /// No error is left.
    Green,
    /// These errors are left.
    Left(Vec<Finding>),
    /// Cargo refused the changed manifests.
    Refused(String),
}

impl Diagnosis {
    /// Whether there is no error; a note is none.
    pub(crate) fn is_healthy(&self) -> bool {
        !self.findings.iter().any(Finding::is_error)
    }

    /// The diagnosis for a person.
    pub(crate) fn print(&self) -> String {
        print::text(self)
    }
}

/// Examines a project without writing into it.
pub(crate) fn examine(request: &Request) -> anyhow::Result<Diagnosis> {
    let manifest = find(&request.path)?;
    let folder = manifest.parent().unwrap_or(&manifest).to_owned();
    let workspace = cargo::workspace_of(&manifest)?;
    let mut shadow = Shadow::of(workspace.parent().unwrap_or(&workspace))
        .and_then(|mut shadow| shadow.unfold(&folder).map(|()| shadow))
        .with_context(|| {
            format!("could not make a temporary copy of the manifests in: `{}`", folder.display())
        })?;
    let read = |shadow: &Shadow, target: String| {
        cargo::tree(shadow, &manifest, &target, request).map(|tree| (target, tree))
    };

    let first = request.target.clone().map_or_else(|| cargo::host(&folder), Ok)?;
    let mut trees = vec![read(&shadow, first)?];
    let mut manifests = manifests_of(&workspace, &trees)?;
    let speaks_of_metal = manifests.iter().any(|manifest| manifest.text.contains("metal"));
    if request.target.is_none() && !accelerator::is_apple(&trees[0].0) && speaks_of_metal {
        trees.push(read(&shadow, MAC.to_owned())?);
        manifests = manifests_of(&workspace, &trees)?;
    }

    let findings = verdict::judge(&trees);
    let remedy = fix::remedy(&findings, &trees, &manifests);
    let trial = if remedy.changes.is_empty() {
        Trial::Nothing
    } else {
        let targets = trees.iter().map(|(target, _)| target.clone());
        attempt(&mut shadow, &manifests, &remedy.changes, |shadow| {
            targets.clone().map(|target| read(shadow, target)).collect()
        })?
    };
    let resolved = trees
        .iter()
        .map(|(target, tree)| (target.clone(), tree.candle().into_iter().cloned().collect()))
        .collect();
    Ok(Diagnosis { manifest, resolved, findings, remedy, trial })
}

fn find(path: &Path) -> anyhow::Result<PathBuf> {
    let hint = "hint: name the folder of a Cargo project, or its `Cargo.toml`";
    let told = path.display();
    let path = match fs::canonicalize(path) {
        Ok(path) => path,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("no such file or folder: `{told}`\n{hint}")
        }
        Err(error) => return Err(error).with_context(|| format!("could not open: `{told}`")),
    };
    let is_named_right = path.file_name().is_some_and(|name| name == "Cargo.toml");
    if path.is_dir() && path.join("Cargo.toml").is_file() {
        Ok(path.join("Cargo.toml"))
    } else if path.is_dir() {
        bail!("no `Cargo.toml` in: `{told}`\n{hint}")
    } else if is_named_right {
        Ok(path)
    } else {
        bail!("not a `Cargo.toml`: `{told}`\n{hint}")
    }
}

/// The manifests that the user can change: the workspace's, and those of all packages that lie in folders.
fn manifests_of(workspace: &Path, trees: &[(String, Tree)]) -> anyhow::Result<Vec<Manifest>> {
    let read = |file: &Path, root: Option<&Manifest>| {
        let text =
            fs::read_to_string(file).with_context(|| format!("could not read: `{}`", file.display()))?;
        Manifest::parse(file, &text, root)
    };
    let own = trees.iter().flat_map(|(_, tree)| &tree.packages).filter(|package| !package.is_candle());
    let folders: BTreeSet<&Path> = own
        .clone()
        .filter_map(|package| match &package.source {
            Source::Path(folder) => Some(folder.as_path()),
            Source::Registry(_) | Source::Git(_) => None,
        })
        .collect();
    let root = read(workspace, None)?;
    let root = Manifest::parse(workspace, &root.text, Some(&root))?;
    let mut manifests = vec![root.clone()];
    for file in folders.iter().map(|folder| folder.join("Cargo.toml")).filter(|file| file != workspace) {
        manifests.push(read(&file, Some(&root))?);
    }
    for manifest in &mut manifests {
        let folder = manifest.file.parent().map(Path::to_owned).unwrap_or_default();
        let here = own.clone().filter(|package| package.source == Source::Path(folder.clone()));
        manifest.active = here.flat_map(|package| package.features.iter().cloned()).collect();
    }
    Ok(manifests)
}

/// Makes the changes in the shadow and examines it once more.
fn attempt(
    shadow: &mut Shadow,
    manifests: &[Manifest],
    changes: &[Change],
    read: impl Fn(&Shadow) -> anyhow::Result<Vec<(String, Tree)>>,
) -> anyhow::Result<Trial> {
    for manifest in manifests {
        let here: Vec<Change> =
            changes.iter().filter(|change| change.file == manifest.file).cloned().collect();
        if !here.is_empty() {
            shadow.write(&manifest.file, &change::apply(&manifest.text, &here)).with_context(|| {
                format!("could not try the changes on a copy of: `{}`", manifest.file.display())
            })?;
        }
    }
    Ok(match read(shadow) {
        Ok(trees) => {
            let left: Vec<Finding> = verdict::judge(&trees).into_iter().filter(Finding::is_error).collect();
            if left.is_empty() { Trial::Green } else { Trial::Left(left) }
        }
        Err(error) => Trial::Refused(format!("{error:#}")),
    })
}
