//! Hashes this crate's sources: evidence of other sources is not used.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=Cargo.toml");
    let mut hasher = DefaultHasher::new();
    hasher.write(&fs::read("Cargo.toml").unwrap_or_default());
    feed(Path::new("src"), &mut hasher);
    println!("cargo::rustc-env=SCONCE_ENGINES_HASH={:016x}", hasher.finish());
}

fn feed(folder: &Path, hasher: &mut DefaultHasher) {
    let mut entries: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            feed(&path, hasher);
        } else {
            hasher.write(&fs::read(&path).unwrap_or_default());
        }
    }
}
