//! Who may use whom. The table here is the one statement of it: ARCHITECTURE.md draws it.

use std::fs;

use toml::{Table, Value};

use crate::tree::{expect_none, folders, root};

/// A folder of `crates/`, its package, and the packages of ours that it may use.
struct Room {
    folder: &'static str,
    package: &'static str,
    uses: &'static [&'static str],
}

/// From the ground up: a room uses only rooms above it in this list.
const HOUSE: [Room; 10] = [
    Room { folder: "core", package: "sconce-core", uses: &[] },
    Room { folder: "testkit", package: TESTKIT, uses: &["sconce-core"] },
    Room { folder: "planner", package: "sconce-planner", uses: &["sconce-core"] },
    Room { folder: "kernels", package: "sconce-kernels", uses: &[] },
    Room { folder: "engines", package: "sconce-engines", uses: &["sconce-core", "sconce-kernels"] },
    Room { folder: "runtime", package: "sconce", uses: &["sconce-core", "sconce-planner", "sconce-engines"] },
    Room { folder: "http", package: "sconce-http", uses: &[] },
    Room { folder: "worker", package: "sconce-worker", uses: &["sconce", "sconce-http"] },
    Room { folder: "manifest", package: "sconce-manifest", uses: &[] },
    Room { folder: "cli", package: "sconce-cli", uses: &["sconce", "sconce-worker", "sconce-manifest"] },
];

/// Any room may use it for its tests.
const TESTKIT: &str = "sconce-testkit";

/// Packages of others, by how their names begin, and the rooms that may use them.
const AT_HOME: [(&str, &[&str]); 6] = [
    ("candle-", &["engines"]),
    ("ort", &["engines"]),
    ("tokenizers", &["runtime"]),
    ("anyhow", &["cli"]),
    ("axum", &["http", "worker"]),
    ("tokio", &["http", "worker"]),
];

/// One line of a manifest.
struct Dependency {
    /// The package's own name, whatever it is called here.
    package: String,
    /// Whether it is there for tests alone.
    dev: bool,
}

#[test]
fn arrows_point_down() {
    let mut complaints = Vec::new();
    for room in &HOUSE {
        for Dependency { package, dev } in dependencies(room.folder) {
            let ours = HOUSE.iter().any(|other| other.package == package);
            let allowed = room.uses.contains(&package.as_str()) || dev && package == TESTKIT;
            if ours && !allowed {
                complaints.push(format!(
                    "crates/{}/Cargo.toml: `{package}` is not for this room: move the code, or change \
                     ARCHITECTURE.md and the table in {} first",
                    room.folder,
                    file!()
                ));
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn the_table_has_no_way_round() {
    for (at, room) in HOUSE.iter().enumerate() {
        for used in room.uses {
            let below = HOUSE[..at].iter().any(|other| other.package == *used);
            assert!(below, "`{}` uses `{used}`, which does not stand above it in the table", room.package);
        }
    }
}

#[test]
fn the_table_is_the_house() {
    let mut listed: Vec<_> = HOUSE.iter().map(|room| room.folder).collect();
    listed.sort_unstable();
    assert_eq!(folders(), listed, "the folders of crates/ and the table in {} differ", file!());
    for room in &HOUSE {
        let name = &manifest(room.folder)["package"]["name"];
        assert_eq!(name.as_str(), Some(room.package), "in crates/{}/Cargo.toml", room.folder);
    }
}

#[test]
fn foreign_packages_stay_in_their_room() {
    let mut complaints = Vec::new();
    for folder in folders() {
        for Dependency { package, .. } in dependencies(&folder) {
            for (prefix, homes) in AT_HOME {
                if package.starts_with(prefix) && !homes.contains(&folder.as_str()) {
                    complaints.push(format!(
                        "crates/{folder}/Cargo.toml: `{package}` belongs in crates/{}: use what that room \
                         offers",
                        homes[0]
                    ));
                }
            }
        }
    }
    expect_none(&complaints);
}

/// What the manifest of `folder` names, for every target.
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
    let path = root().join("crates").join(folder).join("Cargo.toml");
    let text = fs::read_to_string(&path).expect("every folder of crates/ has a Cargo.toml");
    text.parse().expect("Cargo.toml is TOML")
}
