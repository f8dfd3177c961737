//! Commands of tasks other than embedding.

use std::fs;

use sconce_testkit::compare::largest;
use sconce_testkit::goldens::{self, Golden};
use sconce_testkit::parts;
use serde_json::{Value, json};

use crate::harness::{Sandbox, numbers};

const F32: [&str; 2] = ["--dtype", "f32"];

fn near(value: &Value, want: f64) -> bool {
    (value.as_f64().expect("a number") - want).abs() < 1e-3
}

#[test]
fn documents_are_ranked_in_a_table_and_in_json() {
    let sandbox = Sandbox::new();
    let documents = ["The lamp burned all night.", "A small boat.", "Bread, salt and apples."];
    let typed = ["rerank", "tiny-bert-rerank", "--query", "lamp"];
    let answer = sandbox.run(&[&typed[..], &F32, &["--json"], &documents].concat()).succeeds().json();
    let ranked = answer["ranked"].as_array().expect("a list");
    let scores: Vec<f64> = ranked.iter().map(|one| one["score"].as_f64().expect("a score")).collect();
    assert!(scores.windows(2).all(|two| two[0] >= two[1]) && scores.len() == 3, "{scores:?}");
    let first = ranked[0]["index"].as_u64().expect("an index") as usize;
    assert_eq!(ranked[0]["text"], documents[first]);
    assert_eq!(answer["account"]["placements"].as_array().map(Vec::len), Some(1));
    let table = sandbox.run_with(&[&typed[..], &F32, &["--top", "2"]].concat(), documents.join("\n"));
    let table = table.succeeds();
    assert_eq!(table.stdout.lines().count(), 3, "{}", table.stdout);
    assert!(table.stdout.contains(documents[first]), "{}", table.stdout);
    assert!(table.stderr.contains("3 texts"), "{}", table.stderr);
}

#[test]
fn texts_and_pairs_get_labels() {
    let sandbox = Sandbox::new();
    let golden = Golden::read("tiny-bert-classify", "golden.safetensors");
    let typed = ["classify", "tiny-bert-classify", "--raw", "--json"];
    let alone = "The engine reads a model from the disk and answers when it is asked.";
    let answer = sandbox.run(&[&typed[..], &F32, &[alone]].concat()).succeeds().json();
    let labels = answer["texts"][0]["labels"].as_array().expect("labels");
    let score =
        |name: &str| labels.iter().find(|label| label["label"] == name).expect("a label")["score"].clone();
    for (name, want) in ["contradiction", "entailment", "neutral"].iter().zip(golden.numbers("logits.alone"))
    {
        assert!(near(&score(name), *want), "{name}: {}", score(name));
    }
    let lines = "{\"text\": \"lamp\", \"pair\": \"The lamp in the window burned all night, and nobody came to put it out.\"}";
    let paired = sandbox.run_with(&[&typed[..], &F32].concat(), lines).succeeds().json();
    let best = paired["texts"][0]["labels"][0]["score"].clone();
    let want = largest(golden.rows("logits.pairs")[0].iter().copied());
    assert!(near(&best, want), "{best} {want}");
    let table =
        sandbox.run(&["classify", "tiny-bert-classify", "--dtype", "f32", "--top", "1", alone]).succeeds();
    assert_eq!(table.stdout.lines().count(), 2, "{}", table.stdout);
}

#[test]
fn embed_outputs_the_models_task() {
    let sandbox = Sandbox::new();
    let sparse = sandbox.run(&["embed", "tiny-bert-sparse", "--dtype", "f32", "lighthouse"]).succeeds();
    let sparse = &sparse.lines()[0]["sparse"];
    assert_eq!(numbers(&sparse["indices"]).len(), numbers(&sparse["values"]).len());
    assert!(numbers(&sparse["values"]).iter().all(|&value| value > 0.0));
    let tokens =
        sandbox.run(&["embed", "tiny-bert-tokens-plain", "--dtype", "f32", "--query", "lamp"]).succeeds();
    let golden = Golden::read("tiny-bert-tokens-plain", "golden.safetensors");
    let rows = tokens.lines()[0]["tokens"].as_array().expect("rows").clone();
    assert_eq!(rows.len(), golden.rows("query.0").len());
    let refused = sandbox.run(&["embed", "tiny-bert-rerank", "--dtype", "f32", "a"]);
    refused
        .fails(2, &["scores a document against a query, according to `config.json`", "hint: use `rerank`"]);
}

