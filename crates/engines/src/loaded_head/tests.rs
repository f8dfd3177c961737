//! Output heads against plain code in f64.

use sconce_core::card::{ModelCard, PoolingMode, Task};
use sconce_core::head::{Dense, DenseActivation};
use sconce_core::sourced::Sourced;
use sconce_testkit::compare::max_difference;
use serde_json::json;

use super::*;
use crate::testing::{card, plain_pool};
use crate::weights::GeneratedTensors;

const WIDTH: usize = 6;

fn dense(input: usize, output: usize, activation: DenseActivation) -> Step {
    let [weight, bias] = ["weight", "bias"].map(|part| vec![format!("head.{output}.{part}")]);
    Step::Dense(Dense { folder: None, weight, bias, selected_rows: None, input, output, activation })
}

fn model(task: Task, tokens: &[Step], steps: &[Step]) -> ModelCard {
    let mut card = card(json!({
        "model_type": "bert", "num_hidden_layers": 1, "hidden_size": WIDTH, "num_attention_heads": 1,
        "intermediate_size": 8, "vocab_size": 9, "max_position_embeddings": 40,
    }));
    card.task.value = task;
    card.steps.value = steps.to_vec();
    card.head.tokens = (!tokens.is_empty()).then(|| Sourced::new(tokens.to_vec(), "test"));
    card
}

fn load(card: &ModelCard) -> LoadedHead {
    LoadedHead::load(card, &ModelFiles::default(), &GeneratedTensors).expect("it loads")
}

fn hidden(tokens: usize) -> Vec<f32> {
    GeneratedTensors.read("embed hidden", &[tokens, WIDTH]).expect("generated")
}

fn sequences(lengths: &[usize], skip: usize) -> Vec<Sequence> {
    let mut start = 0;
    let sequence = |&length: &usize| {
        start += length;
        Sequence { start: start - length, length, skip, masked: 0 }
    };
    lengths.iter().map(sequence).collect()
}

