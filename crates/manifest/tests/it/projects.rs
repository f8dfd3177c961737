//! Findings and fixes of whole projects.
//!
//! Every fix is applied from the JSON, examined again, and confirmed with `cargo tree`.

use std::fs;
use std::path::Path;
use std::process::Command;

use sconce_manifest::{Diagnosis, Error, Request, render};
use serde_json::Value;
use tempfile::TempDir;

const MAC: &str = "aarch64-apple-darwin";
const LINUX: &str = "x86_64-unknown-linux-gnu";

const HEAD: &str = "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";

/// A folder with manifests, each with an empty library.
fn project(manifests: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (place, text) in manifests {
        let place = folder.path().join(place);
        fs::create_dir_all(place.join("src")).expect("a source folder");
        fs::write(place.join("src/lib.rs"), "").expect("a library");
        fs::write(place.join("Cargo.toml"), text).expect("a manifest");
    }
    folder
}

/// A project of one package with a lock file. Without one, every examination would query the registry.
fn app(rest: &str) -> TempDir {
    let folder = app_without_lock(rest);
    lock(folder.path());
    folder
}

fn app_without_lock(rest: &str) -> TempDir {
    project(&[("", &format!("{HEAD}{rest}"))])
}

/// Writes a lock file with every version that these tests use. Cargo drops unused entries. Resolving them takes
/// seconds: the first test that needs the file leaves it for the others.
fn lock(folder: &Path) {
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).join("candle-versions.lock");
    if !shared.exists() {
        let mut lines = String::from("[dependencies]\n");
        for (number, version) in ["0.9.1", "0.10.2", "0.11.1"].into_iter().enumerate() {
            for package in ["candle-core", "candle-nn", "candle-transformers"] {
                let line = format!(
                    "{{ package = \"{package}\", version = \"{version}\", features = [\"metal\", \"cuda\"] }}"
                );
                lines.extend([package, &number.to_string(), " = ", &line, "\n"]);
            }
        }
        let all = app_without_lock(&lines);
        let mut command = Command::new("cargo");
        command.args(["generate-lockfile", "--quiet"]).current_dir(all.path());
        let output = command.output().expect("cargo starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let draft = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a draft");
        fs::copy(all.path().join("Cargo.lock"), draft.path()).expect("a lock file");
        draft.persist(&shared).expect("the draft can be renamed");
    }
    fs::copy(shared, folder.join("Cargo.lock")).expect("a lock file");
}

/// Diagnoses a project with cargo's options for target and features.
fn diagnose(folder: &Path, arguments: &[&str]) -> Result<Diagnosis, Error> {
    let mut request = Request { path: folder.to_owned(), ..Request::default() };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--target" => request.target = arguments.next().map(|target| (*target).to_owned()),
            "--features" => request.features.extend(arguments.next().map(|names| (*names).to_owned())),
            "--all-features" => request.all_features = true,
            other => panic!("unknown argument: {other}"),
        }
    }
    sconce_manifest::examine(&request)
}

/// The diagnosis as JSON.
fn examine(folder: &Path, arguments: &[&str]) -> Value {
    let diagnosis = diagnose(folder, arguments).expect("cargo resolves the project");
    let json = serde_json::to_value(&diagnosis).expect("JSON");
    assert_eq!(json["healthy"], diagnosis.is_healthy());
    json
}

fn errors(diagnosis: &Value) -> Vec<&str> {
    let findings = diagnosis["findings"].as_array().expect("a list of findings").iter();
    findings.filter(|it| it["severity"] == "error").filter_map(|it| it["code"].as_str()).collect()
}

fn notes(diagnosis: &Value) -> Vec<&str> {
    let findings = diagnosis["findings"].as_array().expect("a list of findings").iter();
    findings.filter(|it| it["severity"] == "note").filter_map(|it| it["code"].as_str()).collect()
}