#[test]
fn similarity_scores_each_other_text() {
    let sandbox = Sandbox::new();
    let typed = ["similarity", "tiny-bert", "--dtype", "f32", "--json", "a lamp", "a lamp", "the boat"];
    let answer = sandbox.run(&typed).succeeds().json();
    assert!(near(&answer["others"][0]["score"], 1.0), "{answer}");
    assert!(answer["others"][1]["score"].as_f64().expect("a score") < 0.9999, "{answer}");
}

#[test]
fn inspect_prints_the_card_with_sources() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!(
        "inspect_rerank",
        sandbox.run(&["inspect", "tiny-roberta-rerank"]).succeeds().stdout
    );
    insta::assert_snapshot!(
        "inspect_sparse",
        sandbox.run(&["inspect", "tiny-bert-sparse"]).succeeds().stdout
    );
    insta::assert_snapshot!(
        "inspect_tokens",
        sandbox.run(&["inspect", "tiny-bert-tokens-filled"]).succeeds().stdout
    );
    insta::assert_snapshot!("inspect_embed", sandbox.run(&["inspect", "tiny-distilbert"]).succeeds().stdout);
    let card = sandbox.run(&["inspect", "tiny-bert-classify", "--json"]).succeeds().json();
    assert_eq!(card["head"]["labels"]["value"][1], "entailment");
    assert_eq!(card["head"]["labels"]["source"], "config.json");
}

#[test]
fn verify_compares_every_placement_with_a_reference() {
    let sandbox = Sandbox::new();
    let recipe = sandbox.run(&["verify", "tiny-bert"]);
    assert_eq!(recipe.code, 0);
    assert!(recipe.stdout.contains("SentenceTransformer(\"tiny-bert\""), "{}", recipe.stdout);
    let lines = sandbox.run(&["embed", "tiny-bert", "--dtype", "f32", "a lamp", "the boat"]).succeeds();
    let reference = sandbox.with("reference.jsonl", &lines.stdout);
    let typed = ["verify", "tiny-bert", "--engine", "candle", "--reference", &reference];
    let answer = sandbox.run(&[&typed[..], &["--json"]].concat()).succeeds().json();
    let placements = answer["placements"].as_array().expect("placements");
    assert_eq!(placements.len(), 3, "{answer}");
    assert!(placements.iter().all(|one| one["within_band"] == true), "{answer}");
    assert!(placements[0]["least_cosine"].as_f64().expect("a cosine") > 0.999, "{answer}");
    let spoiled = lines.stdout.replacen("[0.", "[9.", 1).replacen("[-0.", "[-9.", 1);
    assert_ne!(spoiled, lines.stdout);
    let spoiled = sandbox.with("spoiled.jsonl", spoiled);
    let answer = sandbox.run(&["verify", "tiny-bert", "--dtype", "f32", "--reference", &spoiled]);
    assert_eq!(answer.code, 1, "{} {}", answer.stdout, answer.stderr);
    assert!(answer.stdout.contains("FAIL"), "{}", answer.stdout);
}

#[test]
fn verify_names_a_file_whose_content_differs_from_its_hash() {
    let sandbox = Sandbox::unproved();
    goldens::copy("tiny-bert", &sandbox.file("model"));
    let model = sandbox.name("model");
    let lines = sandbox.run(&["embed", &model, "--engine", "candle", "--dtype", "f32", "a lamp"]).succeeds();
    let reference = sandbox.with("reference.jsonl", &lines.stdout);
    let typed = ["verify", &model, "--engine", "candle", "--dtype", "f32", "--reference", &reference];
    sandbox.run(&typed).succeeds();
    for entry in fs::read_dir(sandbox.file("home/contents")).expect("hashes are kept").flatten() {
        let record = fs::read_to_string(entry.path()).expect("a record");
        if record.contains("model.safetensors") {
            let at = record.find("\"sha256\":\"").expect("a hash") + "\"sha256\":\"".len();
            let forged = format!("{}{}{}", &record[..at], "0".repeat(64), &record[at + 64..]);
            fs::write(entry.path(), forged).expect("a record can be written");
        }
    }
    sandbox.run(&typed).fails(2, &["model.safetensors", "SHA-256", "hint: restore the file"]);
    sandbox.run(&typed).succeeds();
}

