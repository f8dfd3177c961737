//! Continuous batching: which tokens of which sequences the next step computes.

use std::collections::VecDeque;
use std::ops::Range;

use super::blocks::{BlockCopy, BlockId, BlockPool, BlockTable};

/// Identity of a sequence, unique among waiting and running ones.
pub(crate) type SequenceId = u64;

/// Limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum number of tokens of a step, at least 1. Below `sequences`, the latest sequences wait for the older ones.
    pub(crate) step_tokens: usize,
    /// Maximum number of prefill tokens of a step, at least 1: longer prompts are computed in chunks.
    pub(crate) prefill_tokens: usize,
    /// Maximum number of running sequences, at least 1.
    pub(crate) sequences: usize,
    /// Number of blocks that stay free when a sequence is admitted beside others, so that these can grow without
    /// preemption.
    pub(crate) watermark: usize,
}

/// A sequence to generate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewSequence {
    pub(crate) id: SequenceId,
    /// Sequences share cached prefixes within a scope only, such as a tenant.
    pub(crate) scope: u64,
    /// The tokens of the prompt.
    pub(crate) ids: Vec<u32>,
    /// Maximum length of prompt and output.
    pub(crate) max_length: usize,
}

/// The reason why a sequence is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AdmissionError {
    /// The sequence has no token.
    #[error("the prompt is empty: generation needs at least one token")]
    EmptyPrompt,
    /// The sequence needs more blocks than exist.
    #[error("a sequence of {length} tokens does not fit in the KV cache: it needs {need} blocks of {have}")]
    DoesNotFit {
        /// Maximum length of the sequence.
        length: usize,
        /// Blocks that it needs at this length.
        need: usize,
        /// Blocks of the KV cache.
        have: usize,
    },
}

/// The work of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// The tokens to compute, decodes first.
    pub(crate) work: Vec<SequenceStep>,
    /// Sequences that lost their blocks and wait again.
    pub(crate) preempted: Vec<SequenceId>,
    /// Copies of blocks, to be made in this order before the computation.
    pub(crate) copies: Vec<BlockCopy>,
}

/// The work of one sequence in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SequenceStep {
    pub(crate) id: SequenceId,
    /// Positions to compute. Earlier positions are cached.
    pub(crate) range: Range<usize>,
    /// Whether the logits of the last position are needed: it is the last token of the sequence.
    pub(crate) needs_logits: bool,
}

#[derive(Debug)]
struct Sequence {
    id: SequenceId,
    scope: u64,
    arrival: u64,
    /// Prompt and output.
    ids: Vec<u32>,
    /// Number of tokens whose keys and values are in the blocks of `table`.
    computed: usize,
    max_length: usize,
    table: BlockTable,
}

impl Sequence {
    /// Number of tokens to compute. The last token of a full sequence needs no computation.
    fn remaining(&self) -> usize {
        if self.ids.len() < self.max_length { self.ids.len() - self.computed } else { 0 }
    }
}

/// Tokens that a step may still compute, and the copies that its sequences need.
#[derive(Debug)]
struct Budget {
    tokens: usize,
    prefill: usize,
    copies: Vec<(SequenceId, BlockCopy)>,
}

/// Waiting and running sequences and their blocks.
///
/// Older sequences come first: they are admitted first, and a sequence that finds no free block preempts the latest one.
/// So the oldest running sequence makes progress in every step.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    /// Sequences without blocks, by arrival.
    waiting: VecDeque<Sequence>,
    /// Sequences with blocks, by arrival.
    running: Vec<Sequence>,
    arrivals: u64,
}

impl Scheduler {
    /// A scheduler without sequences.
    pub(crate) fn new(pool: BlockPool, limits: Limits) -> Self {
        Self { limits, pool, waiting: VecDeque::new(), running: Vec::new(), arrivals: 0 }
    }

    /// The blocks of the KV cache.
    pub(crate) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Number of waiting sequences.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of running sequences.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Prompt and output of a sequence.
    pub(crate) fn ids(&self, id: SequenceId) -> Option<&[u32]> {
        let mut all = self.running.iter().chain(&self.waiting);
        all.find(|sequence| sequence.id == id).map(|sequence| sequence.ids.as_slice())
    }

    /// The block table of a running sequence.
    pub(crate) fn block_table(&self, id: SequenceId) -> Option<&[BlockId]> {
        self.running.iter().find(|sequence| sequence.id == id).map(|sequence| sequence.table.blocks())
    }

