//! Prompt flags: names, literal text, and queries.

use std::fs;

use sconce_testkit::goldens;
use serde_json::{Value, json};

use crate::harness::{CommandOutput, Sandbox};

const NAMES: [&str; 2] = ["--dtype", "f32"];

fn embed(sandbox: &Sandbox, model: &str, more: &[&str]) -> CommandOutput {
    sandbox.run(&[&["embed", model], &NAMES[..], more].concat())
}

fn vector(answer: CommandOutput) -> Value {
    answer.succeeds().lines()[0]["embedding"].clone()
}

/// A copy of a model with other prompts.
fn with_prompts(sandbox: &Sandbox, prompts: &Value, default: &Value) -> String {
    let folder = goldens::copy("tiny-bert", &sandbox.file("model"));
    let text = json!({ "prompts": prompts, "default_prompt_name": default }).to_string();
    fs::write(folder.join("config_sentence_transformers.json"), text).expect("a file can be written");
    sandbox.name("model")
}

#[test]
fn a_prompt_is_one_of_the_models_and_a_prefix_is_literal_text() {
    let sandbox = Sandbox::new();
    let written = vector(embed(&sandbox, "tiny-bert", &["query: text"]));
    assert_eq!(vector(embed(&sandbox, "tiny-bert", &["--prompt", "query", "text"])), written);
    assert_eq!(vector(embed(&sandbox, "tiny-bert", &["--prefix", "query: ", "text"])), written);
    let words =
        ["no prompt `qeury`; it has: `passage`, `query`", "hint: did you mean `query`?", "--prefix TEXT"];
    embed(&sandbox, "tiny-bert", &["--prompt", "qeury", "text"]).fails(2, &words);
    embed(&sandbox, "tiny-distilbert", &["--prompt", "query", "text"])
        .fails(2, &["has no prompts", "hint: "]);
    for flags in [
        ["--prompt", "query", "--prefix", "query: "].as_slice(),
        &["--query", "--prefix", "a"],
        &["--as", "query", "--prompt", "query"],
        &["--as", "query", "--query"],
    ] {
        embed(&sandbox, "tiny-bert", &[flags, &["text"]].concat()).fails(2, &["cannot be used with"]);
    }
    let tokens = sandbox.run(&["embed", "tiny-bert-tokens-plain", "--dtype", "f32", "--prefix", "a", "text"]);
    tokens.fails(2, &["takes no prompt", "hint: ", "`--as query`"]);
}

#[test]
fn queries_use_the_models_query_prompt_or_print_a_note() {
    let sandbox = Sandbox::new();
    let written = vector(embed(&sandbox, "tiny-bert", &["query: text"]));
    let queried = embed(&sandbox, "tiny-bert", &["--query", "text"]);
    assert!(!queried.stderr.contains("note: "), "{}", queried.stderr);
    assert_eq!(vector(queried), written);

    let none = embed(&sandbox, "tiny-distilbert", &["--query", "text"]);
    assert!(none.stderr.contains("note: the model has no query prompt"), "{}", none.stderr);
    assert_eq!(vector(none), vector(embed(&sandbox, "tiny-distilbert", &["text"])));

    let model = with_prompts(&sandbox, &json!({ "clustering": "group: " }), &Value::Null);
    let words = ["no query prompt; its prompts: `clustering`", "hint: choose one with `--prompt NAME`"];
    embed(&sandbox, &model, &["--query", "text"]).fails(2, &words);
    let model = with_prompts(&sandbox, &json!({ "s2p_query": "query: ", "other": "x" }), &json!("other"));
    assert_eq!(vector(embed(&sandbox, &model, &["--query", "text"])), written);
    let plain = vector(embed(&sandbox, "tiny-bert", &["text"]));
    assert_eq!(vector(embed(&sandbox, &model, &["--prefix", "", "text"])), plain);
    assert_ne!(vector(embed(&sandbox, &model, &["text"])), plain);
}

#[test]
fn similarity_takes_prompts_for_both_sides() {
    let sandbox = Sandbox::new();
    let score = |more: &[&str]| {
        let typed = ["similarity", "tiny-bert", "--dtype", "f32", "--json"];
        let answer = sandbox.run(&[&typed[..], more].concat()).succeeds().json();
        answer["others"][0]["score"].as_f64().expect("a score")
    };
    let near = |a: f64, b: f64| (a - b).abs() < 1e-5;
    let written = score(&["query: a lamp", "passage: the boat"]);
    assert!(near(score(&["--query", "a lamp", "the boat"]), written));
    let written = score(&["query: a lamp", "query: the boat"]);
    assert!(near(score(&["--prompt", "query", "a lamp", "the boat"]), written));
    assert!(near(score(&["--prefix", "query: ", "a lamp", "the boat"]), written));
    assert!(!near(score(&["a lamp", "the boat"]), written));
    sandbox
        .run(&["similarity", "tiny-bert", "--dtype", "f32", "--prompt", "none", "a", "b"])
        .fails(2, &["no prompt `none`"]);
}
