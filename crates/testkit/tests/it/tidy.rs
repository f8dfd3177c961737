//! Rules that hold for every file.

use std::fs;

use crate::code::{code, has_word};
use crate::tree::{File, expect_none, files, folders, root};

/// The files whose code may read a feature.
const READ_FEATURES: [&str; 2] = ["crates/engines/src/candle/device.rs", "crates/engines/src/onnx/mod.rs"];

/// The crate whose code may be unsafe.
const UNSAFE: &str = "crates/kernels/";

/// Maximum lines of a file in `src`.
const LINES: usize = 600;

/// The crate of test helpers, and its file that folds values.
const TESTKIT: &str = "crates/testkit/src/";
const COMPARE: &str = "crates/testkit/src/compare.rs";

/// User names of example paths in tests.
const MADE_UP: [&str; 2] = ["ada", "me"];

/// Hosts of package registries, in two halves so that this file does not name them.
const REGISTRIES: [[&str; 2]; 6] = [
    ["crates", ".io"],
    ["pypi", ".org"],
    ["pythonhosted", ".org"],
    ["npmjs", ".org"],
    ["debian", ".org"],
    ["static.rust-lang", ".org"],
];

#[test]
fn every_file_says_first_what_it_is_for() {
    let complaints: Vec<_> = files()
        .iter()
        .filter(|file| file.is_rust() && (file.is_in("src") || file.is_in("tests") || file.is_in("build.rs")))
        .filter(|file| !file.text.starts_with("//! "))
        .map(|file| format!("{}:1: begin with `//!` and one sentence on the purpose of the file", file.path))
        .collect();
    expect_none(&complaints);
}

#[test]
fn files_are_short() {
    let complaints: Vec<_> = files()
        .iter()
        .filter(|file| file.is_rust() && file.is_in("src"))
        .filter(|file| file.text.lines().count() > LINES)
        .map(|file| format!("{}:{}: more than {LINES} lines: split it", file.path, LINES + 1))
        .collect();
    expect_none(&complaints);
}

#[test]
fn build_scripts_read_their_own_package_alone() {
    // A published package has nothing beside it.
    let scripts: Vec<_> =
        files().into_iter().filter(|file| file.is_rust() && file.is_in("build.rs")).collect();
    assert!(scripts.len() >= 2, "engines and kernels hash their sources");
    let outside = |file: &&File| file.text.contains("\"../") || file.text.contains("=../");
    let complaints: Vec<_> = scripts
        .iter()
        .filter(outside)
        .map(|file| {
            format!("{}: reads outside of its package: a published package has nothing there", file.path)
        })
        .collect();
    expect_none(&complaints);
}

#[test]
fn features_are_read_in_one_place() {
    expect_none(&lines_of_code(|path, line| {
        let reads = line.match_indices("feature").any(|(at, word)| {
            let after = line[at + word.len()..].trim_start();
            after.strip_prefix('=').is_some_and(|value| value.trim_start().starts_with('"'))
                && !line[..at].trim_end().ends_with("let")
        });
        (reads && !READ_FEATURES.contains(&path))
            .then(|| format!("a feature is read: only {} may", READ_FEATURES.join(", ")))
    }));
}

#[test]
fn nothing_is_unsafe() {
    expect_none(&lines_of_code(|path, line| {
        (has_word(line, "unsafe") && !path.starts_with(UNSAFE))
            .then(|| format!("`unsafe` stands only in {UNSAFE}: find a safe way, or put it there"))
    }));
}

#[test]
fn nothing_is_left_half_done() {
    expect_none(&lines_of_code(|_, line| {
        let left = ["todo!", "unimplemented!", "dbg!"].into_iter().find(|name| has_word(line, name))?;
        Some(format!("`{left}` is left over: finish it or return an error"))
    }));
}

