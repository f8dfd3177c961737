//! The tests and scripts in docs/trust.md exist.

use std::fs;

use crate::tree::{expect_none, root};

/// The text in backticks.
fn literals(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Parses `server bad::name` into a file and a function.
fn test(literal: &str) -> Option<(String, &str)> {
    let (package, path) = literal.split_once(' ')?;
    let (file, name) = path.rsplit_once("::")?;
    let is_name =
        name.len() > 1 && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    is_name.then(|| (format!("crates/{package}/tests/it/{file}.rs"), name))
}

#[test]
fn every_test_and_script_of_the_table_exists() {
    let page = fs::read_to_string(root().join("docs/trust.md")).expect("the page is there");
    let (mut complaints, mut tests) = (Vec::new(), 0);
    for literal in literals(&page) {
        if let Some((file, name)) = test(literal) {
            tests += 1;
            let text = fs::read_to_string(root().join(&file)).unwrap_or_default();
            if !text.contains(&format!("fn {name}(")) {
                complaints.push(format!("docs/trust.md: no test `{name}` in `{file}`"));
            }
            continue;
        }
        let is_script = literal.starts_with("benches/") || literal.starts_with("scripts/");
        if is_script && !root().join(literal).exists() {
            complaints.push(format!("docs/trust.md: no script `{literal}`"));
        }
    }
    expect_none(&complaints);
    assert!(tests > 30, "{tests} tests were found in the table");
    assert_eq!(page.lines().filter(|line| line.starts_with("| ")).count(), 23, "22 properties and a head");
}

#[test]
fn a_test_is_named_by_crate_file_and_function() {
    let expected = Some(("crates/runtime/tests/it/hub/faults.rs".to_owned(), "a_thing"));
    assert_eq!(test("runtime hub/faults::a_thing"), expected);
    assert_eq!(test("bash .ci/run"), None);
    assert_eq!(test("server bad::…"), None);
}
