//! Real models, libraries and servers that `scripts/parts` puts in `target/parts`.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of a part.
///
/// # Panics
/// If it was not fetched.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/parts").join(name);
    assert!(folder.is_dir(), "no `{name}` in `target/parts`: fetch it with `scripts/parts {name}`");
    folder
}

/// ONNX Runtime's library.
///
/// # Panics
/// If it was not fetched.
pub fn onnxruntime() -> PathBuf {
    let entries = fs::read_dir(folder("onnxruntime")).expect("the part can be listed").flatten();
    let is_it = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime."))
    };
    entries.map(|entry| entry.path()).find(is_it).expect("the part holds the library")
}

/// The NATS server.
///
/// # Panics
/// If it was not fetched.
pub fn nats_server() -> PathBuf {
    folder("nats").join("nats-server")
}
