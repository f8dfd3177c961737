//! The layers of crates: which crate may depend on which. ARCHITECTURE.md draws this table.

use std::fs;

use toml::{Table, Value};

use crate::tree::{expect_none, folders, root};

/// The folder of a crate, its package, and the workspace packages that it may depend on.
struct Crate {
    folder: &'static str,
    package: &'static str,
    uses: &'static [&'static str],
}

/// From the bottom up: a crate depends only on crates above it in this list.
const CRATES: [Crate; 13] = [
    Crate { folder: "crates/core", package: "sconce-core", uses: &[] },
    Crate { folder: "crates/testkit", package: TESTKIT, uses: &["sconce-core"] },
    Crate { folder: "crates/planner", package: "sconce-planner", uses: &["sconce-core"] },
    Crate { folder: "crates/kernels", package: "sconce-kernels", uses: &[] },
    Crate { folder: "crates/engines", package: "sconce-engines", uses: &["sconce-core", "sconce-kernels"] },
    Crate {
        folder: "crates/runtime",
        package: "sconce",
        uses: &["sconce-core", "sconce-planner", "sconce-engines"],
    },
    Crate { folder: "crates/registry", package: "sconce-registry", uses: &[] },
    Crate { folder: "crates/http", package: "sconce-http", uses: &[] },
    Crate { folder: "crates/pool", package: "sconce-pool", uses: &["sconce-registry", "sconce-http"] },
    Crate {
        folder: "crates/worker",
        package: "sconce-worker",
        uses: &["sconce", "sconce-http", "sconce-registry"],
    },
    Crate { folder: "crates/manifest", package: "sconce-manifest", uses: &[] },
    Crate {
        folder: "crates/cli",
        package: "sconce-cli",
        uses: &["sconce", "sconce-pool", "sconce-worker", "sconce-manifest"],
    },
    Crate { folder: "python", package: "sconce-python", uses: &["sconce", "sconce-cli"] },
];

/// Every crate may use it in tests.
const TESTKIT: &str = "sconce-testkit";

/// Third-party packages by prefix, and the crates that may use them.
const RESTRICTED: [(&str, &[&str]); 9] = [
    ("candle-", &["crates/engines"]),
    ("ort", &["crates/engines"]),
    ("tokenizers", &["crates/runtime"]),
    ("anyhow", &["crates/cli"]),
    ("axum", &["crates/http", "crates/pool", "crates/worker"]),
    ("tokio", &["crates/http", "crates/pool", "crates/registry", "crates/worker"]),
    ("async-nats", &["crates/registry"]),
    ("pyo3", &["python"]),
    ("numpy", &["python"]),
];

/// A dependency in a manifest.
struct Dependency {
    /// The package name, whatever its alias.
    package: String,
    /// Whether it is a dev-dependency.
    dev: bool,
}

#[test]
fn crates_depend_on_lower_layers_only() {
    let mut complaints = Vec::new();
    for one in &CRATES {
        for Dependency { package, dev } in dependencies(one.folder) {
            let ours = CRATES.iter().any(|other| other.package == package);
            let allowed = one.uses.contains(&package.as_str()) || dev && package == TESTKIT;
            if ours && !allowed {
                complaints.push(format!(
                    "{}/Cargo.toml: `{package}` is not a layer below this crate: move the code, or change \
                     ARCHITECTURE.md and the table in {} first",
                    one.folder,
                    file!()
                ));
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn the_table_lists_lower_layers_first() {
    for (at, one) in CRATES.iter().enumerate() {
        for used in one.uses {
            let below = CRATES[..at].iter().any(|other| other.package == *used);
            assert!(below, "`{}` uses `{used}`, which does not come before it in the table", one.package);
        }
    }
}

#[test]
fn the_table_lists_every_crate() {
    let mut listed: Vec<_> = CRATES.iter().map(|one| one.folder).collect();
    listed.sort_unstable();
    assert_eq!(folders(), listed, "the folders of crates and the table in {} differ", file!());
    for one in &CRATES {
        let name = &manifest(one.folder)["package"]["name"];
        assert_eq!(name.as_str(), Some(one.package), "in {}/Cargo.toml", one.folder);
    }
}

#[test]
fn restricted_packages_stay_in_their_crates() {
    let mut complaints = Vec::new();
    for folder in folders() {
        for Dependency { package, .. } in dependencies(&folder) {
            for (prefix, homes) in RESTRICTED {
                if package.starts_with(prefix) && !homes.contains(&folder.as_str()) {
                    complaints.push(format!(
                        "{folder}/Cargo.toml: `{package}` is restricted to {}: use what that crate \
                         offers",
                        homes[0]
                    ));
                }
            }
        }
    }
    expect_none(&complaints);
}

/// The dependencies in the manifest of `folder`, for every target.
fn dependencies(folder: &str) -> Vec<Dependency> {
    let manifest = manifest(folder);
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let tables = targets.filter_map(Value::as_table).chain([&manifest]);
    tables
        .flat_map(|table| {
            let part = |key: &str| table.get(key).and_then(Value::as_table).into_iter().flatten();
            let dev = part("dev-dependencies").map(|entry| (entry, true));
            let rest = part("dependencies").chain(part("build-dependencies")).map(|entry| (entry, false));
            dev.chain(rest)
        })
        .map(|((name, value), dev)| {
            let package = value.get("package").and_then(Value::as_str).unwrap_or(name);
            Dependency { package: package.to_owned(), dev }
        })
        .collect()
}

fn manifest(folder: &str) -> Table {
    let path = root().join(folder).join("Cargo.toml");
    let text = fs::read_to_string(&path).expect("every crate has a Cargo.toml");
    text.parse().expect("Cargo.toml is TOML")
}
