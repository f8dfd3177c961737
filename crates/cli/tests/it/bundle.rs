//! Bundles: equal vectors, modified files are rejected by name, and no socket is opened.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use sconce_testkit::goldens;
use serde_json::Value;

use crate::harness::Sandbox;

const F32: [&str; 2] = ["--dtype", "f32"];

/// Makes a bundle of tiny-bert.
fn bundle(sandbox: &Sandbox) -> String {
    let file = sandbox.name("model.sconce");
    let made = sandbox.run(&[&["bundle", "tiny-bert", "-o", &file, "--json"], &F32[..]].concat()).succeeds();
    assert!(made.stderr.contains("as `tiny-bert`"), "{}", made.stderr);
    let list = made.json();
    let paths: Vec<&str> =
        list["files"].as_array().expect("files").iter().filter_map(|file| file["path"].as_str()).collect();
    for path in ["model/config.json", "model/model.safetensors", "model/tokenizer.json", "evidence/plan.json"]
    {
        assert!(paths.contains(&path), "{paths:?}");
    }
    file
}

/// The folder that a bundle was unpacked to.
fn unpacked(sandbox: &Sandbox) -> std::path::PathBuf {
    let all: Vec<_> = fs::read_dir(sandbox.file("home/bundles")).expect("a cache").flatten().collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].path()
}

#[test]
fn a_bundle_gives_the_vectors_of_its_model() {
    let sandbox = Sandbox::unproved();
    let file = bundle(&sandbox);
    let embed = |model: &str| {
        let answer = sandbox.run(&[&["embed", model, "a text", "--offline"], &F32[..]].concat()).succeeds();
        let line = answer.lines().remove(0);
        (line["embedding"].clone(), line["class"].clone())
    };
    let want = embed("tiny-bert");
    assert_eq!(embed(&file), want);
    let evidence: Value = {
        let path = unpacked(&sandbox).join("evidence/plan.json");
        serde_json::from_slice(&fs::read(path).expect("evidence")).expect("JSON")
    };
    assert!(evidence["plan"]["chosen"]["placement"]["engine"].is_string());
    assert!(evidence["hardware"]["cpu"]["cores"].as_u64() > Some(0));
    // The unpacked files are verified, and replaced if modified.
    let weights = unpacked(&sandbox).join("model/model.safetensors");
    let good = fs::read(&weights).expect("weights");
    fs::write(&weights, vec![0; good.len()]).expect("writes");
    assert_eq!(embed(&file), want);
    assert_eq!(fs::read(&weights).expect("weights"), good);
    // It contains its name, and every command accepts it.
    assert_eq!(
        sandbox.run(&["inspect", &file, "--json", "--offline"]).succeeds().json()["name"],
        file.as_str()
    );
    let again = sandbox.name("again.sconce");
    let answer = sandbox.run(&[&["bundle", &file, "-o", &again], &F32[..]].concat()).succeeds();
    assert!(answer.stderr.contains("as `tiny-bert`"), "{}", answer.stderr);
}

#[test]
fn prompts_of_the_catalogue_are_in_the_bundle_whatever_its_name() {
    let sandbox = Sandbox::unproved();
    // The files of a model of the catalogue, which have no prompts.
    let folder = sandbox.file("e5-small-v2");
    fs::create_dir(&folder).expect("a folder");
    goldens::copy("tiny-bert", &folder);
    fs::remove_file(folder.join("config_sentence_transformers.json")).expect("the golden has prompts");
    let (folder, file) = (folder.to_string_lossy().into_owned(), sandbox.name("mine.sconce"));
    sandbox.run(&[&["bundle", &folder, "-o", &file, "--name", "mine"], &F32[..]].concat()).succeeds();
    let embed = |model: &str, role: &str| {
        let arguments = [&["embed", model, "a text", "--offline", "--as", role], &F32[..]].concat();
        sandbox.run(&arguments).succeeds().lines().remove(0)["embedding"].clone()
    };
    for role in ["query", "document"] {
        assert_eq!(embed(&file, role), embed(&folder, role), "{role}");
    }
    assert_ne!(embed(&file, "query"), embed(&file, "document"));
}

