//! The diagnosis of one project: resolve, check, propose edits, and verify them on an overlay.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::change::Change;
use crate::checks::Finding;
use crate::diagnosis::{Diagnosis, Verification};
use crate::error::Error;
use crate::manifest::Manifest;
use crate::overlay::Overlay;
use crate::request::Request;
use crate::tree::{Source, Tree};
use crate::{accelerator, cargo, change, checks, fix};

/// Also resolved on other hosts when a manifest mentions Metal.
const MAC: &str = "aarch64-apple-darwin";

/// Examines a project without writing into it.
pub fn examine(request: &Request) -> Result<Diagnosis, Error> {
    let manifest = locate(&request.path)?;
    let folder = manifest.parent().unwrap_or(&manifest).to_owned();
    let workspace = cargo::workspace_of(&manifest)?;
    let mut overlay = Overlay::of(workspace.parent().unwrap_or(&workspace))
        .and_then(|mut overlay| overlay.materialize(&folder).map(|()| overlay))
        .map_err(|error| Error::Overlay(folder.clone(), error))?;
    let resolve = |overlay: &Overlay, target: String| {
        cargo::tree(overlay, &manifest, &target, request).map(|tree| (target, tree))
    };

    let first = request.target.clone().map_or_else(|| cargo::host(&folder), Ok)?;
    let mut trees = vec![resolve(&overlay, first)?];
    let mut manifests = editable_manifests(&workspace, &trees)?;
    let mentions_metal = manifests.iter().any(|manifest| manifest.text.contains("metal"));
    if request.target.is_none() && !accelerator::is_apple(&trees[0].0) && mentions_metal {
        trees.push(resolve(&overlay, MAC.to_owned())?);
        manifests = editable_manifests(&workspace, &trees)?;
    }

    let findings = checks::check(&trees);
    let fix = fix::fix(&findings, &trees, &manifests);
    let verification = if fix.changes.is_empty() {
        Verification::Skipped
    } else {
        let targets = trees.iter().map(|(target, _)| target.clone());
        verify(&mut overlay, &manifests, &fix.changes, |overlay| {
            targets.clone().map(|target| resolve(overlay, target)).collect()
        })?
    };
    let resolved = trees
        .iter()
        .map(|(target, tree)| (target.clone(), tree.candle().into_iter().cloned().collect()))
        .collect();
    Ok(Diagnosis { manifest, resolved, findings, fix, verification })
}

/// The absolute path of the manifest that the user named.
fn locate(named: &Path) -> Result<PathBuf, Error> {
    let path = fs::canonicalize(named).map_err(|error| {
        let path = named.to_owned();
        if error.kind() == ErrorKind::NotFound { Error::NotFound(path) } else { Error::Open(path, error) }
    })?;
    if path.is_dir() {
        let manifest = path.join("Cargo.toml");
        return if manifest.is_file() { Ok(manifest) } else { Err(Error::NoManifest(named.to_owned())) };
    }
    if path.file_name().is_some_and(|name| name == "Cargo.toml") {
        Ok(path)
    } else {
        Err(Error::NotAManifest(named.to_owned()))
    }
}

/// The manifests the user can edit: the workspace root's, and those of all path dependencies.
fn editable_manifests(workspace: &Path, trees: &[(String, Tree)]) -> Result<Vec<Manifest>, Error> {
    let read = |file: &Path, root: Option<&Manifest>| {
        let text = fs::read_to_string(file).map_err(|error| Error::Read(file.to_owned(), error))?;
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

/// Applies the changes to the overlay, resolves again, and checks the result.
fn verify(
    overlay: &mut Overlay,
    manifests: &[Manifest],
    changes: &[Change],
    resolve: impl Fn(&Overlay) -> Result<Vec<(String, Tree)>, Error>,
) -> Result<Verification, Error> {
    for manifest in manifests {
        let here: Vec<Change> =
            changes.iter().filter(|change| change.file == manifest.file).cloned().collect();
        if !here.is_empty() {
            overlay
                .write(&manifest.file, &change::apply(&manifest.text, &here))
                .map_err(|error| Error::WriteOverlay(manifest.file.clone(), error))?;
        }
    }
    Ok(match resolve(overlay) {
        Ok(trees) => {
            let errors: Vec<Finding> = checks::check(&trees).into_iter().filter(Finding::is_error).collect();
            if errors.is_empty() { Verification::Passed } else { Verification::Failed(errors) }
        }
        Err(error) => Verification::Rejected(with_causes(&error)),
    })
}

/// An error and its causes in one line.
fn with_causes(error: &Error) -> String {
    let mut causes = vec![error.to_string()];
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    causes.join(": ")
}
