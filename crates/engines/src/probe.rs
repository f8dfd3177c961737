//! Probe cases of all engines: generated batches and timing.

use std::time::Instant;

use sconce_core::batch::{Batch, OutputKind, Rows};
use sconce_core::card::ModelCard;
use sconce_core::engine::{Encoder, EngineError};
use sconce_core::obstacle::Obstacle;
use sconce_core::probe::Sample;

use crate::describe::describe;
use crate::description::Description;
use crate::errors;
use crate::weights::uniform;

/// Seconds for repeated runs of a timed case.
pub(crate) const TIMED: f64 = 0.3;

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
    Ok(Sample { rows: Rows::default(), ..timed(encoder, batch, TIMED)? })
}

/// Runs `batch` once and then repeatedly for `enough` seconds; reports the best time.
pub(crate) fn timed(encoder: &dyn Encoder, batch: &Batch, enough: f64) -> Result<Sample, Obstacle> {
    let mut sample = Sample { seconds: f64::INFINITY, ..Sample::default() };
    let begun = Instant::now();
    while sample.seconds.is_infinite() || begun.elapsed().as_secs_f64() < enough {
        let started = Instant::now();
        sample.rows = encoder.encode(batch).map_err(obstacle)?.into_rows();
        sample.seconds = sample.seconds.min(started.elapsed().as_secs_f64());
    }
    Ok(sample)
}

/// Times the first of `batches` and runs the others once; returns the rows of all.
pub(crate) fn canary(encoder: &dyn Encoder, batches: &[Batch]) -> Result<Sample, Obstacle> {
    let Some((first, others)) = batches.split_first() else { return Ok(Sample::default()) };
    let mut sample = timed(encoder, first, TIMED)?;
    for batch in others {
        let rows = encoder.encode(batch).map_err(obstacle)?.into_rows();
        sample.rows.values.extend(rows.values);
        sample.rows.norms.extend(rows.norms);
    }
    Ok(sample)
}

fn obstacle(error: EngineError) -> Obstacle {
    match error {
        EngineError::OutOfMemory(_) => Obstacle::DoesNotFit { need: None, have: None },
        EngineError::Malformed(reason) => Obstacle::LoadFailed { reason },
        EngineError::Failed(source) => errors::to_obstacle(&*source),
    }
}