#[test]
fn what_was_changed_is_refused_by_name() {
    let sandbox = Sandbox::unproved();
    let file = bundle(&sandbox);
    let whole = fs::read(&file).expect("a bundle");
    let embed = |bytes: &[u8], words: &[&str]| {
        let _ = fs::remove_dir_all(sandbox.file("home/bundles"));
        let file = sandbox.with("changed.sconce", bytes);
        sandbox.run(&["embed", &file, "a text", "--offline"]).fails(2, words);
        let left = fs::read_dir(sandbox.file("home/bundles")).into_iter().flatten().count();
        assert_eq!(left, 0, "nothing of it is kept");
    };
    let find = |text: &str| whole.windows(text.len()).position(|window| window == text.as_bytes());

    // One bit of the weights: somewhere in the middle of the largest file.
    let mut bytes = whole.clone();
    let weights = fs::read(goldens::folder("tiny-bert").join("model.safetensors")).expect("weights");
    let at =
        whole.windows(64).position(|window| *window == weights[weights.len() - 64..]).expect("the weights");
    bytes[at] ^= 1;
    embed(&bytes, &["was changed", "`model/model.safetensors`", "SHA-256", "hint: copy it again"]);

    // A modified list has another checksum, which the files do not match.
    let mut bytes = whole.clone();
    let at = find("\"sha256\": \"").expect("a checksum") + 11;
    bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
    embed(&bytes, &["was changed", "`model/", "SHA-256"]);

    embed(&whole[..whole.len() / 2], &["was changed", "truncated"]);
    embed(b"not a tar at all", &["is not a bundle", "hint: "]);
    embed(b"", &["is not a bundle"]);
    let version = find("\"sconce_bundle\": 1").expect("a version") + 17;
    let mut bytes = whole.clone();
    bytes[version] = b'7';
    embed(&bytes, &["has the layout 7", "hint: "]);
    sandbox.run(&["embed", &sandbox.name("none.sconce"), "a"]).fails(2, &["none.sconce", "can't be read"]);
}

/// Writes a tar with these entries and their types.
fn by_hand(path: &Path, entries: &[(&str, tar::EntryType, &[u8])]) {
    let mut tar = tar::Builder::new(File::create(path).expect("a file"));
    for (name, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        // The library rejects such names, so the bytes are written directly.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        if *kind != tar::EntryType::Regular {
            header.set_link_name("/etc/passwd").expect("a link");
        }
        header.set_cksum();
        tar.append(&header, *content).expect("appends");
    }
    tar.into_inner().expect("ends");
}

