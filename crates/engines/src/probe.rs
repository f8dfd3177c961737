//! Probe cases of all engines: generated batches and timing.

use std::time::Instant;

use sconce_core::batch::{Batch, CachedSequence, OutputKind, Rows};
use sconce_core::card::ModelCard;
use sconce_core::engine::{Encoder, EngineError};
use sconce_core::generator::Generator;
use sconce_core::obstacle::Obstacle;
use sconce_core::probe::{Prediction, Sample};

use crate::describe::describe;
use crate::description::Description;
use crate::errors;
use crate::weights::uniform;

/// Seconds for repeated runs of a timed case.
const SECONDS: f64 = 0.3;
/// Seconds and runs after which a case of short runs ends sooner.
const FEW_SECONDS: f64 = 0.1;
const MANY_RUNS: usize = 100;

/// The description of the twin of the card's model, as JSON.
pub(crate) fn twin_of(card: &ModelCard) -> Result<String, Obstacle> {
    let twin = describe(card)?.twin();
    serde_json::to_string(&twin).map_err(|error| Obstacle::LoadFailed { reason: error.to_string() })
}

/// A batch of generated token ids.
pub(crate) fn batch(
    lengths: &[usize],
    seed: u64,
    output_kind: OutputKind,
    description: &Description,
) -> Batch {
    let vocabulary = description.vocabulary;
    let padding = description.position_table.and_then(|positions| positions.padding_id);
    let mut batch = Batch::new(output_kind);
    let mut state = seed;
    for &length in lengths {
        let mut id = || {
            let id = (uniform(&mut state).abs() * vocabulary as f32) as u32 % vocabulary as u32;
            if Some(id) == padding { (id + 1) % vocabulary as u32 } else { id }
        };
        let ids: Vec<u32> = (0..length).map(|_| id()).collect();
        batch.push(&ids, &vec![0; length], 0);
    }
    batch
}

/// The batch of a speed case.
pub(crate) fn speed_batch(batch: usize, length: usize, description: &Description) -> Batch {
    self::batch(&vec![length; batch], 1, OutputKind::Tokens, description)
}

/// Times a batch and drops its output.
pub(crate) fn time_of(encoder: &dyn Encoder, batch: &Batch) -> Result<Sample, Obstacle> {
    Ok(Sample { rows: Rows::default(), ..timed(encoder, batch)? })
}

/// Runs a batch repeatedly; reports the best time.
fn timed(encoder: &dyn Encoder, batch: &Batch) -> Result<Sample, Obstacle> {
    let mut rows = Rows::default();
    let seconds = best_of(|| {
        rows = rows_of(encoder, batch)?;
        Ok(())
    })?;
    Ok(Sample { rows, seconds, ..Sample::default() })
}

/// Runs a batch once.
pub(crate) fn once(encoder: &dyn Encoder, batch: &Batch) -> Result<Sample, Obstacle> {
    let started = Instant::now();
    let rows = rows_of(encoder, batch)?;
    Ok(Sample { rows, seconds: started.elapsed().as_secs_f64(), ..Sample::default() })
}

fn rows_of(encoder: &dyn Encoder, batch: &Batch) -> Result<Rows, Obstacle> {
    Ok(encoder.encode(batch).map_err(obstacle)?.into_rows())
}

/// The best time of repeated runs, in seconds.
fn best_of(mut run: impl FnMut() -> Result<(), Obstacle>) -> Result<f64, Obstacle> {
    let (mut best, begun, mut runs) = (f64::INFINITY, Instant::now(), 0);
    loop {
        let started = Instant::now();
        run()?;
        best = best.min(started.elapsed().as_secs_f64());
        runs += 1;
        let enough = if runs < MANY_RUNS { SECONDS } else { FEW_SECONDS };
        if begun.elapsed().as_secs_f64() >= enough {
            return Ok(best);
        }
    }
}

/// Times the first of `batches` and runs the others once; returns the rows of all.
pub(crate) fn canary(encoder: &dyn Encoder, batches: &[Batch]) -> Result<Sample, Obstacle> {
    let Some((first, others)) = batches.split_first() else { return Ok(Sample::default()) };
    let mut sample = timed(encoder, first)?;
    for batch in others {
        let rows = rows_of(encoder, batch)?;
        sample.rows.values.extend(rows.values);
        sample.rows.norms.extend(rows.norms);
    }
    if let Some(generator) = encoder.generator() {
        sample.predictions = predictions(generator, first)?;
    }
    Ok(sample)
}

/// Tokens per step of [`predictions`]: it bounds the memory of logits.
const PREDICTED: usize = 32;

