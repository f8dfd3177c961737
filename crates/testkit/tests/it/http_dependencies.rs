//! The HTTP edge, the registry and the pool depend on no model code, so that a gateway binary stays small.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use toml::{Table, Value};

use crate::tree::{expect_none, root};

/// Packages that they must not depend on, by how their names begin.
const FORBIDDEN: [&str; 6] = ["candle", "tokenizers", "ort", "hf-hub", "sconce-engines", "sconce-kernels"];

#[test]
fn the_http_edge_the_registry_and_the_pool_depend_on_no_model_code() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock is committed");
    let lock: Table = lock.parse().expect("Cargo.lock is TOML");
    let packages = lock["package"].as_array().expect("packages");
    let mut edges: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let dependencies = package.get("dependencies").and_then(Value::as_array).into_iter().flatten();
        // `name`, or `name version` where there are several.
        let names = dependencies.filter_map(|text| text.as_str()?.split(' ').next());
        edges.entry(name).or_default().extend(names);
    }
    for (package, known) in
        [("sconce-http", "hyper"), ("sconce-registry", "async-nats"), ("sconce-pool", "sconce-registry")]
    {
        let (mut seen, mut open) = (BTreeSet::from([package]), vec![package]);
        while let Some(name) = open.pop() {
            open.extend(edges[name].iter().copied().filter(|next| seen.insert(next)));
        }
        let is_forbidden =
            |name: &&&str| **name == "sconce" || FORBIDDEN.iter().any(|prefix| name.starts_with(prefix));
        let found: Vec<String> =
            seen.iter().filter(is_forbidden).map(|name| format!("{package} depends on `{name}`")).collect();
        expect_none(&found);
        assert!(seen.contains(known), "the walk reaches dependencies");
    }
}
