//! Shell completions and man pages cover every command.

use std::fs;

use crate::harness::Sandbox;

/// The commands that `--help` lists beside itself.
fn commands(sandbox: &Sandbox) -> Vec<String> {
    let help = sandbox.run(&["--help"]).succeeds().stdout;
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Wrapped lines are indented further.
    let first = listed.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let words = first.filter_map(|line| line.split_whitespace().next());
    let names: Vec<String> = words.filter(|name| *name != "help").map(str::to_owned).collect();
    assert!(names.len() > 10, "{help}");
    names
}

#[test]
fn shells_complete_every_command() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sandbox.run(&["completions", shell]).succeeds();
        assert_eq!(script.stderr, "");
        for command in commands(&sandbox) {
            assert!(script.stdout.contains(&command), "{shell} does not complete `{command}`");
        }
        assert!(
            script.stdout.contains("--api-key-file") || script.stdout.contains("api-key-file"),
            "{shell}"
        );
    }
    sandbox.run(&["completions", "tcsh"]).fails(2, &["tcsh", "bash", "zsh"]);
}

#[test]
fn every_command_has_a_man_page() {
    let sandbox = Sandbox::new();
    let folder = sandbox.name("a/man");
    assert_eq!(sandbox.run(&["man", &folder]).succeeds().stdout, "");
    let page = |name: &str| {
        let path = sandbox.file("a/man").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    assert!(page("sconce.1").contains("sconce\\-serve(1)"));
    for command in commands(&sandbox) {
        assert!(page(&format!("sconce-{command}.1")).starts_with(".ie"), "{command}");
    }
    assert!(page("sconce-serve.1").contains("queue\\-seconds"));
    let taken = sandbox.with("taken", "a file");
    sandbox.run(&["man", &taken]).fails(2, &["could not write man pages", "taken"]);
}
