//! Several real models in one process, within a memory limit that is too small for all of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use sconce::{Dtype, EngineId, Model, PoolingMode, Runtime};
use sconce_testkit::parts;
use serde_json::{Value, json};

use crate::harness::Sandbox;
use crate::serve::{Served, converse, serve_with, terminate, wait_until_ready};

const CLIENTS: usize = 8;
const REQUESTS: usize = 160;
/// The same weights with three poolings, so that a response of the wrong model shows.
const MODELS: [(&str, PoolingMode); 3] =
    [("one", PoolingMode::Mean), ("two", PoolingMode::Cls), ("three", PoolingMode::Max)];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("the model is there").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

fn settings(sandbox: &Sandbox, names: &[(&str, PoolingMode)], megabytes: u64) -> String {
    let mut text = format!(
        "port = 0\noffline = true\nengine = \"native\"\ndtype = \"f32\"\nmemory_limit = {megabytes}\n\
         queue_seconds = 60\n"
    );
    for (name, pooling) in names {
        let folder = sandbox.name(name);
        let _ = write!(
            text,
            "[models.{name}]\nsource = \"{folder}\"\npooling = \"{}\"\nload = \"demand\"\n",
            pooling.name()
        );
    }
    text
}

fn embed(address: SocketAddr, model: &str, text: &str) -> (u16, Value) {
    let body = json!({ "input": text, "model": model }).to_string();
    let (status, answer) = converse(address, "POST", "/v1/embeddings", &[("prefer", "wait=60")], &body);
    (status, serde_json::from_str(&answer).unwrap_or_default())
}

fn report(address: SocketAddr) -> Value {
    serde_json::from_str(&converse(address, "GET", "/v1/report", &[], "").1).expect("a report")
}