    /// Adds a sequence to the end of the waiting ones. A sequence that can never fit is refused.
    pub(crate) fn submit(&mut self, new: NewSequence) -> Result<(), AdmissionError> {
        let NewSequence { id, scope, ids, max_length } = new;
        if ids.is_empty() {
            return Err(AdmissionError::EmptyPrompt);
        }
        let length = max_length.max(ids.len() + 1);
        self.fits(length)?;
        let (arrival, table) = (self.arrivals, BlockTable::default());
        self.arrivals += 1;
        self.waiting.push_back(Sequence { id, scope, arrival, ids, computed: 0, max_length: length, table });
        Ok(())
    }

    /// Adds a second sequence with the tokens of `id`, which shares its blocks. Returns false if `id` does not exist.
    pub(crate) fn fork(&mut self, id: SequenceId, fork: SequenceId) -> bool {
        let is_full = self.running.len() >= self.limits.sequences;
        let parent = self.running.iter().position(|sequence| sequence.id == id);
        let waiting = self.waiting.iter().position(|sequence| sequence.id == id);
        let Some(parent) = parent.map(|at| &self.running[at]).or(waiting.map(|at| &self.waiting[at])) else {
            return false;
        };
        let mut sequence = Sequence {
            id: fork,
            ids: parent.ids.clone(),
            computed: 0,
            table: BlockTable::default(),
            ..*parent
        };
        if waiting.is_some() || is_full {
            self.wait(sequence);
        } else {
            (sequence.computed, sequence.table) = (parent.computed, self.pool.fork(&parent.table));
            self.run(sequence);
        }
        true
    }

    /// Appends a token to a sequence. Returns whether the sequence continues: at its maximum length it must be removed.
    pub(crate) fn append(&mut self, id: SequenceId, token: u32) -> bool {
        let mut all = self.running.iter_mut().chain(&mut self.waiting);
        all.find(|sequence| sequence.id == id).is_some_and(|sequence| {
            sequence.ids.push(token);
            sequence.ids.len() < sequence.max_length
        })
    }

