//! A loaded fake model with run-time faults.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use sconce_core::batch::{Batch, Output, OutputKind, Rows};
use sconce_core::engine::{BatchLayout, Encoder, EngineError};
use sconce_core::generator::{CacheLayout, Generator};

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
    /// Size of the vocabulary, if the model generates.
    pub(super) vocabulary: Option<usize>,
    /// Cache blocks: the tokens of the sequences.
    pub(super) blocks: Mutex<Vec<[u32; BLOCK_SIZE]>>,
}

/// Tokens per cache block.
pub(super) const BLOCK_SIZE: usize = 4;

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

    fn generator(&self) -> Option<&dyn Generator> {
        self.vocabulary.map(|_| self as &dyn Generator)
    }
}

impl FakeEncoder {
    fn blocks(&self) -> MutexGuard<'_, Vec<[u32; BLOCK_SIZE]>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logits are a hash of all tokens before them: they are right only if the cache is.
impl Generator for FakeEncoder {
    fn cache_layout(&self) -> CacheLayout {
        CacheLayout { block_size: BLOCK_SIZE, block_bytes: 1, separates_prompts: false }
    }

    fn reserve(&self, blocks: usize) -> Result<(), EngineError> {
        *self.blocks() = vec![[0; BLOCK_SIZE]; blocks];
        Ok(())
    }

    fn step(&self, batch: &Batch) -> Result<Output, EngineError> {
        let nth_batch = self.batches.fetch_add(1, Ordering::SeqCst) + 1;
        while self.held.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let width = self.vocabulary.unwrap_or(0);
        let mut values = Vec::new();
        for (sequence, cached) in batch.sequences.iter().zip(&batch.cached) {
            let place =
                |position: usize| (cached.blocks[position / BLOCK_SIZE] as usize, position % BLOCK_SIZE);
            let end = cached.length + sequence.length;
            let mut blocks = self.blocks();
            for (position, id) in (cached.length..end).zip(&batch.ids[sequence.start..]) {
                let (block, token) = place(position);
                blocks[block][token] = *id;
            }
            let mut hash = 0;
            for position in 0..end {
                let (block, token) = place(position);
                hash = mix(hash ^ u64::from(blocks[block][token]));
                if position >= end - cached.logits {
                    values.extend((0..width as u64).map(|word| (mix(hash ^ word) >> 40) as f32));
                }
            }
        }
        let mut rows = Rows { width, values, norms: Vec::new() };
        for fault in &self.faults {
            if let Fault::FromBatch(nth, fault) = fault
                && nth_batch >= *nth
                && !rows.values.is_empty()
            {
                fault.apply(&mut rows)?;
            }
        }
        Ok(Output::Logits(rows))
    }

    fn copy(&self, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        let mut blocks = self.blocks();
        for &(from, to) in pairs {
            blocks[to as usize] = blocks[from as usize];
        }
        Ok(())
    }
}