/// Applies the changes from the last to the first, so that line numbers keep their meaning.
fn apply(diagnosis: &Value) {
    for change in diagnosis["changes"].as_array().expect("a list of changes").iter().rev() {
        let file = Path::new(change["file"].as_str().expect("a file"));
        let text = fs::read_to_string(file).expect("the file is there");
        let mut lines: Vec<&str> = text.lines().collect();
        let line = usize::try_from(change["line"].as_u64().expect("a line")).expect("a small number");
        let new: Vec<&str> = change["new"].as_str().map(|new| new.lines().collect()).unwrap_or_default();
        match change["old"].as_str() {
            Some(old) => {
                let place = line - 1..line - 1 + old.lines().count();
                assert_eq!(lines[place.clone()].join("\n"), old, "the old lines are where the change says");
                lines.splice(place, new);
            }
            None => {
                lines.splice(line..line, new);
            }
        }
        fs::write(file, lines.join("\n") + "\n").expect("the file can be written");
    }
}

fn cargo_tree(folder: &Path, target: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("cargo");
    command.args(["tree", "--edges", "normal,features", "--prefix", "none", "--target", target]);
    let output = command.args(arguments).current_dir(folder).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Applies the fix. The diagnosis must have verified it, and the project must be healthy afterwards.
fn fix(folder: &Path, diagnosis: &Value, arguments: &[&str]) {
    assert_eq!(diagnosis["verification"]["outcome"], "passed", "{diagnosis:#}");
    apply(diagnosis);
    let again = examine(folder, arguments);
    assert_eq!(errors(&again), [""; 0], "{again:#}");
    assert_eq!(again["changes"], Value::Array(Vec::new()));
}

#[test]
fn metal_in_candle_core_alone_is_found_and_fixed() {
    let folder = app("[dependencies]\ncandle-core = { version = \"0.9.1\", features = [\"metal\"] }\n\
                      candle-nn = \"0.9.1\"\ncandle-transformers = \"0.9.1\"\n");
    let folder = folder.path();
    let diagnosis = examine(folder, &["--target", MAC]);
    assert_eq!(errors(&diagnosis), ["feature-missing", "unreported-metal-errors"]);
    assert!(!cargo_tree(folder, MAC, &[]).contains("candle-nn feature \"metal\""));
    fix(folder, &diagnosis, &["--target", MAC]);
    let tree = cargo_tree(folder, MAC, &[]);
    assert!(tree.contains("candle-nn feature \"metal\""), "{tree}");
    assert!(tree.contains("candle-transformers feature \"metal\""), "{tree}");
}

#[test]
fn metal_on_every_crate_is_healthy_and_nothing_is_written() {
    let folder = app_without_lock(
        "[dependencies]\ncandle-core = { version = \"0.11.1\", features = [\"metal\"] }\n\
                      candle-nn = { version = \"0.11.1\", features = [\"metal\"] }\n",
    );
    let diagnosis = examine(folder.path(), &["--target", MAC]);
    assert_eq!((errors(&diagnosis), notes(&diagnosis)), (vec![], vec![]));
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).expect("a folder").flatten().map(|it| it.file_name()).collect();
    names.sort();
    assert_eq!(names, ["Cargo.toml", "src"]);
}

#[test]
fn without_a_target_the_host_and_the_mac_are_read() {
    let folder = app("[dependencies]\ncandle-core = { version = \"0.11.1\" }\n\
                      [target.'cfg(target_os = \"macos\")'.dependencies]\n\
                      candle-core = { version = \"0.11.1\", features = [\"metal\"] }\ncandle-nn = \"0.11.1\"\n");
    let diagnosis = examine(folder.path(), &[]);
    let targets = diagnosis["targets"].as_array().expect("a list of targets");
    assert!(
        targets.iter().any(|target| target.as_str().is_some_and(|it| it.contains("-apple-"))),
        "{targets:?}"
    );
    assert_eq!(errors(&diagnosis), ["feature-missing"]);
    fix(folder.path(), &diagnosis, &[]);
    assert!(!cargo_tree(folder.path(), LINUX, &[]).contains("feature \"metal\""));
}