    /// Removes a finished or cancelled sequence and releases its blocks. Returns its prompt and output.
    pub(crate) fn remove(&mut self, id: SequenceId) -> Option<Vec<u32>> {
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            let mut sequence = self.running.remove(at);
            self.pool.release(&mut sequence.table);
            return Some(sequence.ids);
        }
        let at = self.waiting.iter().position(|sequence| sequence.id == id)?;
        self.waiting.remove(at).map(|sequence| sequence.ids)
    }

    /// Selects the work of the next step, and allocates its blocks. The step is empty if no sequence has tokens to compute.
    pub(crate) fn next_step(&mut self) -> Step {
        let mut step = Step::default();
        let mut budget = Budget {
            tokens: self.limits.step_tokens.max(1),
            prefill: self.limits.prefill_tokens.max(1),
            copies: Vec::new(),
        };
        // One token is reserved for the oldest sequence, which would starve behind decodes.
        let reserved = usize::from(self.running.first().is_some_and(|oldest| oldest.remaining() > 1));
        budget.tokens -= reserved;
        self.schedule_running(&mut step, &mut budget, true);
        budget.tokens += reserved;
        self.schedule_running(&mut step, &mut budget, false);
        if step.preempted.is_empty() {
            self.admit(&mut step, &mut budget);
        }
        step.copies = budget.copies.into_iter().map(|(_, copy)| copy).collect();
        step
    }

    /// Records that a step was computed. Its full blocks enter the prefix cache. A step from before a reset is ignored.
    pub(crate) fn advance(&mut self, step: &Step) {
        for SequenceStep { id, range, .. } in &step.work {
            let mut running = self.running.iter_mut();
            if let Some(sequence) =
                running.find(|sequence| sequence.id == *id && sequence.computed == range.start)
            {
                sequence.computed = range.end;
                self.pool.index(&mut sequence.table, sequence.scope, &sequence.ids[..range.end]);
            }
        }
    }

    fn fits(&self, length: usize) -> Result<(), AdmissionError> {
        let (need, have) = (self.pool.blocks_for(length - 1), self.pool.total());
        if need > have { Err(AdmissionError::DoesNotFit { length, need, have }) } else { Ok(()) }
    }

    /// Preempts every sequence, and continues with the empty blocks of `pool`. Returns the sequences that can't fit in it,
    /// which are removed.
    pub(crate) fn replace_pool(&mut self, pool: BlockPool) -> Vec<(SequenceId, AdmissionError)> {
        while self.preempt().is_some() {}
        self.pool = pool;
        let waiting = std::mem::take(&mut self.waiting);
        let mut refused = Vec::new();
        for sequence in waiting {
            match self.fits(sequence.max_length) {
                Ok(()) => self.waiting.push_back(sequence),
                Err(error) => refused.push((sequence.id, error)),
            }
        }
        refused
    }

    /// Schedules running sequences from the oldest to the latest: those with one token to compute, or those with more.
    fn schedule_running(&mut self, step: &mut Step, budget: &mut Budget, is_decode: bool) {
        let mut at = 0;
        while let Some(sequence) = self.running.get(at) {
            if sequence.remaining() > 0 && is_decode == (sequence.remaining() == 1) {
                self.schedule(at, step, budget);
            }
            at += 1;
        }
    }

    /// Schedules as many tokens of a running sequence as budget and blocks allow. Without a free block, the latest
    /// sequence is preempted; the latest itself skips the step.
    fn schedule(&mut self, at: usize, step: &mut Step, budget: &mut Budget) {
        while !self.compute(at, step, budget) && at + 1 < self.running.len() {
            let Some(id) = self.preempt() else { return };
            step.preempted.push(id);
            budget.copies.retain(|(holder, _)| *holder != id);
            step.work.retain(|work| work.id != id);
        }
    }

    /// Adds the next tokens of a running sequence to the step. Returns false if that needs a free block.
    fn compute(&mut self, at: usize, step: &mut Step, budget: &mut Budget) -> bool {
        let sequence = &mut self.running[at];
        let remaining = sequence.remaining();
        let is_prefill = remaining > 1;
        let count = remaining.min(budget.tokens).min(if is_prefill { budget.prefill } else { 1 });
        if count == 0 {
            return true;
        }
        let end = self.pool.max_tokens(&sequence.table).min(sequence.computed + count);
        if end <= sequence.computed {
            return false;
        }
        let Ok(copy) = self.pool.grow(&mut sequence.table, end) else { return false };
        let range = sequence.computed..end;
        budget.tokens -= range.len();
        budget.prefill -= if is_prefill { range.len() } else { 0 };
        budget.copies.extend(copy.map(|copy| (sequence.id, copy)));
        step.work.push(SequenceStep { id: sequence.id, range, needs_logits: end == sequence.ids.len() });
        true
    }

    /// Moves waiting sequences to the running ones while blocks for their next chunks are free.
    fn admit(&mut self, step: &mut Step, budget: &mut Budget) {
        while self.running.len() < self.limits.sequences.max(1) && budget.tokens.min(budget.prefill) > 0 {
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            // The last token is computed even if it is cached: its logits are needed.
            let prefix = &sequence.ids[..sequence.ids.len() - 1];
            sequence.table = self.pool.share(sequence.scope, prefix);
            sequence.computed = sequence.table.tokens();
            let count = sequence.remaining().min(budget.tokens).min(budget.prefill);
            let blocks = self.pool.blocks_for(sequence.computed + count) - sequence.table.blocks().len();
            let watermark = if self.running.is_empty() { 0 } else { self.limits.watermark };
            if blocks + watermark > self.pool.free() {
                self.pool.release(&mut sequence.table);
                sequence.computed = 0;
                self.waiting.push_front(sequence);
                return;
            }
            let at = self.run(sequence);
            self.compute(at, step, budget);
        }
    }

    /// Preempts the latest running sequence: it loses its blocks and waits.
    fn preempt(&mut self) -> Option<SequenceId> {
        let mut sequence = self.running.pop()?;
        let id = sequence.id;
        self.pool.release(&mut sequence.table);
        sequence.computed = 0;
        self.wait(sequence);
        Some(id)
    }

    /// Adds a sequence to the waiting ones by its arrival.
    fn wait(&mut self, sequence: Sequence) {
        let at = self.waiting.partition_point(|other| other.arrival < sequence.arrival);
        self.waiting.insert(at, sequence);
    }

    /// Adds a sequence to the running ones by its arrival. Returns its index.
    fn run(&mut self, sequence: Sequence) -> usize {
        let at = self.running.partition_point(|other| other.arrival <= sequence.arrival);
        self.running.insert(at, sequence);
        at
    }
}

#[cfg(test)]
mod tests;