#[test]
fn verify_compares_scores_with_a_reference() {
    let sandbox = Sandbox::new();
    let recipe = sandbox.run(&["verify", "tiny-bert-rerank"]);
    assert_eq!(recipe.code, 0);
    assert!(recipe.stdout.contains("CrossEncoder(\"tiny-bert-rerank\""), "{}", recipe.stdout);
    for name in ["tiny-bert-rerank", "tiny-bert-classify"] {
        let golden = Golden::read(name, "golden.safetensors");
        let pairs = std::fs::read(goldens::folder(name).join("pairs.json")).expect("the golden has pairs");
        let pairs: Vec<(String, String)> = serde_json::from_slice(&pairs).expect("pairs");
        let lines = |sign: f64| -> String {
            let line = |((text, pair), scores): (&(String, String), &[f64])| {
                let scores: Vec<f64> = scores.iter().map(|score| sign * score).collect();
                json!({ "text": text, "pair": pair, "scores": scores }).to_string() + "\n"
            };
            pairs.iter().zip(golden.rows("logits.pairs")).map(line).collect()
        };
        let reference = sandbox.with("scores.jsonl", lines(1.0));
        let typed = ["verify", name, "--engine", "candle", "--json", "--reference"];
        let answer = sandbox.run(&[&typed[..], &[&reference]].concat()).succeeds().json();
        let placements = answer["placements"].as_array().expect("placements");
        assert!(placements.len() == 3 && placements.iter().all(|one| one["within_band"] == true), "{answer}");
        let exact = placements.iter().find(|one| one["placement"]["dtype"] == "f32").expect("f32 works");
        assert!(exact["max_difference"].as_f64().expect("a number") < 1e-4, "{answer}");
        let spoiled = sandbox.with("spoiled.jsonl", lines(-1.0));
        let answer = sandbox.run(&["verify", name, "--dtype", "f32", "--reference", &spoiled]);
        assert!(answer.code == 1 && answer.stdout.contains("FAIL"), "{} {}", answer.stdout, answer.stderr);
    }
    let alone = sandbox.with("alone.jsonl", "{\"text\": \"a\", \"scores\": [1]}\n");
    sandbox
        .run(&["verify", "tiny-bert-rerank", "--reference", &alone])
        .fails(2, &["the reference of a reranker needs pairs"]);
}

#[test]
fn a_reference_of_the_wrong_shape_is_rejected() {
    let sandbox = Sandbox::new();
    let short = sandbox.with("short.jsonl", "{\"text\": \"a\", \"embedding\": [1, 2]}\n");
    let answer = sandbox.run(&["verify", "tiny-bert", "--reference", &short]);
    answer.fails(2, &["the reference has 2 values per text, the model 32"]);
    let none = sandbox.with("none.jsonl", "{\"text\": \"a\"}\n");
    sandbox
        .run(&["verify", "tiny-bert", "--reference", &none])
        .fails(2, &["no field `embedding` or `scores` in text 1"]);
    sandbox.run(&["verify", "tiny-bert", "--reference", "a.csv"]).fails(2, &["`.jsonl`, `.npz` or `.npy`"]);
}

#[test]
fn a_real_classifier_ranks_what_follows_above_what_contradicts() {
    let sandbox = Sandbox::new();
    let model = parts::folder("pairs");
    let model = model.to_str().expect("a path that is text");
    let run = |arguments: &[&str]| {
        let mut command = sandbox.command(arguments);
        let output = command.env("ORT_DYLIB_PATH", parts::onnxruntime()).output().expect("the command runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("the data is JSON")
    };
    let (text, follows, contradicts) = (
        "Two children are swimming in the lake.",
        "Children are in the water.",
        "The children are asleep in bed.",
    );
    let typed = ["rerank", model, "--query", text, "--label", "entailment", "--json", contradicts, follows];
    let answer = run(&typed);
    assert_eq!((&answer["ranked"][0]["index"], &answer["ranked"][0]["text"]), (&1.into(), &follows.into()));
    let answer = run(&["classify", model, "--pair", follows, "--json", text]);
    assert_eq!(answer["texts"][0]["labels"][0]["label"], "entailment", "{answer}");
    let answer = run(&["classify", model, "--pair", contradicts, "--json", text]);
    assert_eq!(answer["texts"][0]["labels"][0]["label"], "not_entailment", "{answer}");
}