fn norm(row: &[f64]) -> f64 {
    row.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Each sequence's vector, pooled in f64.
fn pooled(hidden: &[f32], width: usize, sequences: &[Sequence], mode: PoolingMode) -> Vec<Vec<f64>> {
    let rows: Vec<&[f32]> = hidden.chunks_exact(width).collect();
    let one = |s: &Sequence| plain_pool(mode, &rows[s.start..s.start + s.length], s.skip.min(s.length - 1));
    sequences.iter().map(one).collect()
}

#[test]
fn answers_are_normalized_and_carry_the_norm_that_they_had() {
    let hidden = hidden(10);
    for (steps, normalizes) in [(vec![], false), (vec![Step::Normalize], true)] {
        let mut card = model(Task::Embed, &[], &steps);
        card.pooling.value.include_prompt = false;
        let head = load(&card);
        let sequences = sequences(&[1, 3, 6], 2);
        let got = head.rows(&hidden, WIDTH, &sequences);
        let want = pooled(&hidden, WIDTH, &sequences, PoolingMode::Mean);
        assert!(max_difference(&got.norms, &want.iter().map(|row| norm(row)).collect::<Vec<_>>()) < 1e-6);
        for (row, want) in got.iter().zip(&want) {
            let length = if normalizes { norm(want) } else { 1.0 };
            let want: Vec<f64> = want.iter().map(|x| x / length).collect();
            assert!(max_difference(row, &want) < 1e-6, "{row:?} for {want:?}");
        }
    }
}

#[test]
fn a_prompt_counts_where_the_card_says_so() {
    let hidden = hidden(10);
    let mut card = model(Task::Embed, &[], &[]);
    card.pooling.value.include_prompt = true;
    let skipping = sequences(&[4, 6], 3);
    let got = load(&card).rows(&hidden, WIDTH, &skipping);
    let want = pooled(&hidden, WIDTH, &sequences(&[4, 6], 0), PoolingMode::Mean).concat();
    assert!(max_difference(&got.values, &want) < 1e-6);
}

#[test]
fn scores_carry_the_norm_of_what_their_head_was_given() {
    let hidden = hidden(5);
    let steps = [dense(WIDTH, 3, DenseActivation::Tanh)];
    let sequences = sequences(&[2, 3], 0);
    let given = pooled(&hidden, WIDTH, &sequences, PoolingMode::Mean);
    let given: Vec<f64> = given.iter().map(|row| norm(row)).collect();
    let scores = load(&model(Task::Rerank, &[], &steps)).rows(&hidden, WIDTH, &sequences);
    assert!(max_difference(&scores.norms, &given) < 1e-6, "{:?}", scores.norms);
    let vectors = load(&model(Task::Embed, &[], &steps)).rows(&hidden, WIDTH, &sequences);
    let own: Vec<f64> =
        vectors.iter().map(|row| norm(&row.iter().map(|&x| f64::from(x)).collect::<Vec<_>>())).collect();
    assert!(max_difference(&vectors.norms, &own) < 1e-6, "{:?}", vectors.norms);
    assert_eq!((scores.width, &scores.values), (3, &vectors.values));
}

#[test]
fn token_steps_are_taken_before_pooling_whether_rows_are_kept_or_not() {
    let hidden = hidden(9);
    let sequences = sequences(&[2, 7], 1);
    // ReLU is monotonic, so its rows are not stored; GELU is not.
    for activation in [DenseActivation::Relu, DenseActivation::Gelu] {
        let tokens = [dense(WIDTH, 4, DenseActivation::Tanh), dense(4, 5, activation)];
        let mut card = model(Task::Sparse, &tokens, &[Step::LogRelu(1)]);
        card.pooling.value.modes = vec![PoolingMode::Max];
        card.pooling.value.include_prompt = false;
        let head = load(&card);
        assert!(head.pooling().is_none(), "pooling alone is not enough");
        let projected = head.projected(hidden.clone(), WIDTH);
        assert_eq!(projected.width, 5);
        let got = head.rows(&hidden, WIDTH, &sequences);
        let want = pooled(&projected.values, 5, &sequences, PoolingMode::Max).concat();
        let want: Vec<f64> = want.into_iter().map(|x| x.max(0.0).ln_1p()).collect();
        assert!(max_difference(&got.values, &want) < 1e-6, "{activation}");
    }
}

#[test]
fn projected_tokens_are_normalized_where_the_card_says_so() {
    let hidden = hidden(3);
    let project = dense(WIDTH, 4, DenseActivation::Identity);
    let plain =
        load(&model(Task::Tokens, std::slice::from_ref(&project), &[])).projected(hidden.clone(), WIDTH);
    let unit = load(&model(Task::Tokens, &[project, Step::Normalize], &[])).projected(hidden, WIDTH);
    assert_eq!((plain.width, plain.iter().len(), unit.iter().len()), (4, 3, 3));
    for (plain, unit) in plain.iter().zip(unit.iter()) {
        let wide: Vec<f64> = plain.iter().map(|&x| f64::from(x)).collect();
        let want: Vec<f64> = wide.iter().map(|x| x / norm(&wide)).collect();
        assert!(max_difference(unit, &want) < 1e-6, "{unit:?} for {want:?}");
    }
}

#[test]
fn a_twin_shows_its_first_largest_mean_and_last_token() {
    let hidden = hidden(5);
    let sequences = sequences(&[5], 2);
    let got = LoadedHead::for_probes().rows(&hidden, WIDTH, &sequences);
    let rows: Vec<&[f32]> = hidden.chunks_exact(WIDTH).collect();
    let modes = [PoolingMode::Cls, PoolingMode::Max, PoolingMode::Mean, PoolingMode::LastToken];
    let want: Vec<f64> = modes.into_iter().flat_map(|mode| plain_pool(mode, &rows, 0)).collect();
    assert_eq!(got.width, 4 * WIDTH);
    assert!(max_difference(&got.values, &want) < 1e-6);
}
