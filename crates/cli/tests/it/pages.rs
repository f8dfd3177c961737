//! What shells and `man` are told: the same that the command understands.

use std::fs;

use crate::scene::Scene;

/// The commands that `--help` lists beside itself.
fn commands(scene: &Scene) -> Vec<String> {
    let help = scene.run(&["--help"]).succeeds().data;
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // The rest of a long sentence stands farther in.
    let first = listed.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let words = first.filter_map(|line| line.split_whitespace().next());
    let names: Vec<String> = words.filter(|name| *name != "help").map(str::to_owned).collect();
    assert!(names.len() > 10, "{help}");
    names
}

#[test]
fn shells_are_told_every_command() {
    let scene = Scene::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = scene.run(&["completions", shell]).succeeds();
        assert_eq!(script.words, "");
        for command in commands(&scene) {
            assert!(script.data.contains(&command), "{shell} is not told of `{command}`");
        }
        assert!(script.data.contains("--api-key-file") || script.data.contains("api-key-file"), "{shell}");
    }
    scene.run(&["completions", "tcsh"]).fails(2, &["tcsh", "bash", "zsh"]);
}

#[test]
fn every_command_has_a_page() {
    let scene = Scene::new();
    let folder = scene.name("a/man");
    assert_eq!(scene.run(&["man", &folder]).succeeds().data, "");
    let page = |name: &str| {
        let path = scene.file("a/man").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    assert!(page("sconce.1").contains("sconce\\-serve(1)"));
    for command in commands(&scene) {
        assert!(page(&format!("sconce-{command}.1")).starts_with(".ie"), "{command}");
    }
    assert!(page("sconce-serve.1").contains("queue\\-seconds"));
    let taken = scene.with("taken", "a file");
    scene.run(&["man", &taken]).fails(2, &["can't be written", "taken"]);
}
