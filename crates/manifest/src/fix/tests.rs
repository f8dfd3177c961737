//! Fixes before and after: a manifest, a resolved tree, and the edited manifest.

use std::path::Path;

use super::*;
use crate::change::apply;
use crate::checks::check;

const MAC: &str = "aarch64-apple-darwin";
const LINUX: &str = "x86_64-unknown-linux-gnu";

/// The edited manifests and the hints. The first manifest is the workspace root's.
fn fixed(target: &str, tree: &str, texts: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
    let trees = [(target.to_owned(), Tree::parse(tree).expect("the tree is well formed"))];
    let mut manifests: Vec<Manifest> = Vec::new();
    for (folder, text) in texts {
        let file = Path::new(folder).join("Cargo.toml");
        let mut manifest = Manifest::parse(&file, text, manifests.first()).expect("it is a manifest");
        let here = |package: &&crate::tree::Package| package.source == Source::Path(folder.into());
        let packages = trees[0].1.packages.iter().filter(here);
        manifest.active = packages.flat_map(|package| package.features.iter().cloned()).collect();
        manifests.push(manifest);
    }
    let fix = fix(&check(&trees), &trees, &manifests);
    let of = |manifest: &Manifest| -> Vec<Change> {
        fix.changes.iter().filter(|change| change.file == manifest.file).cloned().collect()
    };
    let texts = manifests.iter().map(|manifest| apply(&manifest.text, &of(manifest))).collect();
    (texts, fix.hints.concat())
}

fn fixed_alone(target: &str, tree: &str, text: &str) -> String {
    let tree = format!("0|{tree}");
    fixed(target, &tree, &[("/app", text)]).0.concat()
}

const CORE_ONLY: &str = "|app v0.1.0 (/app)\n1|metal|candle-core v0.11.1\n1||candle-nn v0.11.1";

#[test]
fn a_line_in_a_platform_table_stays_in_that_table() {
    let before = "[dependencies]\ncandle-core = \"0.11.1\"\ncandle-nn = { version = \"0.11.1\", default-features = false }\n\
                  [target.'cfg(target_os = \"macos\")'.dependencies]\n\
                  candle-core = { version = \"0.11.1\", features = [\"metal\"] }\n";
    let after = format!(
        "{before}candle-nn = {{ version = \"0.11.1\", default-features = false, features = [\"metal\"] }}\n"
    );
    assert_eq!(fixed_alone(MAC, CORE_ONLY, before), after);
}

#[test]
fn an_active_feature_list_is_extended_with_the_names_of_the_project() {
    let before = "[dependencies]\ncandle = { package = \"candle-core\", version = \"0.11.1\" }\n\
                  nn = { package = \"candle-nn\", version = \"0.11.1\", optional = true }\n\
                  [features]\ngpu = [\n    \"candle/metal\", # fast\n]\nidle = [\"candle/metal\"]\n";
    let tree = "gpu,nn|app v0.1.0 (/app)\n1|metal|candle-core v0.11.1\n1||candle-nn v0.11.1";
    let after = before.replace("# fast\n", "# fast\n    \"nn?/metal\",\n");
    assert_eq!(fixed_alone(MAC, tree, before), after);
}

#[test]
fn a_crate_that_came_along_is_named_beside_candle_core() {
    let tree = "|app v0.1.0 (/app)\n1|metal|candle-core v0.11.1\n1||thing v1.0.0\n2||candle-nn v0.11.1";
    let before = "[dependencies.candle-core]\nversion = \"0.11.1\"\nfeatures = [\"metal\"]\n\n[lib]\n";
    let section = "\n[dependencies.candle-nn]\nversion = \"0.11.1\"\nfeatures = [\"metal\"]\n";
    assert_eq!(fixed_alone(MAC, tree, before), before.replace("\n\n[lib]", &format!("\n{section}\n[lib]")));

    let before =
        "[dependencies]\ncandle-core = { version = \"0.11\", features = [\"metal\"] }\nthing = \"1\"\n";
    let line = "candle-nn = { version = \"0.11.1\", features = [\"metal\"] }\n";
    assert_eq!(fixed_alone(MAC, tree, before), before.replace("thing", &format!("{line}thing")));
}