#[test]
fn two_versions_under_two_names_are_found_and_one_goes() {
    let folder = app("[dependencies]\nold = { package = \"candle-core\", version = \"0.10.2\" }\n\
                      new = { package = \"candle-core\", version = \"0.11.1\" }\n");
    let diagnosis = examine(folder.path(), &["--target", LINUX]);
    assert_eq!(errors(&diagnosis), ["duplicate-versions"]);
    fix(folder.path(), &diagnosis, &["--target", LINUX]);
    let tree = cargo_tree(folder.path(), LINUX, &[]);
    assert!(tree.contains("candle-core v0.11.") && !tree.contains("candle-core v0.10."), "{tree}");
    // `cargo tree` accepts two names for one version, a build does not; `cargo metadata` judges as a build does.
    let mut command = Command::new("cargo");
    command
        .args(["metadata", "--format-version", "1", "--filter-platform", LINUX])
        .current_dir(folder.path());
    let output = command.output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn two_versions_by_an_old_candle_nn_are_made_one() {
    let folder = app("[dependencies]\ncandle-core = \"0.11.1\"\ncandle-nn = \"0.10.2\"\n");
    let diagnosis = examine(folder.path(), &["--target", LINUX]);
    assert_eq!(errors(&diagnosis), ["duplicate-versions"]);
    fix(folder.path(), &diagnosis, &["--target", LINUX]);
    assert!(!cargo_tree(folder.path(), LINUX, &[]).contains("candle-core v0.10."));
}

#[test]
fn cuda_in_candle_core_alone_is_the_same_trap() {
    let folder = app("[dependencies]\ncandle-core = { version = \"0.11.1\", features = [\"cuda\"] }\n\
                      candle-nn = { version = \"0.11.1\", default-features = false }\n");
    let diagnosis = examine(folder.path(), &["--target", LINUX]);
    assert_eq!(errors(&diagnosis), ["feature-missing"]);
    fix(folder.path(), &diagnosis, &["--target", LINUX]);
    assert!(cargo_tree(folder.path(), LINUX, &[]).contains("candle-nn feature \"cuda\""));
    let text = fs::read_to_string(folder.path().join("Cargo.toml")).expect("a manifest");
    assert!(
        text.contains("{ version = \"0.11.1\", default-features = false, features = [\"cuda\"] }"),
        "{text}"
    );
}

fn git(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.args([
        "-c",
        "user.name=sconce",
        "-c",
        "user.email=sconce@localhost",
        "-c",
        "commit.gpgsign=false",
    ]);
    let status = command.args(arguments).current_dir(folder).status().expect("git starts");
    assert!(status.success());
}

/// A repository that looks like Candle's.
fn candle_repository() -> TempDir {
    let package = |name: &str, rest: &str| {
        format!("[package]\nname = \"{name}\"\nversion = \"0.11.1\"\nedition = \"2021\"\n{rest}")
    };
    let nn = "[dependencies]\ncandle = { package = \"candle-core\", path = \"../candle-core\" }\n\
              [features]\nmetal = [\"candle/metal\"]\n";
    let folder = project(&[
        ("candle-core", &package("candle-core", "[features]\nmetal = []\n")),
        ("candle-nn", &package("candle-nn", nn)),
    ]);
    fs::write(folder.path().join("Cargo.toml"), "[workspace]\nresolver = \"2\"\nmembers = [\"candle-*\"]\n")
        .expect("a manifest");
    git(folder.path(), &["init", "--quiet"]);
    git(folder.path(), &["add", "--all"]);
    git(folder.path(), &["commit", "--quiet", "--message", "candle"]);
    folder
}

#[test]
fn git_and_registry_in_one_tree_are_found_and_unified() {
    let repository = candle_repository();
    let address = format!("file://{}", repository.path().display());
    let folder = app(&format!(
        "[dependencies]\ncandle-core = {{ git = \"{address}\", features = [\"metal\"] }}\ncandle-nn = \"0.11.1\"\n"
    ));
    let diagnosis = examine(folder.path(), &["--target", MAC]);
    assert_eq!(errors(&diagnosis), ["feature-missing", "duplicate-sources"]);
    fix(folder.path(), &diagnosis, &["--target", MAC]);
    let tree = cargo_tree(folder.path(), MAC, &[]);
    assert!(tree.contains(&format!("candle-nn v0.11.1 ({address}")), "{tree}");
    assert!(!tree.lines().any(|line| line == "candle-core v0.11.1"), "{tree}");
}

#[test]
fn a_feature_of_the_project_is_extended() {
    let folder = app("[dependencies]\ncandle-core = \"0.11.1\"\ncandle-nn = \"0.11.1\"\n\
                      [features]\ndefault = []\nmetal = [\n    \"candle-core/metal\",\n]\n");
    let diagnosis = examine(folder.path(), &["--target", MAC]);
    assert_eq!((errors(&diagnosis), notes(&diagnosis)), (vec![], vec!["accelerator-off"]));
    for arguments in
        [["--target", MAC, "--features", "metal"].as_slice(), &["--target", MAC, "--all-features"]]
    {
        assert_eq!(errors(&examine(folder.path(), arguments)), ["feature-missing"]);
    }
    let arguments = ["--target", MAC, "--features", "metal"];
    fix(folder.path(), &examine(folder.path(), &arguments), &arguments);
    // The tree hides what the command line turns on, unless it is read from the leaf.
    let tree = cargo_tree(folder.path(), MAC, &["--features", "metal", "--invert", "candle-nn"]);
    assert!(tree.contains("candle-nn feature \"metal\""), "{tree}");
    let text = fs::read_to_string(folder.path().join("Cargo.toml")).expect("a manifest");
    assert!(text.ends_with("metal = [\n    \"candle-core/metal\",\n    \"candle-nn/metal\",\n]\n"), "{text}");
}

#[test]
fn an_inherited_line_is_changed_in_the_workspace() {
    let root = "[workspace]\nresolver = \"2\"\nmembers = [\"crates/*\"]\n\n[workspace.dependencies]\n\
                candle-core = { version = \"0.11.1\", features = [\"metal\"] }\ncandle-nn = \"0.11.1\"\n";
    let member =
        format!("{HEAD}[dependencies]\ncandle-core.workspace = true\ncandle-nn = {{ workspace = true }}\n");
    let folder = project(&[("crates/app", &member)]);
    fs::write(folder.path().join("Cargo.toml"), root).expect("a manifest");
    lock(folder.path());
    let app = folder.path().join("crates/app/Cargo.toml");
    let diagnosis = examine(&app, &["--target", MAC]);
    assert_eq!(errors(&diagnosis), ["feature-missing"]);
    let change = &diagnosis["changes"][0];
    let workspace = fs::canonicalize(folder.path().join("Cargo.toml")).expect("a manifest");
    assert_eq!((change["file"].as_str(), change["line"].as_u64()), (workspace.to_str(), Some(7)));
    fix(&app, &diagnosis, &["--target", MAC]);
    assert!(cargo_tree(folder.path(), MAC, &[]).contains("candle-nn feature \"metal\""));
    assert!(!folder.path().join("crates/app/Cargo.lock").exists());
}

/// A repository with the package `helper`, which depends on candle-nn in this version.
fn helper(version: &str) -> TempDir {
    let helper = format!(
        "[package]\nname = \"helper\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
         [dependencies]\ncandle-nn = \"{version}\"\n"
    );
    let repository = project(&[("", &helper)]);
    git(repository.path(), &["init", "--quiet"]);
    git(repository.path(), &["add", "--all"]);
    git(repository.path(), &["commit", "--quiet", "--message", "helper"]);
    repository
}

#[test]
fn a_second_copy_is_attributed_to_its_dependent_and_is_one_error() {
    let repository = helper("0.10.2");
    let folder = app(&format!(
        "[dependencies]\ncandle-core = {{ version = \"0.11.1\", features = [\"metal\"] }}\n\
         candle-nn = {{ version = \"0.11.1\", features = [\"metal\"] }}\n\
         helper = {{ git = \"file://{}\" }}\n",
        repository.path().display()
    ));
    let diagnosis = examine(folder.path(), &["--target", MAC]);
    assert_eq!(errors(&diagnosis), ["duplicate-versions"], "{diagnosis:#}");
    let finding = &diagnosis["findings"][0];
    let message = finding["message"].as_str().expect("a message");
    assert!(message.contains("`candle-nn 0.10.2` from `registry` (for `helper 0.1.0`)"), "{message}");
    let hint = finding["hints"][0].as_str().expect("a hint");
    assert!(hint.starts_with("look for a release of `helper`"), "{hint}");
    assert_eq!(diagnosis["changes"], Value::Array(Vec::new()), "no line of the project is at fault");
}

#[test]
fn a_transitive_crate_gets_its_own_line() {
    let repository = helper("0.11.1");
    let folder = app(&format!(
        "[dependencies]\ncandle-core = {{ version = \"0.11.1\", features = [\"metal\"] }}\n\
         helper = {{ git = \"file://{}\" }}\n",
        repository.path().display()
    ));
    let diagnosis = examine(folder.path(), &["--target", MAC]);
    assert_eq!(errors(&diagnosis), ["feature-missing"]);
    assert_eq!(diagnosis["changes"][0]["old"], Value::Null);
    fix(folder.path(), &diagnosis, &["--target", MAC]);
    assert!(cargo_tree(folder.path(), MAC, &[]).contains("candle-nn feature \"metal\""));
}

#[test]
fn a_lock_file_is_honoured_and_left_as_it_is() {
    let folder =
        app_without_lock("[dependencies]\ncandle-core = { version = \"0.11\", features = [\"metal\"] }\n");
    let mut command = Command::new("cargo");
    command.args(["update", "--quiet", "candle-core", "--precise", "0.11.0"]).current_dir(folder.path());
    let output = command.output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let before = fs::read_to_string(folder.path().join("Cargo.lock")).expect("a lock file");
    let diagnosis = examine(folder.path(), &["--target", MAC]);
    assert_eq!(errors(&diagnosis), ["unreported-metal-errors"]);
    assert_eq!(diagnosis["verification"]["outcome"], "passed");
    assert_eq!(fs::read_to_string(folder.path().join("Cargo.lock")).expect("a lock file"), before);
}

#[test]
fn a_project_without_candle_is_healthy() {
    let folder = app("");
    let diagnosis = diagnose(folder.path(), &[]).expect("cargo resolves the project");
    assert!(diagnosis.is_healthy());
    let text = render(&diagnosis);
    assert!(text.contains("this project does not depend on Candle"), "{text}");
}

#[test]
fn the_text_shows_the_lines_to_change() {
    let folder = app("[dependencies]\ncandle-core = { version = \"0.11.1\", features = [\"metal\"] }\n\
                      candle-nn = \"0.11.1\"\n");
    let diagnosis = diagnose(folder.path(), &["--target", MAC]).expect("cargo resolves the project");
    assert!(!diagnosis.is_healthy());
    let text = render(&diagnosis);
    let block = "     7 - candle-nn = \"0.11.1\"\n       + candle-nn = { version = \"0.11.1\", features = [\"metal\"] }\n";
    assert!(text.contains(block), "{text}");
    assert!(text.contains("`no metal implementation for layer-norm`"), "{text}");
    assert!(text.contains("verified on a copy of the project: no errors remain"), "{text}");
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
        let error = diagnose(&folder.path().join(path), &[]).expect_err("no manifest").to_string();
        assert!(error.contains(sentence) && error.contains("hint: "), "{error}");
    }
}

#[test]
fn an_error_of_cargo_is_the_source_of_the_error() {
    let folder = app("");
    let error =
        diagnose(folder.path(), &["--target", LINUX, "--features", "absent"]).expect_err("no feature");
    assert!(error.to_string().contains(LINUX), "{error}");
    let source = std::error::Error::source(&error).expect("cargo's message").to_string();
    assert!(source.contains("does not contain this feature: absent"), "{source}");
}