#[test]
fn tests_fold_numbers_so_that_nan_fails() {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.is_rust() && file.path.starts_with("crates/")) {
        let is_test =
            file.is_in("tests") || file.path.ends_with("/tests.rs") || file.path.starts_with(TESTKIT);
        let code = code(&file.text);
        let tests = code.lines().skip_while(|line| !is_test && !line.contains("#[cfg(test)]"));
        let first = code.lines().count() - tests.clone().count() + 1;
        let dropping = tests.enumerate().filter(|(_, line)| drops_nan(line) && file.path != COMPARE);
        complaints.extend(dropping.map(|(at, _)| {
            format!("{}:{}: `max` and `min` drop NaN: use `sconce_testkit::compare`", file.path, first + at)
        }));
    }
    expect_none(&complaints);
}

/// Whether a line folds values with a function that drops NaN.
fn drops_nan(line: &str) -> bool {
    let by_name = ["f32::max", "f64::max", "f32::min", "f64::min"].iter().any(|name| has_word(line, name));
    by_name || line.contains("fold(") && (line.contains(".max(") || line.contains(".min("))
}

#[test]
fn folds_that_drop_nan_are_told_from_others() {
    assert!(drops_nan("differences.fold(0.0, f32::max)"));
    assert!(drops_nan("differences.fold(0.0, |worst, x| worst.max(x))"));
    assert!(!drops_nan("length.min(32)") && !drops_nan("scores.max_by(f64::total_cmp)"));
}

#[test]
fn no_file_names_a_home_or_a_registry() {
    let mut complaints = Vec::new();
    // Cargo writes the registry's name into lock files.
    for file in files().iter().filter(|file| !file.path.ends_with("Cargo.lock")) {
        for (number, line) in file.text.lines().enumerate() {
            let place = format!("{}:{}", file.path, number + 1);
            if let Some(home) = home(line) {
                complaints.push(format!("{place}: `{home}` is a home folder: use a relative path"));
            }
            for host in REGISTRIES.map(|halves| halves.concat()) {
                if line.contains(&host) {
                    complaints
                        .push(format!("{place}: `{host}` is a registry's host: name the package alone"));
                }
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn architecture_md_names_every_crate() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there");
    let complaints: Vec<_> = folders()
        .iter()
        .filter(|folder| !page.contains(&format!("`{folder}`")))
        .map(|folder| format!("ARCHITECTURE.md: does not name `{folder}`: add its row"))
        .collect();
    expect_none(&complaints);
}

/// Calls `judge` with the path and code of every line of every Rust file.
fn lines_of_code(judge: impl Fn(&str, &str) -> Option<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.is_rust() && file.is_in_crate()) {
        for (number, line) in code(&file.text).lines().enumerate() {
            if let Some(complaint) = judge(&file.path, line) {
                complaints.push(format!("{}:{}: {complaint}", file.path, number + 1));
            }
        }
    }
    complaints
}

/// A path in a user's home folder.
fn home(line: &str) -> Option<&str> {
    let in_name = |letter: char| letter.is_alphanumeric() || "_.-~".contains(letter);
    ["/home/", "/Users/", "/root/", "/work/"].into_iter().find_map(|parent| {
        line.match_indices(parent).find_map(|(at, _)| {
            let absolute = !line[..at].ends_with(|letter| in_name(letter) || letter == '}');
            let owner = line[at + parent.len()..].split(|letter| !in_name(letter)).next()?;
            let end = at + parent.len() + owner.len();
            (absolute && !owner.is_empty() && !MADE_UP.contains(&owner)).then(|| &line[at..end])
        })
    })
}

#[test]
fn homes_are_told_from_other_paths() {
    let check = |line: &str, expected: Option<&str>| assert_eq!(home(line), expected, "{line}");
    let real = ["/root", "/.cargo"].concat();
    check(&format!("in `{real}/bin`"), Some(&real));
    check("/home/ada/.cache", None);
    check("https://example.org/work/home", None);
}
