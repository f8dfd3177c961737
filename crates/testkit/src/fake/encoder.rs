//! A loaded fake model with run-time faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sconce_core::batch::{Batch, Output, OutputKind, Rows};
use sconce_core::engine::{BatchLayout, Encoder, EngineError};

use super::fault::{Fault, has_odd};
use super::gates::Alive;
use super::output::{OutputGenerator, mix};

/// A loaded fake model.
pub(super) struct FakeEncoder {
    pub(super) generator: OutputGenerator,
    pub(super) faults: Vec<Fault>,
    pub(super) concurrency: usize,
    pub(super) batches: AtomicUsize,
    /// Batches of all encoders of the engine.
    pub(super) total_batches: Arc<AtomicUsize>,
    pub(super) _alive: Alive,
    pub(super) held: Arc<AtomicBool>,
}

impl FakeEncoder {
    /// Applies the faults of real weights.
    pub(super) fn spoil_weights(&self, rows: &mut Rows) {
        if self.faults.contains(&Fault::WrongWeights) {
            rows.values.iter_mut().for_each(|x| *x = 1.0 - *x);
        }
        if self.faults.contains(&Fault::NanWeights) {
            rows.values.fill(f32::NAN);
        }
    }
}

impl Encoder for FakeEncoder {
    fn encode(&self, batch: &Batch) -> Result<Output, EngineError> {
        let nth_batch = self.batches.fetch_add(1, Ordering::SeqCst) + 1;
        self.total_batches.fetch_add(1, Ordering::SeqCst);
        while self.held.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let mut rows = self.generator.rows(batch);
        for &fault in &self.faults {
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "every other fault changes values or does nothing"
            )]
            match fault {
                Fault::Late(milliseconds) => thread::sleep(Duration::from_millis(milliseconds)),
                Fault::Slow(microseconds) => {
                    thread::sleep(Duration::from_micros(microseconds * batch.tokens() as u64));
                }
                Fault::Work(millions) => {
                    std::hint::black_box((0..millions * 1_000_000).fold(0, |sum, n| mix(sum ^ n)));
                }
                Fault::OddFails if has_odd(batch) => {
                    return Err(EngineError::Failed("the fake fails on odd texts".into()));
                }
                Fault::OutOfMemory { above } if batch.tokens() > above => {
                    return Err(EngineError::OutOfMemory("the fake has no more memory".into()));
                }
                Fault::OddMalformed if has_odd(batch) => {
                    return Err(EngineError::Malformed("the fake takes no odd texts".to_owned()));
                }
                Fault::FromBatch(nth, fault) if nth_batch >= nth => fault.apply(&mut rows)?,
                fault => fault.spoil(&mut rows, batch),
            }
        }
        self.spoil_weights(&mut rows);
        Ok(match batch.output_kind {
            OutputKind::Pooled => Output::Rows(rows),
            OutputKind::Tokens | OutputKind::Projected | OutputKind::Logits => Output::Tokens(rows),
        })
    }

    fn batch_layout(&self) -> BatchLayout {
        BatchLayout::Packed
    }

    fn concurrency(&self) -> usize {
        self.concurrency
    }
}