fn resident_memory(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|count| count.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn end(mut served: Served) {
    terminate(&served.child);
    assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn three_models_take_turns_in_memory_that_holds_two() {
    let part = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/parts/minilm");
    assert!(part.is_dir(), "no MiniLM in `target/parts`: fetch it with `scripts/parts minilm-trio`");
    let sandbox = Sandbox::unproved();
    for (name, _) in MODELS {
        copy(&part, &sandbox.file(name));
    }
    // Memory of one model, to set a limit that fits two models and not three.
    let file = sandbox.with("one.toml", settings(&sandbox, &MODELS[..1], 0));
    let served = serve_with(&sandbox, &["--config", &file]);
    wait_until_ready(served.address);
    assert_eq!(embed(served.address, "one", "a text").0, 200);
    let told = report(served.address);
    let measured = &told["models"][0]["memory"]["measured"];
    let [resident, peak] = ["resident", "peak"].map(|kind| measured[kind].as_u64().expect("bytes"));
    let with_one = told["memory"]["resident"].as_u64().expect("bytes");
    end(served);
    let models = with_one + resident / 10 + peak.max(resident);
    assert!(with_one + 2 * resident > models, "{with_one} {resident} {peak}: three would fit");
    // An eighth of the limit is reserved for requests in flight.
    let limit = models * 8 / 7 / 1_000_000;

    let file = sandbox.with("three.toml", settings(&sandbox, &MODELS, limit));
    let served = serve_with(&sandbox, &["--config", &file]);
    wait_until_ready(served.address);
    let (address, process) = (served.address, served.child.id());
    let (most, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let watching = {
        let (most, done) = (Arc::clone(&most), Arc::clone(&done));
        thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(resident_memory(process), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            thread::spawn(move || {
                let ask = |number: usize| {
                    let (name, _) = MODELS[(number * 7 + number / 5 + client) % MODELS.len()];
                    let text = format!("request {number} of client {client} asks for {name}");
                    let (status, answer) = embed(address, name, &text);
                    assert_eq!((status, &answer["model"]), (200, &json!(name)), "{answer}");
                    let vector = answer["data"][0]["embedding"].clone();
                    (name, text, serde_json::from_value::<Vec<f32>>(vector).expect("a vector"))
                };
                (0..=REQUESTS / CLIENTS).map(ask).collect::<Vec<_>>()
            })
        })
        .collect();
    let answers: Vec<_> =
        clients.into_iter().flat_map(|client| client.join().expect("all are answered")).collect();
    done.store(true, Ordering::Relaxed);
    watching.join().expect("it watches");
    let unloaded = converse(address, "GET", "/metrics", &[], "").1;
    assert!(unloaded.contains("sconce_unloads_total{model=\"one\",reason=\"eviction\"}"), "{unloaded}");
    end(served);

    let runtime = Runtime::builder().home(sandbox.file("home")).offline(true).build();
    for (name, pooling) in MODELS {
        let folder: PathBuf = sandbox.file(name);
        let model = Model::builder(&folder.to_string_lossy()).runtime(&runtime).engine(EngineId::Native);
        let model = model.dtype(Dtype::F32).pooling(pooling).open().expect("it opens");
        let own: Vec<_> = answers.iter().filter(|(of, ..)| *of == name).collect();
        let texts: Vec<&str> = own.iter().map(|(_, text, _)| text.as_str()).collect();
        let want = model.embed(&texts).expect("it embeds");
        for ((_, text, vector), want) in own.iter().zip(&want) {
            assert!(sconce::cosine(vector, want) > 0.9999, "{text}");
        }
    }
    let records = fs::read_to_string(sandbox.file("home").join("load-memory.jsonl")).expect("recorded loads");
    let bytes = |line: &Value, of: &str, kind: &str| line[of][kind].as_u64().expect("bytes") as f64;
    let loads = records.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
    // Loads in their order. The models share weights and therefore one history.
    let mut histories: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for line in loads {
        let (estimated, measured) =
            (bytes(&line, "estimated", "resident"), bytes(&line, "measured", "resident"));
        histories.entry(line["identity"].to_string()).or_default().push((estimated, measured));
    }
    let most = most.load(Ordering::Relaxed) as f64 / 1e6;
    println!("{} answers, at most {most:.1} of {limit} MB, {} loads", answers.len(), records.lines().count());
    assert!(most <= limit as f64, "{most} of {limit} MB");
    let quantile = |mut values: Vec<f64>, share: f64| {
        values.sort_by(f64::total_cmp);
        values[(values.len() as f64 * share) as usize]
    };
    for history in histories.values() {
        // What a model takes is the median: a load that reuses pages of the allocator adds less resident memory, and a
        // batch beside it adds more.
        let footprint = quantile(history.iter().map(|&(_, measured)| measured).collect(), 0.5);
        let known = history.iter().skip(5 * MODELS.len());
        let errors: Vec<f64> = known.map(|&(estimated, _)| (estimated / footprint - 1.0).abs()).collect();
        println!("relative errors of the estimates: {errors:.3?} of {history:.0?}");
        assert!(quantile(errors.clone(), 0.5) < 0.1 && quantile(errors, 0.75) < 0.25);
    }
}

#[test]
fn a_quantised_graph_alone_is_shown_as_its_own_reference() {
    let sandbox = Sandbox::unproved();
    copy(&parts::folder("minilm"), &sandbox.file("model"));
    fs::remove_file(sandbox.file("model/model.safetensors")).expect("it has weights");
    fs::create_dir(sandbox.file("model/onnx")).expect("a folder");
    let graph = parts::folder("minilm-int8").join("model.onnx");
    fs::copy(graph, sandbox.file("model/onnx/model_quantized.onnx")).expect("a copy");
    let name = sandbox.name("model");
    let run = |rest: &[&str]| {
        let typed = [&["plan", &name][..], rest].concat();
        let output =
            sandbox.command(&typed).env("ORT_DYLIB_PATH", parts::onnxruntime()).output().expect("it runs");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let (code, page) = run(&[]);
    assert_eq!(code, Some(0), "{page}");
    for part in ["chosen  onnx    cpu     int8   onnx/model_quantized.onnx  itself", "bands are unknown"] {
        assert!(page.contains(part), "no `{part}` in:\n{page}");
    }
    assert!(!page.contains("exact"), "{page}");
    let (_, json) = run(&["--json"]);
    let plan: Value = serde_json::from_str(&json).expect("JSON");
    let chosen = &plan["plan"]["chosen"];
    assert_eq!((&chosen["band"], &chosen["is_own_reference"]), (&json!("unknown"), &json!(true)), "{chosen}");
    let (code, page) = run(&["--band", "exact"]);
    assert_eq!(code, Some(1), "{page}");
    assert!(page.contains("the reference is not f32") && page.contains("--band half"), "{page}");
}
