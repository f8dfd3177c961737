//! What Candle keeps to generate: the output matrix, and cache blocks of token ids.

use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::Tensor;
use sconce_core::batch::{Batch, OutputKind};

use crate::step::BLOCK_SIZE;

/// The output matrix of a decoder, and the tokens of its sequences.
pub(super) struct LogitsHead {
    /// `[hidden, vocabulary]`.
    pub(super) matrix: Tensor,
    /// Its bias; empty if there is none.
    pub(super) bias: Vec<f32>,
    blocks: Mutex<Vec<[u32; BLOCK_SIZE]>>,
}

impl LogitsHead {
    pub(super) fn new(matrix: Tensor, bias: Vec<f32>) -> LogitsHead {
        LogitsHead { matrix, bias, blocks: Mutex::default() }
    }

    pub(super) fn blocks(&self) -> MutexGuard<'_, Vec<[u32; BLOCK_SIZE]>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the tokens of a step. Returns the whole sequences.
    pub(super) fn whole_sequences(&self, step: &Batch) -> Batch {
        let mut blocks = self.blocks();
        let mut whole = Batch::new(OutputKind::Tokens);
        for (sequence, cached) in step.sequences.iter().zip(&step.cached) {
            let place =
                |position: usize| (cached.blocks[position / BLOCK_SIZE] as usize, position % BLOCK_SIZE);
            let ids = &step.ids[sequence.start..sequence.start + sequence.length];
            for (position, id) in (cached.length..).zip(ids) {
                let (block, token) = place(position);
                blocks[block][token] = *id;
            }
            let all = (0..cached.length + sequence.length).map(|position| {
                let (block, token) = place(position);
                blocks[block][token]
            });
            let all: Vec<u32> = all.collect();
            whole.push(&all, &vec![0; all.len()], 0);
        }
        whole
    }
}
