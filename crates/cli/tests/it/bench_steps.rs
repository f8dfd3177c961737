//! `sconce bench` of a language model: prompt and decode steps, the plot, what is rejected.

use std::fs;

use sconce_testkit::chat_model;
use serde_json::{Value, json};

use crate::harness::{CommandOutput, Sandbox};

/// Benchmarks a tiny model on Native in f32, with more arguments.
fn run(sandbox: &Sandbox, more: &[&str]) -> CommandOutput {
    let folder = sandbox.file("model");
    fs::create_dir_all(&folder).expect("a folder");
    chat_model::write(&folder, 4096);
    let config = folder.join("config.json");
    let mut facts: Value = serde_json::from_slice(&fs::read(&config).expect("a file")).expect("JSON");
    facts["architectures"] = json!(["LlamaForCausalLM"]);
    fs::write(&config, facts.to_string()).expect("it is written");
    let model = sandbox.name("model");
    let fixed = ["bench", &model, "--engine", "native", "--dtype", "f32", "--rounds", "2"];
    sandbox.run(&[&fixed[..], more].concat())
}

#[test]
fn steps_are_measured_by_sequences_and_cached_tokens() {
    let sandbox = Sandbox::new();
    let plot = sandbox.name("a.svg");
    let more = ["--concurrency", "1,3", "--input-tokens", "24", "--json", "--plot", &plot];
    let json = run(&sandbox, &more).succeeds().json();
    assert_eq!((&json["prompt_tokens"], &json["rounds"]), (&24.into(), &2.into()));
    let measured = &json["placements"][0];
    assert_eq!(measured["placement"]["engine"], "native");
    assert!(measured["prompt_tokens_per_s"].as_f64() > Some(0.0), "{measured}");
    let cells = measured["decode"].as_array().expect("cells").iter();
    let cells: Vec<_> = cells
        .map(|cell| {
            assert!(cell["tokens_per_s"].as_f64() > Some(0.0) && cell["bandwidth_share"].is_f64(), "{cell}");
            (cell["sequences"].as_u64(), cell["cached_tokens"].as_u64())
        })
        .collect();
    assert_eq!(cells, [(1, 0), (3, 0), (1, 24), (3, 24)].map(|(n, cached)| (Some(n), Some(cached))));
    let svg = fs::read_to_string(plot).expect("a plot");
    for words in ["<svg", "decode after 24 tokens", "sequences", "native/cpu/f32", "</svg>"] {
        assert!(svg.contains(words), "{words}");
    }
}

#[test]
fn the_table_has_a_row_per_placement_and_explains_its_columns() {
    let sandbox = Sandbox::new();
    let text = run(&sandbox, &["--concurrency", "1,2", "--input-tokens", "8"]).succeeds().stdout;
    for words in ["prompt 8", "1 new", "2 after 8", "perplexity", "native", "GB/s of memory bandwidth"] {
        assert!(text.contains(words), "{words} in:\n{text}");
    }
}

#[test]
fn texts_are_not_used() {
    let sandbox = Sandbox::new();
    let texts = sandbox.with("texts.txt", "a text\n");
    run(&sandbox, &["--input", &texts]).fails(2, &["`--input`", "hint: `--task chat`"]);
}