/// Predictions of every token but the first of the sequences of `texts`, in steps. The first half of a sequence is its prompt:
/// generated tokens may have another kernel.
fn predictions(generator: &dyn Generator, texts: &Batch) -> Result<Vec<Prediction>, Obstacle> {
    let longest = texts.sequences.iter().map(|sequence| sequence.length).max().unwrap_or(0);
    let blocks = longest.div_ceil(generator.cache_layout().block_size);
    generator.reserve(blocks).map_err(obstacle)?;
    let mut predictions = Vec::new();
    for sequence in &texts.sequences {
        let ids = &texts.ids[sequence.start..sequence.start + sequence.length];
        for (number, part) in ids.chunks(PREDICTED).enumerate() {
            let done = number * PREDICTED;
            let mut step = Batch::new(OutputKind::Logits);
            let blocks = (0..blocks as u32).collect();
            step.push_cached(
                part,
                CachedSequence { length: done, blocks, logits: part.len(), prompt: ids.len().div_ceil(2) },
            );
            let rows = generator.step(&step).map_err(obstacle)?.into_rows();
            predictions
                .extend(rows.iter().zip(&ids[done + 1..]).map(|(logits, next)| predict(logits, *next)));
        }
    }
    Ok(predictions)
}

/// The prediction of `next` by `logits`.
fn predict(logits: &[f32], next: u32) -> Prediction {
    let top = (0..).zip(logits).max_by(|(_, one), (_, other)| one.total_cmp(other));
    let (top, largest) = top.map_or((0, 0.0), |(top, largest): (u32, &f32)| (top, *largest));
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let logit = logits.get(next as usize).copied().unwrap_or(f32::NAN);
    Prediction { logprob: (f64::from(logit - largest) - sum.ln()) as f32, top }
}

/// Decode steps after which a sequence of a steps case ends.
const DECODED: usize = 4;

/// Runs a steps case: returns the logits of every token, by sequence.
pub(crate) fn steps(
    encoder: &dyn Encoder,
    description: &Description,
    (lengths, chunk, seed): (&[usize], usize, u64),
) -> Result<Sample, Obstacle> {
    let generator = generator(encoder)?;
    let block_size = generator.cache_layout().block_size;
    let whole: Vec<usize> = lengths.iter().map(|length| length + DECODED).collect();
    let texts = batch(&whole, seed, OutputKind::Tokens, description);
    let counts: Vec<usize> = whole.iter().map(|length| length.div_ceil(block_size)).collect();
    let blocks: usize = counts.iter().sum();
    generator.reserve(blocks).map_err(obstacle)?;
    // Blocks in descending order: no table is the one that an engine without tables would use.
    let mut free = (0..blocks as u32).rev();
    let tables: Vec<Vec<u32>> = counts.iter().map(|&count| free.by_ref().take(count).collect()).collect();
    let mut done = vec![0; lengths.len()];
    let mut logits = vec![Vec::new(); lengths.len()];
    for started in 1.. {
        let next = |index: usize| {
            if done[index] < lengths[index] { (lengths[index] - done[index]).min(chunk) } else { 1 }
        };
        let active: Vec<(usize, usize)> = (0..lengths.len().min(started))
            .filter(|&index| done[index] < whole[index])
            .map(|index| (index, next(index)))
            .collect();
        if active.is_empty() {
            break;
        }
        let mut step = Batch::new(OutputKind::Logits);
        for &(index, count) in &active {
            let first = texts.sequences[index].start + done[index];
            let (length, prompt) = (done[index], lengths[index]);
            let cached = CachedSequence { length, blocks: tables[index].clone(), logits: count, prompt };
            step.push_cached(&texts.ids[first..first + count], cached);
        }
        let rows = generator.step(&step).map_err(obstacle)?.into_rows();
        let mut rows = rows.iter();
        for (index, count) in active {
            logits[index].extend(rows.by_ref().take(count).flatten());
            done[index] += count;
        }
    }
    let rows = Rows { width: description.vocabulary, values: logits.concat(), norms: Vec::new() };
    Ok(Sample { rows, ..Sample::default() })
}

/// Times a decode step of `batch` sequences with `cached` tokens each, per layer. The content of the cache does not
/// matter.
pub(crate) fn decode(
    encoder: &dyn Encoder,
    description: &Description,
    (batch, cached): (usize, usize),
) -> Result<Sample, Obstacle> {
    let generator = generator(encoder)?;
    let count = (cached + 1).div_ceil(generator.cache_layout().block_size) as u32;
    generator.reserve(batch * count as usize).map_err(obstacle)?;
    let mut step = Batch::new(OutputKind::Logits);
    for sequence in 0..batch as u32 {
        let blocks = (sequence * count..(sequence + 1) * count).collect();
        step.push_cached(&[1], CachedSequence { length: cached, blocks, logits: 1, prompt: cached });
    }
    let seconds = best_of(|| generator.step(&step).map(drop).map_err(obstacle))?;
    Ok(Sample { seconds: seconds / description.layers as f64, ..Sample::default() })
}

fn generator(encoder: &dyn Encoder) -> Result<&dyn Generator, Obstacle> {
    let absent = || Obstacle::LoadFailed { reason: "the model was loaded without a KV cache".to_owned() };
    encoder.generator().ok_or_else(absent)
}

fn obstacle(error: EngineError) -> Obstacle {
    match error {
        EngineError::OutOfMemory(_) => Obstacle::DoesNotFit { need: None, have: None },
        EngineError::Malformed(reason) => Obstacle::LoadFailed { reason },
        EngineError::Failed(source) => errors::to_obstacle(&*source),
    }
}
