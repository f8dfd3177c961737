//! `sconce doctor --manifest`: output, exit codes and errors of the command. `sconce-manifest` tests the diagnosis.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const MAC: &str = "aarch64-apple-darwin";
const LINUX: &str = "x86_64-unknown-linux-gnu";

/// A package with these lines in its manifest.
fn app(rest: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir_all(folder.path().join("src")).expect("a source folder");
    fs::write(folder.path().join("src/lib.rs"), "").expect("a library");
    let manifest = format!("[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n{rest}");
    fs::write(folder.path().join("Cargo.toml"), manifest).expect("a manifest");
    folder
}

fn doctor(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
    command.args(["doctor", "--manifest"]).arg(folder).args(arguments);
    command.output().expect("the built command starts")
}

#[test]
fn a_missing_feature_exits_with_1_and_prints_the_lines_to_change() {
    let folder = app("[dependencies]\ncandle-core = { version = \"0.11.1\", features = [\"metal\"] }\n\
                      candle-nn = \"0.11.1\"\n[features]\nidle = []\n");
    let output = doctor(folder.path(), &["--target", MAC]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    let block = "     7 - candle-nn = \"0.11.1\"\n       + candle-nn = { version = \"0.11.1\", features = [\"metal\"] }\n";
    assert!(text.contains(block), "{text}");
    assert!(text.contains("`no metal implementation for layer-norm`"), "{text}");
    assert!(text.contains("verified on a copy of the project: no errors remain"), "{text}");

    for features in [["--features", "idle"].as_slice(), &["--all-features"], &["--no-default-features"]] {
        let output = doctor(folder.path(), &[&["--json", "--target", MAC], features].concat());
        assert_eq!(output.status.code(), Some(1));
        let diagnosis: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(diagnosis["healthy"], false);
        assert_eq!(diagnosis["findings"][0]["code"], "feature-missing");
        assert_eq!(diagnosis["verification"]["outcome"], "passed");
    }
}

#[test]
fn a_project_without_candle_exits_with_0() {
    let folder = app("");
    let output = doctor(folder.path(), &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    assert!(text.contains("this project does not depend on Candle"), "{text}");
    let output = doctor(folder.path(), &["--json"]);
    assert!(output.status.success());
    let diagnosis: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(diagnosis["healthy"], true);
}

#[test]
fn a_path_without_a_manifest_is_an_error_with_a_hint() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("notes.txt"), "").expect("a file");
    let cases = [
        ("", "no `Cargo.toml` in"),
        ("absent", "no such file or folder"),
        ("notes.txt", "not a `Cargo.toml`"),
    ];
    for (path, sentence) in cases {
        let output = doctor(&folder.path().join(path), &[]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(message.contains(sentence) && message.contains("hint: "), "{message}");
    }
}

#[test]
fn an_error_of_cargo_is_printed() {
    let folder = app("");
    let output = doctor(folder.path(), &["--target", LINUX, "--features", "absent"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(message.contains("does not contain this feature: absent"), "{message}");
}

#[test]
fn a_missing_cargo_is_an_error_with_a_hint() {
    let folder = app("");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
    command.args(["doctor", "--manifest"]).arg(folder.path()).env("PATH", "");
    let output = command.output().expect("the built command starts");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(message.contains("could not find `cargo`\nhint: "), "{message}");
}
