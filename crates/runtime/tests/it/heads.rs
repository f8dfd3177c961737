//! Golden outputs of heads are sensitive: each single change must show.

use sconce::card::{self, Overrides};
use sconce_core::batch::{Batch, OutputKind};
use sconce_core::card::Task;
use sconce_core::placement::Dtype;
use sconce_testkit::goldens::{CLASSIFY, RERANK, SPARSE, WIDER_HEADS, apart};
use serde_json::{Value, json};

use crate::support::{Copy, INTERPRETERS, Tensor, load, load_on, read_tensors, tokens, write_tensors};
use crate::tasks::{worst_answer, worst_score, worst_weight};

/// What the goldens allow: a mistake that moves less than this would not be seen.
const TOLERANCE: f64 = 1e-4;

/// How far a golden's answers move when its folder is changed.
fn moved(name: &str, copy: &Copy) -> f64 {
    let spec = copy.read().expect("the copy is a model");
    let encoder = load(&spec, Dtype::F32);
    if WIDER_HEADS.contains(&name) {
        worst_answer(encoder.as_ref(), name)
    } else if SPARSE.contains(&name) {
        worst_weight(encoder.as_ref(), name)
    } else {
        worst_score(&spec, encoder.as_ref(), name)
    }
}

/// The tensors after the last layer.
fn is_of_head(tensor: &Tensor) -> bool {
    let heads = [
        "pooler.",
        "classifier",
        "pre_classifier",
        "cls.",
        "lm_head.",
        "vocab_",
        "head.",
        "decoder.",
        "score.",
    ];
    heads.iter().any(|head| tensor.name.contains(head))
}

#[test]
fn every_tensor_of_every_head_shows() {
    for name in RERANK.into_iter().chain(CLASSIFY).chain(SPARSE).chain(WIDER_HEADS) {
        let copy = Copy::of(name);
        let file = copy.file("model.safetensors");
        let tensors = read_tensors(&file);
        let head: Vec<&Tensor> = tensors.iter().filter(|tensor| is_of_head(tensor)).collect();
        let least = match name {
            // The words share the token table's weights, or there is one layer without a bias.
            "tiny-qwen3-words" => 0,
            "tiny-qwen3-rerank" => 1,
            "tiny-modernbert-sparse" => 3,
            _ => 4,
        };
        let names: Vec<&String> = head.iter().map(|tensor| &tensor.name).collect();
        assert!(names.len() >= least, "{name} has the head {names:?}");
        for tensor in head {
            let mut changed = tensors.clone();
            let one = changed.iter_mut().find(|other| other.name == tensor.name).expect("it was there");
            one.values.fill(if tensor.name.ends_with("orm.weight") { 1.0 } else { 0.0 });
            write_tensors(&file, &changed);
            let moved = moved(name, &copy);
            assert!(moved > TOLERANCE, "{name} without `{}` moves by {moved}", tensor.name);
        }
    }
}

#[test]
fn every_fact_of_a_config_that_a_head_depends_on_shows() {
    let with =
        |name: &str, key: &str, value: Value| moved(name, &Copy::of(name).setting("config.json", key, value));
    // The layer before the words has the activation of the config in some families, and always the GELU in others.
    for (name, key) in [("tiny-bert-sparse", "hidden_act"), ("tiny-distilbert-sparse", "activation")] {
        assert!(with(name, key, json!("gelu")) < TOLERANCE, "{name}");
        assert!(with(name, key, json!("relu")) > TOLERANCE, "{name}");
    }
    for name in ["tiny-bert-sparse", "tiny-roberta-sparse", "tiny-mpnet-sparse"] {
        assert!(with(name, "layer_norm_eps", json!(1e-12)) > TOLERANCE, "{name}");
    }
    let twice = Copy::of("tiny-bert-sparse").setting(
        "1_SpladePooling/config.json",
        "activation_function",
        json!("log1p_relu"),
    );
    assert!(moved("tiny-bert-sparse", &twice) > TOLERANCE);
}