#[test]
fn a_bundle_writes_nowhere_else() {
    use tar::EntryType::{Link, Regular, Symlink};

    let sandbox = Sandbox::unproved();
    let list = |path: &str, bytes: usize| {
        // The SHA-256 of `abc`, or of nothing.
        let sha256 = if bytes == 3 {
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        } else {
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        };
        format!(
            r#"{{"sconce_bundle":1,"name":"x","made_by":"0","files":[{{"path":"{path}","bytes":{bytes},"sha256":"{sha256}","modified":0}}]}}"#
        )
    };
    let embed = |words: &[&str]| {
        sandbox.run(&["embed", &sandbox.name("x.sconce"), "a", "--offline"]).fails(2, words);
        assert!(!sandbox.file("escaped").exists() && !sandbox.file("home/escaped").exists());
    };
    for path in ["../../escaped", "model/../../../escaped", "/tmp/escaped", "model//x", "escaped", "model"] {
        let list = list(path, 3);
        by_hand(
            &sandbox.file("x.sconce"),
            &[("sconce-bundle.json", Regular, list.as_bytes()), (path, Regular, b"abc")],
        );
        embed(&["was changed", "leads elsewhere", path]);
    }
    let good = list("model/config.json", 3);
    let good = good.as_bytes();
    for kind in [Symlink, Link] {
        let empty = list("model/config.json", 0);
        by_hand(
            &sandbox.file("x.sconce"),
            &[("sconce-bundle.json", Regular, empty.as_bytes()), ("model/config.json", kind, b"")],
        );
        embed(&["`model/config.json`", "is not a plain file"]);
    }
    by_hand(
        &sandbox.file("x.sconce"),
        &[("sconce-bundle.json", Regular, good), ("../../escaped", Regular, b"abc")],
    );
    embed(&["`../../escaped`", "is in the place of `model/config.json`"]);
    by_hand(
        &sandbox.file("x.sconce"),
        &[
            ("sconce-bundle.json", Regular, good),
            ("model/config.json", Regular, b"abc"),
            ("model/more.json", Regular, b"abc"),
        ],
    );
    embed(&["`model/more.json`", "is not in the manifest"]);
    by_hand(&sandbox.file("x.sconce"), &[("sconce-bundle.json", Symlink, b"")]);
    embed(&["is not a bundle"]);
    let twice = String::from_utf8_lossy(good)
        .replace("}]}", r#"},{"path":"model/Config.json","bytes":0,"sha256":"","modified":0}]}"#);
    by_hand(
        &sandbox.file("x.sconce"),
        &[("sconce-bundle.json", Regular, twice.as_bytes()), ("model/config.json", Regular, b"abc")],
    );
    embed(&["names a file twice"]);
}

/// The socket system calls in a record of strace.
fn sockets(record: &str) -> Vec<&str> {
    let families = ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"];
    record.lines().filter(|line| families.iter().any(|family| line.contains(family))).collect()
}

#[test]
fn offline_a_bundle_opens_no_socket_to_anywhere() {
    let sandbox = Sandbox::unproved();
    let file = bundle(&sandbox);
    let strace = Command::new("strace").arg("-V").stdout(Stdio::null()).status();
    strace.expect("strace is installed: it shows which sockets are opened");
    let traced = |arguments: &[&str], record: &str| {
        let plain = sandbox.command(arguments);
        let mut command = Command::new("strace");
        command.args([
            "-f",
            "-qq",
            "-e",
            "trace=socket,connect,bind,sendto,sendmsg",
            "-o",
            &sandbox.name(record),
        ]);
        command.arg(plain.get_program()).args(plain.get_args());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
            .current_dir(goldens::folder(""))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let output = traced(&["embed", &file, "a text", "--offline"], "embed").output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let record = fs::read_to_string(sandbox.file("embed")).expect("a record");
    assert_eq!(sockets(&record), [""; 0], "embed");

    let mut child =
        traced(&["serve", &file, "--offline", "--port", "0"], "serve").spawn().expect("it starts");
    let mut words = BufReader::new(child.stderr.take().expect("its words"));
    let mut line = String::new();
    words.read_line(&mut line).expect("it says where it listens");
    let address: std::net::SocketAddr =
        line.trim().rsplit('/').next().expect("an address").parse().expect("an address");
    std::thread::spawn(move || words.read_to_string(&mut String::new()));
    crate::serve::wait_until_ready(address);
    let name = crate::serve::body(address, "/v1/models");
    assert!(name.contains(r#""id":"tiny-bert""#), "{name}");
    // The traced process, not strace.
    let served = fs::read_to_string(sandbox.file("serve")).expect("a record");
    let pid = served.split_whitespace().next().expect("a process").to_owned();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    assert!(child.wait().expect("it ends").success());
    let record = fs::read_to_string(sandbox.file("serve")).expect("a record");
    let mut sockets = sockets(&record);
    // Only the listener.
    sockets.retain(|line| !(line.contains("127.0.0.1") && line.contains("bind(")));
    assert!(sockets.len() == 1 && sockets[0].contains("socket(AF_INET, SOCK_STREAM"), "{sockets:#?}");
}