#[test]
fn an_optional_candle_core_gets_an_optional_companion() {
    let tree = "gpu|app v0.1.0 (/app)\n1|metal|candle-core v0.11.1\n1||thing v1.0.0\n2||candle-nn v0.11.1";
    let before = "[dependencies]\ncandle-core = { version = \"0.11.1\", optional = true, features = [\"metal\"] }\n\
                  [features]\ngpu = [\"dep:candle-core\"]\n";
    let after = before
        .replace("[features]\n", "candle-nn = { version = \"0.11.1\", optional = true }\n[features]\n")
        .replace("\"dep:candle-core\"", "\"dep:candle-core\", \"candle-nn/metal\"");
    assert_eq!(fixed_alone(MAC, tree, before), after);
}

#[test]
fn what_another_package_turned_on_is_answered_for_macos_alone() {
    let tree = "|app v0.1.0 (/app)\n1||thing v1.0.0\n2|metal|candle-core v0.11.1\n2||candle-nn v0.11.1";
    let before = "[dependencies]\nthing = \"1\"\n";
    let table = "\n[target.'cfg(target_os = \"macos\")'.dependencies]\n";
    let line = "candle-nn = { version = \"0.11.1\", features = [\"metal\"] }\n";
    assert_eq!(fixed_alone(MAC, tree, before), format!("{before}{table}{line}"));

    let cuda = tree.replace("metal", "cuda");
    let line = line.replace("metal", "cuda");
    assert_eq!(fixed_alone(LINUX, &cuda, before), before.replace("thing", &format!("{line}thing")));
}

#[test]
fn a_candle_from_git_is_named_by_its_repository() {
    let tree = "|app v0.1.0 (/app)\n1|cuda|candle-core v0.11.1 (https://example.org/candle?rev=abc#abcdef12)\n\
                1||thing v1.0.0\n2||candle-nn v0.11.1 (https://example.org/candle?rev=abc#abcdef12)";
    let before = "[dependencies]\ncandle-core = { git = \"https://example.org/candle\", rev = \"abc\", features = [\"cuda\"] }\n";
    let line = "candle-nn = { git = \"https://example.org/candle\", rev = \"abc\", features = [\"cuda\"] }\n";
    assert_eq!(fixed_alone(LINUX, tree, before), format!("{before}{line}"));
}

#[test]
fn a_shared_line_is_changed_where_it_stands() {
    let tree = "0||app v0.1.0 (/w/app)\n1|metal|candle-core v0.11.1\n1||candle-nn v0.11.1";
    let root = "[workspace.dependencies]\ncandle-core = { version = \"0.11.1\", features = [\"metal\"] }\ncandle-nn = \"0.11.1\"\n";
    let member = "[dependencies]\ncandle-core.workspace = true\ncandle-nn = { workspace = true }\n";
    let (after, _) = fixed(MAC, tree, &[("/w", root), ("/w/app", member)]);
    let line = "candle-nn = { version = \"0.11.1\", features = [\"metal\"] }";
    assert_eq!(after, [root.replace("candle-nn = \"0.11.1\"", line), member.to_owned()]);
}

#[test]
fn a_member_that_turns_it_on_itself_keeps_the_change_to_itself() {
    let tree = "0||app v0.1.0 (/w/app)\n1|metal|candle-core v0.11.1\n1||candle-nn v0.11.1";
    let root = "[workspace.dependencies]\ncandle-core = \"0.11.1\"\ncandle-nn = \"0.11.1\"\n";
    let member = "[dependencies]\ncandle-core = { workspace = true, features = [\"metal\"] }\ncandle-nn.workspace = true\n";
    let (after, _) = fixed(MAC, tree, &[("/w", root), ("/w/app", member)]);
    assert_eq!(after, [root.to_owned(), format!("{member}candle-nn.features = [\"metal\"]\n")]);
}

