//! A real classifier of pairs, a graph of fixed length: its scores are those of Python's onnxruntime, and what follows
//! from a text is ranked above what contradicts it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use sconce::{ClassifyOptions, Model, RerankOptions, Runtime, Scoring, Task};
use sconce_core::engine::Engine;
use sconce_engines::onnx::OnnxEngine;
use sconce_testkit::{goldens, parts};
use serde::Deserialize;
use tempfile::TempDir;

#[derive(Deserialize)]
struct Reference {
    threes: Vec<Three>,
}

#[derive(Deserialize)]
struct Three {
    text: String,
    entailed: String,
    contradicted: String,
    scores: [[f64; 2]; 2],
}

fn threes() -> Vec<Three> {
    let text = fs::read(goldens::folder("pairs").join("reference.json")).expect("the golden is there");
    serde_json::from_slice::<Reference>(&text).expect("the golden is whole").threes
}

fn open(home: &TempDir, task: Option<Task>) -> Result<Model, sconce::Error> {
    let engine: Arc<dyn Engine> = Arc::new(OnnxEngine::with_library(2, &parts::onnxruntime()));
    // A case takes seconds, and minutes where others compute beside it.
    let runtime = Runtime::builder().engines(vec![engine]).home(home.path()).offline(true);
    let runtime = runtime.time_limit(Duration::from_mins(10)).build();
    let mut builder = Model::builder(&parts::folder("pairs").to_string_lossy()).runtime(&runtime);
    if let Some(task) = task {
        builder = builder.task(task);
    }
    builder.open()
}

#[test]
fn scores_are_those_of_the_library_in_python_and_what_follows_is_above_what_contradicts() {
    // The graph is proved once.
    let home = tempfile::tempdir().expect("a folder");
    let model = open(&home, None).expect("the part opens");
    let threes = threes();
    pairs_get_the_scores_of_the_library_in_python(&model, &threes);
    what_follows_is_ranked_above_what_contradicts(&model, &threes);
}

fn pairs_get_the_scores_of_the_library_in_python(model: &Model, threes: &[Three]) {
    let raw = ClassifyOptions { scoring: Some(Scoring::Raw), ..ClassifyOptions::default() };
    for three in threes.iter().step_by(3) {
        for (other, want) in [&three.entailed, &three.contradicted].into_iter().zip(three.scores) {
            let got = model.classify_pairs(&[(&three.text, other)], &raw).expect("scores");
            for label in &got.texts[0] {
                let want = want[usize::from(label.label == "entailment")];
                let off = (f64::from(label.score) - want).abs();
                assert!(off <= 1e-3, "{other}: {} {} for {want}", label.label, label.score);
            }
        }
    }
}

fn what_follows_is_ranked_above_what_contradicts(model: &Model, threes: &[Three]) {
    let by = |label: &str| RerankOptions {
        scoring: Some(Scoring::Raw),
        label: Some(label.to_owned()),
        ..RerankOptions::default()
    };
    let (mut above, mut apart) = (0, 0.0);
    for three in threes {
        let documents = [&three.contradicted, &three.entailed];
        let ranked = model.rerank(&three.text, &documents, &by("entailment")).expect("ranks").ranked;
        let score = |index| ranked.iter().find(|one| one.index == index).expect("all are there").score;
        above += usize::from(ranked[0].index == 1);
        apart += f64::from(score(1) - score(0)) / threes.len() as f64;
        // The graph quantises what it computes by the whole batch: what is nearly equal may change places.
        let alone = three.scores[0][1] - three.scores[1][1];
        assert!(alone.abs() < 1.0 || (alone > 0.0) == (ranked[0].index == 1), "{}: {ranked:?}", three.text);
    }
    println!("above in {above} of {}, by {apart:.2} on average", threes.len());
    assert!(2 * above > threes.len() && apart > 1.5, "{above} of {}, {apart}", threes.len());
    let other = model.rerank(&threes[0].text, &["a", "b"], &by("not_entailment")).expect("ranks").ranked;
    assert_eq!(other.len(), 2);
    let unknown = model.rerank("a", &["b"], &by("neutral")).expect_err("no such label").to_string();
    assert!(unknown.contains("`not_entailment`, `entailment`; requested: `neutral`"), "{unknown}");
    let unnamed = model.rerank("a", &["b"], &RerankOptions::default()).expect_err("which label?").to_string();
    assert!(unnamed.contains("`rerank --label`"), "{unnamed}");
}

#[test]
fn several_labels_make_no_reranker() {
    let home = tempfile::tempdir().expect("a folder");
    let refused = open(&home, Some(Task::Rerank)).err().expect("two scores").to_string();
    assert!(refused.contains("`config.json` has 2 labels") && refused.contains("--label"), "{refused}");
}
