//! Values derived from a card.

use std::collections::BTreeMap;

use sconce_core::card::{Format, GenerationCard, ModelCard, Pooling, PoolingMode, Sizes, Task, Weights};
use sconce_core::head::{Dense, DenseActivation, LayerNorm, OutputHead, Step, width_after};
use sconce_core::placement::Dtype;
use sconce_core::sourced::Sourced;

fn dense(output: usize) -> Step {
    Step::Dense(Dense {
        folder: None,
        weight: Vec::new(),
        bias: Vec::new(),
        selected_rows: None,
        input: 8,
        output,
        activation: DenseActivation::Identity,
    })
}

fn card(task: Task, modes: &[PoolingMode], tokens: &[Step], steps: &[Step]) -> ModelCard {
    let by = "a test";
    let weights = |name: &str| Weights {
        name: name.to_owned(),
        format: Format::Safetensors,
        stored: Dtype::F32,
        bytes: 1,
        values: None,
        identity: String::new(),
    };
    ModelCard {
        name: "a model".to_owned(),
        architecture: Sourced::new("bert".to_owned(), by),
        task: Sourced::new(task, by),
        sizes: Sourced::new(
            Sizes { layers: 1, hidden: 8, heads: 2, intermediate: 16, vocabulary: 10, positions: 10 },
            by,
        ),
        config: serde_json::Value::Null,
        max_length: Sourced::new(10, by),
        pooling: Sourced::new(Pooling { modes: modes.to_vec(), include_prompt: true }, by),
        steps: Sourced::new(steps.to_vec(), by),
        head: OutputHead {
            tokens: (!tokens.is_empty()).then(|| Sourced::new(tokens.to_vec(), by)),
            ..OutputHead::default()
        },
        generation: GenerationCard::default(),
        prompts: Sourced::new(BTreeMap::new(), by),
        default_prompt: None,
        dimensions: None,
        weights: vec![weights("a"), weights("b")],
    }
}

#[test]
fn the_width_of_an_answer_follows_pooling_and_steps() {
    let (mean, two) = (&[PoolingMode::Mean][..], &[PoolingMode::Mean, PoolingMode::Max][..]);
    let width = |task, modes, tokens: &[Step], steps: &[Step]| card(task, modes, tokens, steps).width();
    assert_eq!(width(Task::Embed, mean, &[], &[]), 8);
    assert_eq!(width(Task::Embed, two, &[], &[]), 16);
    assert_eq!(width(Task::Embed, two, &[], &[dense(5), Step::Normalize]), 5);
    assert_eq!(width(Task::Sparse, mean, &[dense(30)], &[Step::LogRelu(1)]), 30);
    assert_eq!(width(Task::Rerank, mean, &[], &[dense(8), dense(1)]), 1);
    // Token vectors are not pooled.
    assert_eq!(width(Task::Tokens, two, &[dense(3)], &[dense(5)]), 3);
    assert_eq!(card(Task::Embed, mean, &[dense(3)], &[]).token_width(), 3);
    assert_eq!(card(Task::Embed, mean, &[], &[]).token_steps(), []);
    let norm = Step::Norm(LayerNorm { name: Vec::new(), bias: true, epsilon: 0.0 });
    assert_eq!(width_after(7, &[norm, Step::LogRelu(2), Step::Normalize]), 7);
}

#[test]
fn vectors_are_normalized_where_the_last_step_says_so() {
    let mean = &[PoolingMode::Mean][..];
    let normalize = &[Step::Normalize][..];
    assert!(card(Task::Embed, mean, &[], normalize).normalizes());
    assert!(!card(Task::Embed, mean, &[], &[]).normalizes());
    assert!(!card(Task::Embed, mean, &[], &[Step::Normalize, dense(2)]).normalizes());
    assert!(!card(Task::Embed, mean, normalize, &[]).normalizes());
    assert!(card(Task::Tokens, mean, normalize, &[]).normalizes());
    assert!(!card(Task::Tokens, mean, &[dense(3)], normalize).normalizes());
}

#[test]
fn weights_are_found_by_name_and_sized_by_dtype() {
    let card = card(Task::Embed, &[PoolingMode::Mean], &[], &[]);
    assert_eq!(card.weights_named("b"), Some(&card.weights[1]));
    assert_eq!(card.weights_named("c"), None);
    let bytes = |stored, dtype| Weights { stored, bytes: 64, ..card.weights[0].clone() }.bytes_in(dtype);
    assert_eq!(bytes(Dtype::F32, Dtype::F32), 64);
    assert_eq!(bytes(Dtype::F32, Dtype::Bf16), 32);
    assert_eq!(bytes(Dtype::F16, Dtype::F32), 128);
    assert_eq!(bytes(Dtype::Int4, Dtype::Int8), 128);
    let mixed = Weights { stored: Dtype::Int4, bytes: 18, values: Some(32), ..card.weights[0].clone() };
    assert_eq!(mixed.bytes_in(Dtype::F32), 128);
}

#[test]
fn prompts_of_queries_and_documents_are_found_under_their_usual_names() {
    let with = |names: &[&str]| {
        let prompts: BTreeMap<String, String> =
            names.iter().map(|name| ((*name).to_owned(), format!("{name}: "))).collect();
        let plain = card(Task::Embed, &[PoolingMode::Mean], &[], &[]);
        ModelCard { prompts: Sourced::new(prompts, "a test"), ..plain }
    };
    let e5 = with(&["passage", "query"]);
    assert_eq!((e5.query_prompt(), e5.document_prompt()), (Some("query"), Some("passage")));
    let spelled = with(&["Retrieval-query", "retrieval.passage"]);
    assert_eq!(spelled.query_prompt(), Some("Retrieval-query"));
    assert_eq!(spelled.document_prompt(), Some("retrieval.passage"));
    let others = with(&["clustering", "my query"]);
    assert_eq!((others.query_prompt(), others.document_prompt()), (None, None));
}
