//! Servers that download models from a hub on loopback.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use sconce_testkit::goldens;
use sconce_testkit::hub_server::{HubFile, HubModel, HubServer};
use sha2::{Digest, Sha256};

use crate::harness::Sandbox;
use crate::serve::{converse, serve_by, terminate};

/// A golden model on the hub.
pub(crate) fn hub_model(id: &str, golden: &str) -> HubModel {
    let mut files = Vec::new();
    collect(&goldens::folder(golden), "", &mut files);
    let commit = "0123456789abcdef0123456789abcdef01234567".to_owned();
    HubModel { id: id.to_owned(), revision: "main".to_owned(), commit, files }
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<HubFile>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_str().expect("a name"));
        if entry.path().is_dir() {
            collect(&entry.path(), &format!("{name}/"), files);
            continue;
        }
        let bytes = fs::read(entry.path()).expect("a file");
        let digits = |bytes: &[u8]| {
            Sha256::digest(bytes).iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"))
        };
        let sha256 = name.ends_with(".safetensors").then(|| digits(&bytes));
        files.push(HubFile { name, bytes, sha256 });
    }
}

#[test]
fn a_model_is_loaded_while_another_is_fetched() {
    let sandbox = Sandbox::new();
    let hub = HubServer::start(vec![hub_model("owner/slow", "tiny-bert-rerank")]);
    // Longer than this test takes.
    hub.behave(|hub| hub.pause = Duration::from_secs(2));
    let mut command = sandbox.command(&["serve", "owner/slow", "tiny-bert", "--port", "0"]);
    command.env("HF_ENDPOINT", hub.endpoint()).stdin(Stdio::null());
    let mut served = serve_by(&mut command);
    let body = r#"{"input": "a", "model": "tiny-bert"}"#;
    let began = Instant::now();
    while converse(served.address, "POST", "/v1/embeddings", &[("prefer", "wait=1")], body).0 != 200 {
        assert!(began.elapsed() < Duration::from_mins(2), "it waits for the other");
        thread::sleep(Duration::from_millis(20));
    }
    let (status, startup) = converse(served.address, "GET", "/startupz", &[], "");
    let startup: serde_json::Value = serde_json::from_str(&startup).expect("JSON");
    let phases = ["owner/slow", "tiny-bert"].map(|name| startup["models"][name]["phase"].clone());
    assert!(
        status == 503 && ["loading", "downloading"].contains(&phases[0].as_str().unwrap_or("")),
        "{startup}"
    );
    assert_eq!(phases[1], "ready");
    let (status, ready) = converse(served.address, "GET", "/readyz", &[], "");
    assert!(status == 503 && ready.contains(r#""not_ready":["owner/slow"]"#), "{ready}");
    terminate(&served.child);
    assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
}
