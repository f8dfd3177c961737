//! Which execution provider computed which node, read from a profile of one run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// The path of the next profile, without the extension that the library adds.
pub(super) fn record() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("sconce-nodes-{}-{number}", std::process::id()))
}

/// Number of nodes per provider in the profile at `path`, which is removed; empty if it can't be read.
pub(super) fn read(path: &Path) -> BTreeMap<String, usize> {
    let text = fs::read(path).unwrap_or_default();
    let _ = fs::remove_file(path);
    count(&serde_json::from_slice(&text).unwrap_or_default())
}

fn count(events: &Value) -> BTreeMap<String, usize> {
    let mut nodes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for event in events.as_array().into_iter().flatten().filter(|event| event["cat"] == "Node") {
        if let (Some(provider), Some(name)) = (event["args"]["provider"].as_str(), event["name"].as_str()) {
            nodes.entry(provider).or_default().insert(name);
        }
    }
    nodes.into_iter().map(|(provider, names)| (provider.to_owned(), names.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_ran_twice_is_one_and_what_is_no_node_none() {
        let event = |cat: &str, name: &str, provider: &str| serde_json::json!({ "cat": cat, "name": name, "args": { "provider": provider } });
        let events = Value::Array(vec![
            event("Node", "a", "CUDAExecutionProvider"),
            event("Node", "a", "CUDAExecutionProvider"),
            event("Node", "b", "CPUExecutionProvider"),
            event("Session", "c", "CPUExecutionProvider"),
        ]);
        let nodes = count(&events);
        assert_eq!(nodes["CUDAExecutionProvider"], 1);
        assert_eq!(nodes["CPUExecutionProvider"], 1);
        assert!(count(&Value::Null).is_empty());
    }
}
