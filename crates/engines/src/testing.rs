//! Helpers of unit tests: a card for a config, and reference code in f64.

use std::collections::BTreeMap;

use sconce_core::card::{GenerationCard, ModelCard, Pooling, PoolingMode, Task};
use sconce_core::head::OutputHead;
use sconce_core::sourced::Sourced;
use serde_json::Value;

use crate::families;

/// The card of an embedding model with this config, mean pooling and no steps.
pub(crate) fn card(config: Value) -> ModelCard {
    let by = "test";
    ModelCard {
        name: "test".to_owned(),
        architecture: Sourced::new(String::new(), by),
        task: Sourced::new(Task::Embed, by),
        sizes: Sourced::new(families::sizes(&config), by),
        config,
        max_length: Sourced::new(128, by),
        pooling: Sourced::new(Pooling { modes: vec![PoolingMode::Mean], include_prompt: true }, by),
        steps: Sourced::new(Vec::new(), by),
        head: OutputHead::default(),
        generation: GenerationCard::default(),
        prompts: Sourced::new(BTreeMap::new(), by),
        default_prompt: None,
        dimensions: None,
        weights: Vec::new(),
    }
}

/// Pooling by one mode in f64, over the rows after the first `skip`.
pub(crate) fn plain_pool(mode: PoolingMode, tokens: &[&[f32]], skip: usize) -> Vec<f64> {
    let rows = &tokens[skip..];
    let weighted = |weight: &dyn Fn(usize) -> f64| {
        let sum = |place: usize| {
            rows.iter().enumerate().map(|(at, row)| weight(at) * f64::from(row[place])).sum::<f64>()
        };
        (0..rows[0].len()).map(sum).collect()
    };
    let count = rows.len() as f64;
    let wide = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect();
    match mode {
        PoolingMode::Cls => wide(rows[0]),
        PoolingMode::LastToken => wide(rows[rows.len() - 1]),
        PoolingMode::Max => {
            let top = |place: usize| rows.iter().map(|row| f64::from(row[place])).max_by(f64::total_cmp);
            (0..rows[0].len()).map(|place| top(place).expect("a token")).collect()
        }
        PoolingMode::Mean => weighted(&|_| 1.0 / count),
        PoolingMode::MeanSqrtLen => weighted(&|_| 1.0 / count.sqrt()),
        PoolingMode::WeightedMean => {
            let total: f64 = (skip..tokens.len()).map(|place| (place + 1) as f64).sum();
            weighted(&|at| (at + skip + 1) as f64 / total)
        }
    }
}

/// The error function as a series in f64.
pub(crate) fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}
