//! A fake model that is loaded: its faults are those of run time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sconce_core::batch::{Batch, Output, OutputKind, Rows};
use sconce_core::engine::{Cost, Encoder, EngineError, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;

use super::Alive;
use super::FakeEngine;
use super::fault::{Fault, has_odd};
use super::numbers::{Numbers, mix};

/// A fake model that is loaded.
pub(super) struct FakeEncoder {
    pub(super) numbers: Numbers,
    faults: Vec<Fault>,
    concurrency: usize,
    batches: AtomicUsize,
    of_all: Arc<AtomicUsize>,
    _alive: Alive,
    held: Arc<AtomicBool>,
}

impl FakeEncoder {
    pub(super) fn load(
        engine: &FakeEngine,
        model: &ModelSpec,
        placement: &Placement,
    ) -> Result<FakeEncoder, Obstacle> {
        let faults = engine.faults_of(placement);
        if faults.contains(&Fault::DoesNotFit) {
            return Err(Obstacle::DoesNotFit { need: Some(2_000_000_000), have: Some(1_000_000_000) });
        }
        if faults.contains(&Fault::ProviderFails) {
            let says = "the fake has no such provider".to_owned();
            return Err(Obstacle::ProviderFailed { provider: "FakeExecutionProvider".to_owned(), says });
        }
        let numbers = Numbers {
            scores: model.card.task.value.scores(),
            ..engine.numbers(placement, model.card.width(), model.card.normalizes())
        };
        let concurrency = engine.concurrency;
        Ok(FakeEncoder {
            numbers,
            faults,
            concurrency,
            batches: AtomicUsize::new(0),
            of_all: Arc::clone(&engine.batches),
            _alive: engine.gates.enter(),
            held: Arc::clone(&engine.held),
        })
    }

    /// What real weights do to an answer.
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
        self.of_all.fetch_add(1, Ordering::SeqCst);
        while self.held.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let mut rows = self.numbers.rows(batch);
        for &fault in &self.faults {
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "every other fault spoils numbers or does nothing"
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
                Fault::FromBatch(nth, mishap) if nth_batch >= nth => mishap.befall(&mut rows)?,
                fault => fault.spoil(&mut rows, batch),
            }
        }
        self.spoil_weights(&mut rows);
        Ok(match batch.output_kind {
            OutputKind::Pooled => Output::Rows(rows),
            OutputKind::Tokens | OutputKind::Projected => Output::Tokens(rows),
        })
    }

    fn cost(&self) -> Cost {
        Cost::Packed
    }

    fn concurrency(&self) -> usize {
        self.concurrency
    }
}
