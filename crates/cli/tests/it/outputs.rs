//! Output files are complete or unchanged, also after a failure or a signal.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::harness::Sandbox;
use crate::serve::signal;

/// The files in the folder `out` of a sandbox.
fn files(sandbox: &Sandbox) -> Vec<PathBuf> {
    fs::read_dir(sandbox.file("out")).expect("a folder").flatten().map(|entry| entry.path()).collect()
}

/// Interrupts `embed` after its first chunk of 512 texts, while it waits for more.
fn interrupted(name: &str, signal_name: &str, number: i32, before: Option<&str>) {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.file("out")).expect("a folder");
    let (file, path) = (sandbox.file(&format!("out/{name}")), sandbox.name(&format!("out/{name}")));
    if let Some(before) = before {
        fs::write(&file, before).expect("a file");
    }
    let mut child = sandbox.command(&["embed", "tiny-bert", "--dtype", "f32", "--output", &path]).spawn();
    let child = child.as_mut().expect("the command starts");
    let mut stdin = child.stdin.take().expect("an input");
    stdin.write_all("a text\n".repeat(600).as_bytes()).expect("texts are taken");
    // The first chunk is written to a file of another name.
    let grown = |path: &PathBuf| *path != file && fs::metadata(path).is_ok_and(|it| it.len() > 0);
    while !files(&sandbox).iter().any(grown) {
        assert!(child.try_wait().expect("it can be asked").is_none(), "it ended before it was interrupted");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_to_string(&file).ok().as_deref(), before, "the file is touched before the end");
    signal(child, signal_name);
    let status = child.wait().expect("it ends");
    assert_eq!(status.signal(), Some(number), "{status}");
    let mut words = String::new();
    let stderr = child.stderr.as_mut().expect("words");
    std::io::Read::read_to_string(stderr, &mut words).expect("text");
    let left = if before.is_some() { "is unchanged" } else { "was not written" };
    assert!(words.contains(&format!("interrupted after 512 texts: `{path}` {left}")), "{words}");
    assert_eq!(fs::read_to_string(&file).ok().as_deref(), before);
    assert_eq!(files(&sandbox).len(), usize::from(before.is_some()), "{:?}", files(&sandbox));
}

#[test]
fn an_interrupted_embed_leaves_the_old_file_and_says_how_far_it_got() {
    interrupted("x.npy", "INT", 2, Some("mine"));
    interrupted("x.jsonl", "TERM", 15, Some("mine"));
}

#[test]
fn an_interrupted_embed_leaves_no_half_of_a_new_file() {
    interrupted("x.npy", "TERM", 15, None);
    interrupted("x.jsonl", "INT", 2, None);
}

#[test]
fn a_command_that_fails_leaves_the_file_as_it_was() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.file("out")).expect("a folder");
    let bad = sandbox.with("bad.jsonl", "{\"text\": \"a\"}\n{\n");
    for name in ["x.npy", "x.jsonl", "x.svg"] {
        let file = sandbox.with(&format!("out/{name}"), "mine");
        let typed = match name {
            "x.svg" => ["bench", "tiny-bert", "--plot", &file, "--input", &bad],
            _ => ["embed", "tiny-bert", "--output", &file, "--input", &bad],
        };
        sandbox.run(&[&typed[..], &["--dtype", "f32"]].concat()).fails(2, &["at line 2"]);
        assert_eq!(fs::read_to_string(&file).expect("a file"), "mine", "{name}");
    }
    let sparse =
        ["embed", "tiny-bert-sparse", "--dtype", "f32", "--output", &sandbox.name("out/x.npy"), "text"];
    sandbox.run(&sparse).fails(2, &["`.npy` holds one vector per text"]);
    assert_eq!(fs::read_to_string(sandbox.file("out/x.npy")).expect("a file"), "mine");
    assert_eq!(files(&sandbox).len(), 3, "{:?}", files(&sandbox));
}

#[test]
fn with_an_output_file_the_summary_is_data() {
    let sandbox = Sandbox::new();
    let file = sandbox.name("x.npy");
    let typed = ["embed", "tiny-bert", "--dtype", "f32", "--prefix", "", "--json", "text", "--output", &file];
    let answer = sandbox.run(&typed).succeeds();
    assert_eq!(answer.json()["texts"], Value::from(1));
    assert_eq!(answer.stderr, "");
}
