//! Prompts as a person types them: names that exist, literal text, and queries.

use std::fs;

use sconce_testkit::goldens;
use serde_json::{Value, json};

use crate::scene::{Answer, Scene};

const NAMES: [&str; 2] = ["--dtype", "f32"];

fn embed(scene: &Scene, model: &str, more: &[&str]) -> Answer {
    scene.run(&[&["embed", model], &NAMES[..], more].concat())
}

fn vector(answer: Answer) -> Value {
    answer.succeeds().lines()[0]["embedding"].clone()
}

/// A copy of a model with other prompts.
fn with_prompts(scene: &Scene, prompts: &Value, default: &Value) -> String {
    let folder = goldens::copy("tiny-bert", &scene.file("model"));
    let text = json!({ "prompts": prompts, "default_prompt_name": default }).to_string();
    fs::write(folder.join("config_sentence_transformers.json"), text).expect("a file can be written");
    scene.name("model")
}

#[test]
fn a_prompt_is_one_of_the_models_and_a_prefix_is_literal_text() {
    let scene = Scene::new();
    let written = vector(embed(&scene, "tiny-bert", &["query: text"]));
    assert_eq!(vector(embed(&scene, "tiny-bert", &["--prompt", "query", "text"])), written);
    assert_eq!(vector(embed(&scene, "tiny-bert", &["--prefix", "query: ", "text"])), written);
    let words =
        ["no prompt `qeury`; it has: `passage`, `query`", "hint: did you mean `query`?", "--prefix TEXT"];
    embed(&scene, "tiny-bert", &["--prompt", "qeury", "text"]).fails(2, &words);
    embed(&scene, "tiny-distilbert", &["--prompt", "query", "text"]).fails(2, &["has no prompts", "hint: "]);
    for flags in [["--prompt", "query", "--prefix", "query: "].as_slice(), &["--query", "--prefix", "a"]] {
        embed(&scene, "tiny-bert", &[flags, &["text"]].concat()).fails(2, &["cannot be used with"]);
    }
    let tokens = scene.run(&["embed", "tiny-bert-tokens-plain", "--dtype", "f32", "--prefix", "a", "text"]);
    tokens.fails(2, &["takes no prompt", "hint: `--query`"]);
}

#[test]
fn queries_get_the_models_query_prompt_or_are_told_that_there_is_none() {
    let scene = Scene::new();
    let written = vector(embed(&scene, "tiny-bert", &["query: text"]));
    let queried = embed(&scene, "tiny-bert", &["--query", "text"]);
    assert!(!queried.words.contains("note: "), "{}", queried.words);
    assert_eq!(vector(queried), written);

    let none = embed(&scene, "tiny-distilbert", &["--query", "text"]);
    assert!(none.words.contains("note: the model has no query prompt"), "{}", none.words);
    assert_eq!(vector(none), vector(embed(&scene, "tiny-distilbert", &["text"])));

    let model = with_prompts(&scene, &json!({ "clustering": "group: " }), &Value::Null);
    let words = ["no query prompt; its prompts: `clustering`", "hint: choose one with `--prompt NAME`"];
    embed(&scene, &model, &["--query", "text"]).fails(2, &words);
    let model = with_prompts(&scene, &json!({ "s2p_query": "query: ", "other": "x" }), &json!("other"));
    assert_eq!(vector(embed(&scene, &model, &["--query", "text"])), written);
    let plain = vector(embed(&scene, "tiny-bert", &["text"]));
    assert_eq!(vector(embed(&scene, &model, &["--prefix", "", "text"])), plain);
    assert_ne!(vector(embed(&scene, &model, &["text"])), plain);
}

#[test]
fn similarity_takes_prompts_for_both_sides() {
    let scene = Scene::new();
    let score = |more: &[&str]| {
        let typed = ["similarity", "tiny-bert", "--dtype", "f32", "--json"];
        let answer = scene.run(&[&typed[..], more].concat()).succeeds().json();
        answer["others"][0]["score"].as_f64().expect("a score")
    };
    let near = |a: f64, b: f64| (a - b).abs() < 1e-5;
    let written = score(&["query: a lamp", "passage: the boat"]);
    assert!(near(score(&["--query", "a lamp", "the boat"]), written));
    let written = score(&["query: a lamp", "query: the boat"]);
    assert!(near(score(&["--prompt", "query", "a lamp", "the boat"]), written));
    assert!(near(score(&["--prefix", "query: ", "a lamp", "the boat"]), written));
    assert!(!near(score(&["a lamp", "the boat"]), written));
    scene
        .run(&["similarity", "tiny-bert", "--dtype", "f32", "--prompt", "none", "a", "b"])
        .fails(2, &["no prompt `none`"]);
}
