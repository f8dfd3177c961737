//! Helpers for tests of generators: tiny decoders, sequences computed in steps, and the forward pass without a cache.

use sconce_core::batch::{Batch, CachedSequence, Output, OutputKind};
use sconce_core::engine::{Encoder, EngineError};
use sconce_core::generator::Generator;
use serde_json::json;

use crate::describe::describe;
use crate::description::Description;
use crate::testing::card;
use crate::weights::{GeneratedTensors, Tensors, seed, uniform};

const VOCABULARY: usize = 101;

pub(crate) fn description(model_type: &str) -> Description {
    let mut config = json!({
        "model_type": model_type, "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 160, "vocab_size": VOCABULARY,
        "max_position_embeddings": 512, "hidden_act": "silu", "rope_theta": 10000.0,
    });
    if model_type == "mistral" {
        config["sliding_window"] = json!(24);
    }
    describe(&card(config)).expect("the family is known")
}

pub(crate) fn tokens(count: usize, name: &str) -> Vec<u32> {
    let mut state = seed(name);
    (0..count).map(|_| ((uniform(&mut state) + 1.0) * 0.5 * VOCABULARY as f32) as u32 % 101).collect()
}

pub(crate) fn rows(output: Output) -> Vec<Vec<f32>> {
    output.into_rows().iter().map(<[f32]>::to_vec).collect()
}

/// Logits of all `ids` by the forward pass without a cache, in f64.
pub(crate) fn uncached(d: &Description, encoder: &dyn Encoder, ids: &[u32]) -> Vec<Vec<f64>> {
    let mut batch = Batch::new(OutputKind::Tokens);
    batch.push(ids, &vec![0; ids.len()], 0);
    let matrix = GeneratedTensors.read("lm_head.weight", &[d.vocabulary, d.hidden]).expect("it is generated");
    let hidden = rows(encoder.encode(&batch).expect("the batch is well formed"));
    let logit = |state: &[f32], row: &[f32]| {
        state.iter().zip(row).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>()
    };
    hidden.iter().map(|state| matrix.chunks(d.hidden).map(|row| logit(state, row)).collect()).collect()
}

/// A sequence that is computed in steps.
pub(crate) struct Stepped {
    pub(crate) ids: Vec<u32>,
    pub(crate) blocks: Vec<u32>,
    pub(crate) done: usize,
    /// Length of its prompt: all tokens, unless a test says otherwise.
    pub(crate) prompt: usize,
    pub(crate) logits: Vec<Vec<f32>>,
}

impl Stepped {
    pub(crate) fn new(ids: Vec<u32>, blocks: Vec<u32>) -> Stepped {
        Stepped { prompt: ids.len(), ids, blocks, done: 0, logits: Vec::new() }
    }

    /// Appends its next `count` tokens to a step.
    fn push(&self, step: &mut Batch, count: usize) {
        let ids = &self.ids[self.done..self.done + count];
        let blocks = self.blocks.clone();
        step.push_cached(
            ids,
            CachedSequence { length: self.done, blocks, logits: count, prompt: self.prompt },
        );
    }
}

/// Computes sequences together, by steps of these numbers of tokens.
pub(crate) fn run(generator: &dyn Generator, sequences: &mut [&mut Stepped], steps: &[usize]) {
    for &count in steps {
        let left = |sequence: &&mut Stepped| count.min(sequence.ids.len() - sequence.done);
        let counts: Vec<usize> = sequences.iter().map(left).collect();
        if counts.iter().all(|count| *count == 0) {
            return;
        }
        step(generator, sequences, &counts);
    }
}

/// Computes the next tokens of some sequences in one step, this number of each.
pub(crate) fn step(generator: &dyn Generator, sequences: &mut [&mut Stepped], counts: &[usize]) {
    let mut step = Batch::new(OutputKind::Logits);
    let active = sequences.iter().zip(counts).filter(|(_, count)| **count > 0);
    active.for_each(|(sequence, count)| sequence.push(&mut step, *count));
    let mut logits = rows(generator.step(&step).expect("the step is well formed")).into_iter();
    for (sequence, count) in sequences.iter_mut().zip(counts) {
        sequence.logits.extend(logits.by_ref().take(*count));
        sequence.done += count;
    }
}

/// Blocks in an order that no sequence would have by itself.
pub(crate) fn scattered(count: usize, first: u32) -> Vec<u32> {
    (0..count as u32).map(|block| first + (block * 7 + 3) % count as u32).collect()
}

/// Checks that steps with blocks that are too few, unknown or not reserved are refused.
pub(crate) fn refuses_steps_outside_blocks(generator: &dyn Generator) {
    let block_size = generator.cache_layout().block_size;
    generator.reserve(2).expect("memory");
    let step = |count: usize, length: usize, blocks: &[u32]| {
        let mut step = Batch::new(OutputKind::Logits);
        step.push_cached(
            &vec![1; count],
            CachedSequence { length, blocks: blocks.to_vec(), logits: 1, prompt: count },
        );
        generator.step(&step)
    };
    assert!(step(block_size, 0, &[1]).is_ok());
    for (count, length, blocks) in
        [(block_size + 1, 0, &[1][..]), (1, block_size, &[0]), (1, 0, &[2]), (1, 600, &[0, 1]), (1, 0, &[])]
    {
        let refused = step(count, length, blocks);
        assert!(matches!(refused, Err(EngineError::Malformed(_))), "{count} {length} {blocks:?}");
    }
    assert!(matches!(generator.reserve(usize::MAX / 1024), Err(EngineError::OutOfMemory(_))));
}