#[test]
fn version_and_feature_meet_in_one_line() {
    let tree = "|app v0.1.0 (/app)\n1|metal|candle-core v0.9.2\n1||candle-nn v0.9.2";
    let before = "[dependencies]\ncandle-core = { version = \"=0.9.2\", features = [\"metal\"] }\ncandle-nn = \"0.9\"\n";
    let after = "[dependencies]\ncandle-core = { version = \"=0.11.1\", features = [\"metal\"] }\n\
                 candle-nn = { version = \"0.11.1\", features = [\"metal\"] }\n";
    assert_eq!(fixed_alone(MAC, tree, before), after);
}

#[test]
fn of_two_names_for_one_crate_the_older_goes() {
    let tree = "0||app v0.1.0 (/app)\n1|mkl|candle-core v0.10.2\n1||candle-core v0.11.1";
    let before = "[dependencies]\nold = { package = \"candle-core\", version = \"0.10\", features = [\"mkl\"] }\n\
                  new = { package = \"candle-core\", version = \"0.11\" }\n";
    let (after, hints) = fixed(LINUX, tree, &[("/app", before)]);
    let line = "new = { package = \"candle-core\", version = \"0.11.1\", features = [\"mkl\"] }\n";
    assert_eq!(after.concat(), format!("[dependencies]\n{line}"));
    assert_eq!(hints, ["in the code, use `new` instead of: `old`"]);
}

#[test]
fn a_version_that_another_package_asks_for_is_named_with_that_package() {
    let tree = "0||app v0.1.0 (/app)\n1||candle-core v0.11.1\n1||thing v1.0.0\n2||candle-core v0.10.2";
    let before = "[dependencies]\ncandle-core = \"0.11.1\"\nthing = \"1\"\n";
    let (after, hints) = fixed(LINUX, tree, &[("/app", before)]);
    assert_eq!(after.concat(), before);
    assert!(hints[0].ends_with("`thing 1.0.0` requires: `candle-core 0.10.2`"), "{hints:?}");
}

#[test]
fn a_second_copy_that_a_dependency_brought_changes_no_line_of_the_project() {
    let own = "0||app v0.1.0 (/app)\n1|metal|candle-core v0.11.1\n1|metal|candle-nn v0.11.1\n\
               2|metal|candle-core v0.11.1 (*)\n1||thing v1.0.0\n2||candle-nn v0.10.2\n";
    let before = "[dependencies]\ncandle-core = { version = \"0.11.1\", features = [\"metal\"] }\n\
                  candle-nn = { version = \"0.11.1\", features = [\"metal\"] }\nthing = \"1\"\n";
    for (core, problems) in [("3||candle-core v0.10.2", 1), ("3|metal|candle-core v0.10.2", 3)] {
        let (after, hints) = fixed(MAC, &format!("{own}{core}"), &[("/app", before)]);
        assert_eq!(after.concat(), before, "{core}");
        assert!(hints.len() >= problems, "{hints:?}");
        assert!(hints.iter().all(|line| line.contains("look for a release of `thing`")), "{hints:?}");
    }
    let core_alone = "0||app v0.1.0 (/app)\n1|metal|candle-core v0.11.1\n1||thing v1.0.0\n\
                      2||candle-nn v0.10.2\n3||candle-core v0.10.2";
    let before =
        "[dependencies]\ncandle-core = { version = \"0.11.1\", features = [\"metal\"] }\nthing = \"1\"\n";
    assert_eq!(fixed(MAC, core_alone, &[("/app", before)]).0.concat(), before);
}

#[test]
fn an_idle_metal_is_answered_with_the_feature_that_turns_it_on() {
    let tree = "0||app v0.1.0 (/app)\n1||candle-core v0.11.1";
    let before = "[dependencies]\ncandle-core = \"0.11.1\"\n[features]\ngpu = [\"candle-core/metal\"]\n";
    let (after, hints) = fixed(MAC, tree, &[("/app", before)]);
    assert_eq!(after.concat(), before);
    assert_eq!(hints, ["to use Metal, build with `--features gpu`"]);
}
