//! Models by short name: listed, planned before they are downloaded, pulled, used and removed, with a hub on loopback.

use std::fs;
use std::process::Command;

use sconce_testkit::goldens;
use sconce_testkit::hub_server::{HubFile, HubModel, HubServer};
use serde_json::{Value, json};

use crate::harness::{CommandOutput, Sandbox};
use crate::hub::hub_model;

/// Bytes of the weights: far more than a header.
const WEIGHTS: usize = 4 << 20;

fn run(sandbox: &Sandbox, hub: &HubServer, arguments: &[&str]) -> CommandOutput {
    let mut command: Command = sandbox.command(arguments);
    let output = command.env("HF_ENDPOINT", hub.endpoint()).output().expect("the command ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let code = output.status.code().expect("an exit code");
    CommandOutput { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// `model` with more weights, in a tensor that nothing reads.
fn enlarged(mut model: HubModel) -> HubModel {
    let weights = model.files.iter_mut().find(|file| file.name == "model.safetensors").expect("weights");
    let length = u64::from_le_bytes(*weights.bytes.first_chunk().expect("a length")) as usize;
    let (header, data) = weights.bytes[8..].split_at(length);
    let mut header: Value = serde_json::from_slice(header).expect("a header");
    let end = data.len() + WEIGHTS;
    header["padding"] = json!({ "dtype": "U8", "shape": [WEIGHTS], "data_offsets": [data.len(), end] });
    let mut header = serde_json::to_vec(&header).expect("a header is JSON");
    header.resize(header.len().next_multiple_of(8), b' ');
    let start = (header.len() as u64).to_le_bytes();
    weights.bytes = [&start[..], &header, data, &vec![1; WEIGHTS]].concat();
    // The listing states it for large files only.
    weights.sha256 = None;
    model
}

fn e5() -> HubModel {
    let mut model = hub_model("intfloat/e5-small-v2", "tiny-bert");
    let left_out = ["config_sentence_transformers.json", "golden.safetensors", "texts.json"];
    model.files.retain(|file| !left_out.contains(&file.name.as_str()));
    model
}

#[test]
fn the_catalogue_is_listed_by_task() {
    let sandbox = Sandbox::new();
    let all = sandbox.run(&["models", "--recommended"]).succeeds().stdout;
    for name in ["minilm", "qwen3-embedding-4b", "bge-reranker-m3", "smollm2-135m", "22.7 M", "apache-2.0"] {
        assert!(all.contains(name), "no `{name}` in: {all}");
    }
    let chat = sandbox.run(&["models", "--recommended", "--task", "chat"]).succeeds().stdout;
    assert!(chat.contains("qwen3-0.6b") && !chat.contains("minilm"), "{chat}");
    let rerank = sandbox.run(&["models", "--recommended", "--task", "rerank", "--json"]).succeeds().json();
    let rerank = rerank.as_array().expect("a list");
    assert!(rerank.len() >= 5 && rerank.iter().all(|model| model["task"] == "rerank"), "{rerank:?}");
    assert!(rerank.iter().all(|model| model["cached"] == false));
    sandbox.run(&["models", "--task", "chat"]).fails(2, &["--recommended"]);
}

#[test]
fn a_plan_downloads_no_weights() {
    let sandbox = Sandbox::new();
    let model = enlarged(e5());
    let small = model.files.iter().filter(|file| file.name != "model.safetensors");
    let small = small.map(|file| file.bytes.len() as u64).sum::<u64>();
    let hub = HubServer::start(vec![model]);
    let typed = ["plan", "e5-small", "--engine", "native", "--device", "cpu"];
    let plan = run(&sandbox, &hub, &typed).succeeds();
    for part in [
        "intfloat/e5-small-v2: bert, ",
        "chosen",
        "the weights are not downloaded",
        "hint: `sconce pull e5-small` downloads 4",
    ] {
        assert!(plan.stdout.contains(part), "no `{part}` in: {}", plan.stdout);
    }
    // The header is read with one request of 256 KiB.
    assert!(
        (small..=small + (256 << 10)).contains(&hub.sent()),
        "{} bytes, {small} of them config",
        hub.sent()
    );
    let json = run(&sandbox, &hub, &[&typed[..], &["--json"]].concat()).succeeds().json();
    assert_eq!(json["local"], false);
    assert!(json["download_bytes"].as_u64().expect("a size") > WEIGHTS as u64, "{}", json["download_bytes"]);
    assert!(json["plan"]["chosen"].is_object(), "{}", json["plan"]);
    hub.forget();
    run(&sandbox, &hub, &["inspect", "e5-small"]).succeeds();
    assert!(hub.sent() < small + (256 << 10), "{} bytes", hub.sent());
    assert_eq!(run(&sandbox, &hub, &["models", "--json"]).succeeds().json(), json!([]), "nothing is kept");
}

#[test]
fn a_model_that_can_not_run_is_refused_before_its_weights_are_downloaded() {
    let sandbox = Sandbox::new();
    let mut model = enlarged(e5());
    let tokenizer = model.files.iter_mut().find(|file| file.name == "tokenizer.json").expect("a tokenizer");
    tokenizer.bytes = b"{}".to_vec();
    let hub = HubServer::start(vec![model]);
    let typed = ["plan", "e5-small", "--engine", "native", "--device", "cpu"];
    run(&sandbox, &hub, &typed).fails(2, &["tokenizer"]);
    assert!(hub.sent() < WEIGHTS as u64, "{} bytes", hub.sent());
}

#[test]
fn a_plan_of_a_quantized_model_reads_its_metadata_only() {
    let sandbox = Sandbox::new();
    let mut bytes = fs::read(goldens::folder("gguf").join("tiny-qwen3.gguf")).expect("the golden is there");
    bytes.resize(bytes.len() + 2 * WEIGHTS, 0);
    let files = vec![HubFile { name: "qwen3-Q8_0.gguf".into(), bytes, sha256: None }];
    let commit = "0123456789abcdef0123456789abcdef01234567".to_owned();
    let id = "Qwen/Qwen3-Embedding-4B-GGUF".to_owned();
    let hub = HubServer::start(vec![HubModel { id, revision: "main".to_owned(), commit, files }]);
    let shown =
        run(&sandbox, &hub, &["inspect", "qwen3-embedding-4b:Q8_0", "--normalize", "true"]).succeeds();
    assert!(hub.sent() <= 1 << 20, "{} bytes", hub.sent());
    for part in ["qwen3", "general.architecture", "catalogue", "Instruct: "] {
        assert!(shown.stdout.contains(part), "no `{part}` in: {}", shown.stdout);
    }
}

#[test]
fn a_model_is_pulled_used_listed_and_removed_by_its_short_name() {
    let sandbox = Sandbox::new();
    let hub = HubServer::start(vec![e5()]);
    let pulled = run(&sandbox, &hub, &["pull", "e5-small"]).succeeds();
    assert!(pulled.stderr.contains("intfloat/e5-small-v2 at "), "{}", pulled.stderr);
    let folder = pulled.stdout.trim();
    assert!(fs::metadata(folder).expect("the folder is there").is_dir(), "{folder}");

    let embed = |more: &[&str]| {
        let embedded =
            sandbox.run(&[&["embed", "e5-small", "--offline", "--dtype", "f32"], more].concat()).succeeds();
        (embedded.lines()[0]["embedding"].clone(), embedded.stderr)
    };
    let written = embed(&["--prefix", "", "query: text"]).0;
    let (query, told) = embed(&["--as", "query", "text"]);
    assert_eq!(query, written);
    assert!(!told.contains("warning: "), "{told}");
    assert_eq!(embed(&["--as", "document", "text"]).0, embed(&["--prefix", "", "passage: text"]).0);
    let (plain, told) = embed(&["text", "another"]);
    assert_ne!(plain, written);
    assert_eq!(told.matches("warning: no prompt: ").count(), 1, "{told}");
    assert!(told.contains("hint: add `--as query` or `--as document`"), "{told}");
    assert!(!embed(&["query: text"]).1.contains("warning: "), "the prompt is written");

    let listed = sandbox.run(&["models"]).succeeds().stdout;
    assert!(listed.contains("intfloat/e5-small-v2") && listed.contains("last use"), "{listed}");
    assert!(listed.contains("now") && !listed.contains("incomplete"), "{listed}");
    let json = sandbox.run(&["models", "--json"]).succeeds().json();
    assert!(json[0]["last_use"].as_u64().is_some_and(|used| used > 1_600_000_000), "{json}");
    let known = sandbox.run(&["models", "--recommended", "--json"]).succeeds().json();
    let e5 = known.as_array().expect("a list").iter().find(|model| model["name"] == "e5-small");
    assert_eq!(e5.expect("it is in the catalogue")["cached"], true);
    let inspected = sandbox.run(&["inspect", "e5-small", "--offline"]).succeeds().stdout;
    assert!(inspected.contains("catalogue"), "{inspected}");

    let removed = sandbox.run(&["rm", "e5-small"]).succeeds().stdout;
    assert!(removed.starts_with("removed intfloat/e5-small-v2: "), "{removed}");
    assert_eq!(sandbox.run(&["models", "--json"]).succeeds().json(), json!([]));
    sandbox.run(&["rm", "e5-small"]).fails(2, &["no files of `intfloat/e5-small-v2`", "hint: "]);
    let words = ["`intfloat/e5-small-v2`", "hint: ", "`sconce pull intfloat/e5-small-v2`"];
    sandbox.run(&["embed", "e5-small", "--offline", "text"]).fails(2, &words);
}

#[test]
fn an_unknown_name_offers_the_nearest() {
    let sandbox = Sandbox::new();
    for (typed, meant) in
        [("e5-smal", "e5-small"), ("qwen3-embeding-4b", "qwen3-embedding-4b"), ("minlm", "minilm")]
    {
        let words = [typed, &format!("hint: did you mean `{meant}`?")];
        sandbox.run(&["embed", typed, "--offline", "text"]).fails(2, &words);
    }
    let words = ["hint: did you mean `BAAI/bge-m3`?"];
    sandbox.run(&["embed", "BAAI/bge-m4", "--offline", "text"]).fails(2, &words);
    sandbox
        .run(&["pull", "tiny-bert"])
        .fails(2, &["`tiny-bert` is on this machine", "hint: `sconce plan tiny-bert`"]);
    sandbox.run(&["rm", "tiny-bert"]).fails(2, &["not in the hub's cache", "hint: `sconce models`"]);
}

#[test]
fn shells_complete_the_names_of_models() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.run(&["completions", shell]).succeeds().stdout;
        for name in ["minilm", "qwen3-embedding-4b", "smollm2-135m"] {
            assert!(script.contains(name), "{shell} does not complete `{name}`");
        }
    }
    let zsh = sandbox.run(&["completions", "zsh"]).succeeds().stdout;
    assert_eq!(zsh.matches("_sconce_models() {").count(), 1, "names and files are completed");
    assert!(zsh.contains(":_sconce_models'"), "a model is completed by the function");
    let fish = sandbox.run(&["completions", "fish"]).succeeds().stdout;
    let line = fish.lines().find(|line| line.contains("smollm2-135m")).expect("a line with names");
    for command in ["plan", "embed", "serve", "pull", "rm"] {
        assert!(line.contains(&format!(" {command} ")) || line.contains(&format!(" {command}\"")), "{line}");
    }
}