#[test]
fn a_head_that_is_not_there_is_an_obstacle_and_never_a_guess() {
    let copy = Copy::of("tiny-bert-rerank");
    let file = copy.file("model.safetensors");
    let without: Vec<Tensor> =
        read_tensors(&file).into_iter().filter(|tensor| !tensor.name.starts_with("classifier")).collect();
    write_tensors(&file, &without);
    let spec = copy.read().expect("the copy is a model");
    for engine in INTERPRETERS {
        let Err(obstacle) = load_on(engine, &spec, Dtype::F32) else {
            panic!("{engine} loads a model without its head");
        };
        assert!(obstacle.to_string().contains("no tensor `classifier.weight`"), "{obstacle}");
    }
    let copy = Copy::of("tiny-bert-rerank").setting("config.json", "id2label", json!({ "0": "a", "1": "b" }));
    let spec = copy.read().expect("the copy is a model");
    let Err(obstacle) = load_on(INTERPRETERS[0], &spec, Dtype::F32) else {
        panic!("a head of another width loads");
    };
    assert!(obstacle.to_string().contains("has shape [1, 32], the config promises [2, 32]"), "{obstacle}");
}

#[test]
fn a_reranker_can_be_declared_by_an_override() {
    let name = "tiny-jina-rerank";
    let copy = Copy::of(name).json("config.json", |config| {
        config["architectures"] = json!(["JinaBertModel"]);
        config.as_object_mut().expect("an object").remove("id2label");
    });
    let overrides = Overrides { task: Some(Task::Rerank), ..Overrides::default() };
    let spec = card::read(name, copy.path(), &overrides).expect("the copy is a model");
    assert!(worst_answer(load(&spec, Dtype::F32).as_ref(), name) < TOLERANCE);
}

#[test]
fn a_model_without_a_known_head_says_so() {
    let copy = Copy::of("tiny-bert-rerank").setting("config.json", "model_type", json!("electra"));
    let error = copy.read().expect_err("no such head").to_string();
    assert!(
        error.contains("no description of the head for `rerank` in the architecture `electra`"),
        "{error}"
    );
    // Its classifier reads what the decoder makes of a text, and there is no decoder here.
    let copy =
        Copy::of("tiny-t5").setting("config.json", "architectures", json!(["T5ForSequenceClassification"]));
    std::fs::remove_file(copy.file("modules.json")).expect("it was there");
    let error = copy.read().expect_err("no such head").to_string();
    assert!(error.contains("no description of the head for `classify` in the architecture `t5`"), "{error}");
    let copy = Copy::of("tiny-bert-sparse").json("1_SpladePooling/config.json", |config| {
        config["pooling_strategy"] = json!("sum");
    });
    let error = copy.read().expect_err("not known").to_string();
    assert!(error.contains("`1_SpladePooling/config.json`: `pooling_strategy`"), "{error}");
}

#[test]
fn a_language_model_ranks_by_the_logits_of_two_tokens() {
    let modules = json!([
        { "idx": 0, "path": "", "type": "sentence_transformers.models.Transformer" },
        { "idx": 1, "path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.LogitScore" },
    ]);
    let copy = Copy::of("tiny-bert").setting("config.json", "architectures", json!(["Qwen3ForCausalLM"]));
    std::fs::create_dir(copy.file("1_LogitScore")).expect("a folder");
    let copy = copy
        .with("modules.json", modules.to_string())
        .with("1_LogitScore/config.json", json!({ "true_token_id": 7, "false_token_id": 9 }).to_string());
    let file = copy.file("model.safetensors");
    let mut tensors = read_tensors(&file);
    let words = Tensor {
        name: "lm_head.weight".to_owned(),
        shape: vec![256, 32],
        values: (0..256 * 32_u16).map(|n| f32::from(n % 97) / 97.0 - 0.4).collect(),
    };
    tensors.push(words.clone());
    write_tensors(&file, &tensors);
    let spec = copy.read().expect("the copy is a model");
    assert_eq!(spec.card.task.value, Task::Rerank);
    let template = spec.card.head.template.as_ref().expect("a template");
    assert_eq!((template.value.yes.as_str(), template.value.no.as_str()), ("yes", "no"));
    let ids: Vec<u32> = (20..60).collect();
    for engine in INTERPRETERS {
        let encoder = load_on(engine, &spec, Dtype::F32).expect("it loads");
        let hidden = tokens(encoder.as_ref(), &[&ids], None).remove(0);
        let last = &hidden[hidden.len() - 32..];
        let mut batch = Batch::new(OutputKind::Pooled);
        batch.push(&ids, &vec![0; ids.len()], 0);
        let got = encoder.encode(&batch).expect("it computes").into_rows().values;
        let score = |word: usize| -> f64 {
            let row = &words.values[word * 32..][..32];
            row.iter().zip(last).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
        };
        assert!(apart(&got, &[score(9), score(7)]) < TOLERANCE, "{engine}: {got:?}");
    }
}
