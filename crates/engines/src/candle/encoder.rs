//! A loaded model: checks a batch, splits it over threads on the CPU, and pools.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Result;
use sconce_core::batch::{Batch, Output, Rows, Want};
use sconce_core::engine::{Cost, Encoder, EngineError};

use super::device::with_autorelease;
use super::fault;
use super::pooling::Head;
use super::threads::Threads;
use super::transformer::{Path, Transformer};

/// Tokens that one thread takes at a time: their activations stay in its cache.
const BLOCK: usize = 384;

pub(super) struct CandleEncoder {
    pub(super) transformer: Transformer,
    pub(super) head: Option<Head>,
    pub(super) path: Path,
    pub(super) threads: Arc<Threads>,
}

impl Encoder for CandleEncoder {
    fn encode(&mut self, batch: &Batch) -> std::result::Result<Output, EngineError> {
        self.check(batch)?;
        let rows = match self.path {
            Path::Fused => self.on_threads(batch),
            Path::Portable => with_autorelease(|| self.rows(batch)),
        };
        let rows = rows.map_err(fault::engine_error)?;
        Ok(match batch.want {
            Want::Pooled => Output::Rows(rows),
            Want::Tokens => Output::Tokens(rows),
        })
    }

    fn cost(&self) -> Cost {
        match self.path {
            Path::Fused => Cost::Packed,
            Path::Portable => Cost::Padded,
        }
    }
}

impl CandleEncoder {
    /// Every number that indexes a table is checked here: a device may read past a table without a word.
    fn check(&self, batch: &Batch) -> std::result::Result<(), EngineError> {
        let d = self.transformer.description();
        let malformed = |what: String| Err(EngineError::Malformed(what));
        if !batch.is_well_formed() || batch.sequences.is_empty() {
            return malformed("its sequences do not lie end to end".to_owned());
        }
        if let Some(id) = batch.ids.iter().find(|&&id| id as usize >= d.vocabulary) {
            return malformed(format!("token id {id} of a vocabulary of {}", d.vocabulary));
        }
        if let Some(kind) = batch.types.iter().find(|&&kind| kind as usize >= d.types.max(1)) {
            return malformed(format!("token type {kind} of {}", d.types));
        }
        let room =
            d.positions.rows.saturating_sub(d.positions.after.map_or(0, |padding| padding as usize + 1));
        match batch.sequences.iter().find(|sequence| sequence.length > room) {
            Some(sequence) => {
                malformed(format!("{} tokens where the model has {room} positions", sequence.length))
            }
            None => Ok(()),
        }
    }

    fn rows(&self, batch: &Batch) -> Result<Rows> {
        let hidden = self.transformer.hidden(batch)?;
        match (&self.head, batch.want) {
            (Some(head), Want::Pooled) => head.rows(&hidden, &batch.sequences),
            (_, Want::Tokens) | (None, Want::Pooled) => Ok(Rows {
                width: hidden.dim(1)?,
                values: hidden.flatten_all()?.to_vec1()?,
                norms: Vec::new(),
            }),
        }
    }

    /// Whole sequences in blocks, each block on one thread from beginning to end; a lone block has all threads.
    fn on_threads(&self, batch: &Batch) -> Result<Rows> {
        let blocks = blocks(batch, self.threads.count());
        if blocks.len() == 1 {
            return self.threads.together(|| self.rows(batch));
        }
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::with_capacity(blocks.len()));
        self.threads.apart(|| {
            while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let rows = self.rows(&batch.part(block.clone()));
                done.lock().unwrap_or_else(PoisonError::into_inner).push((block.start, rows));
            }
        });
        let mut parts = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        parts.sort_by_key(|(start, _)| *start);
        let mut all = Rows::default();
        for (_, rows) in parts {
            let rows = rows?;
            all.width = rows.width;
            all.values.extend(rows.values);
            all.norms.extend(rows.norms);
        }
        Ok(all)
    }
}

/// Ranges of sequences of at most about `BLOCK` tokens, as many for each thread.
fn blocks(batch: &Batch, threads: usize) -> Vec<std::ops::Range<usize>> {
    let rounds = batch.tokens().div_ceil(threads * BLOCK);
    let target = batch.tokens().div_ceil(threads * rounds).max(BLOCK / 8);
    let mut blocks = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (index, sequence) in batch.sequences.iter().enumerate() {
        if tokens > 0 && tokens + sequence.length / 2 > target {
            blocks.push(start..index);
            (start, tokens) = (index, 0);
        }
        tokens += sequence.length;
    }
    blocks.push(start..batch.sequences.len());
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_all_sequences_in_order() {
        for count in 1..40usize {
            let mut batch = Batch::new(Want::Pooled);
            for n in 0..count {
                let length = 1 + n * 37 % 300;
                batch.push(&vec![1; length], &vec![0; length], 0);
            }
            let blocks = blocks(&batch, 2);
            let covered: Vec<usize> = blocks.iter().cloned().flatten().collect();
            assert_eq!(covered, (0..count).collect::<Vec<_>>());
        }
    }
}
