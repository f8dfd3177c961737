//! Continuous batching: which tokens of which sequences the next step computes.

use std::collections::VecDeque;
use std::ops::Range;

use super::blocks::{BlockCopy, BlockId, BlockPool, BlockTable};
use super::fair_share::FairShare;

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

/// The priority of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits for it.
    #[default]
    Interactive,
    /// It waits for interactive ones, and is preempted first.
    Bulk,
}

/// How a generation shares the running batch with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// Tenants share the running batch fairly.
    pub tenant: u64,
    /// The prefix cache is shared within a scope only, such as a tenant.
    pub prefix_scope: u64,
    /// Its priority.
    pub priority: Priority,
}

/// A sequence to generate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewSequence {
    pub(crate) id: SequenceId,
    pub(crate) scheduling: Scheduling,
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
    /// Sequences that began to run, and how many of their tokens were cached.
    pub(crate) admitted: Vec<(SequenceId, usize)>,
}

/// The work of one sequence in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SequenceStep {
    pub(crate) id: SequenceId,
    /// Positions to compute. Earlier positions are cached.
    pub(crate) range: Range<usize>,
    /// Whether the logits of the last position are needed: it is the last token of the sequence.
    pub(crate) needs_logits: bool,
    /// Length of the prompt.
    pub(crate) prompt: usize,
}

#[derive(Debug)]
struct Sequence {
    id: SequenceId,
    scheduling: Scheduling,
    arrival: u64,
    /// Prompt and output.
    ids: Vec<u32>,
    /// Length of the prompt.
    prompt: usize,
    /// Number of tokens whose keys and values are in the blocks of `table`.
    computed: usize,
    max_length: usize,
    table: BlockTable,
}

impl Sequence {
    /// Order of running sequences: the first makes progress in every step.
    fn order(&self) -> (Priority, u64) {
        (self.scheduling.priority, self.arrival)
    }

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
/// Interactive sequences come before bulk. Of these, the tenant with the fewest computed tokens is admitted first, and its
/// oldest sequence. A sequence that finds no free block preempts a later one: of the tenant with the most tokens the latest.
/// So the first running sequence makes progress in every step.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    /// Sequences without blocks, by arrival.
    waiting: VecDeque<Sequence>,
    /// Sequences with blocks, by [`Sequence::order`].
    running: Vec<Sequence>,
    arrivals: u64,
    share: FairShare,
}

impl Scheduler {
    /// A scheduler without sequences.
    pub(crate) fn new(pool: BlockPool, limits: Limits) -> Self {
        let (waiting, running, share) = (VecDeque::new(), Vec::new(), FairShare::default());
        Self { limits, pool, waiting, running, arrivals: 0, share }
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
        let NewSequence { id, scheduling, ids, max_length } = new;
        if ids.is_empty() {
            return Err(AdmissionError::EmptyPrompt);
        }
        let length = max_length.max(ids.len() + 1);
        self.fits(length)?;
        let (arrival, table) = (self.arrivals, BlockTable::default());
        self.arrivals += 1;
        self.share.enter(scheduling.tenant);
        let prompt = ids.len();
        let sequence =
            Sequence { id, scheduling, arrival, ids, prompt, computed: 0, max_length: length, table };
        self.waiting.push_back(sequence);
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
        self.share.enter(sequence.scheduling.tenant);
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
            self.share.leave(sequence.scheduling.tenant);
            return Some(sequence.ids);
        }
        let at = self.waiting.iter().position(|sequence| sequence.id == id)?;
        let sequence = self.waiting.remove(at)?;
        self.share.leave(sequence.scheduling.tenant);
        Some(sequence.ids)
    }

    /// Number of running sequences with one token to compute.
    pub(crate) fn decodes(&self) -> usize {
        self.running.iter().filter(|sequence| sequence.remaining() == 1).count()
    }

    /// Selects the work of the next step with at most `prefill_tokens` of prompts, and allocates its blocks. The step is
    /// empty if no sequence has tokens to compute.
    pub(crate) fn next_step(&mut self, prefill_tokens: usize) -> Step {
        let mut step = Step::default();
        let mut budget = Budget {
            tokens: self.limits.step_tokens.max(1),
            prefill: self.limits.prefill_tokens.min(prefill_tokens).max(1),
            copies: Vec::new(),
        };
        step.preempted.extend(self.make_room(budget.prefill));
        let made_room = step.preempted.len();
        // One token is reserved for the oldest sequence, which would starve behind decodes.
        let reserved = usize::from(self.running.first().is_some_and(|oldest| oldest.remaining() > 1));
        budget.tokens -= reserved;
        self.schedule_running(&mut step, &mut budget, true);
        budget.tokens += reserved;
        // Half of the prefill tokens are for waiting sequences: a long prompt delays short ones by at most twice their time.
        let can_admit = !self.waiting.is_empty()
            && self.running.len() < self.limits.sequences
            && self.pool.free() > self.limits.watermark;
        let kept = if can_admit { budget.prefill / 2 } else { 0 };
        budget.prefill -= kept;
        self.schedule_running(&mut step, &mut budget, false);
        budget.prefill += kept;
        // Without free blocks nothing is admitted.
        if step.preempted.len() == made_room {
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
                let Scheduling { tenant, prefix_scope, .. } = sequence.scheduling;
                self.share.count(tenant, range.len());
                self.pool.index(
                    &mut sequence.table,
                    prefix_scope,
                    &sequence.ids[..range.end],
                    sequence.prompt,
                );
            }
        }
    }

    fn fits(&self, length: usize) -> Result<(), AdmissionError> {
        let (need, have) = (self.pool.blocks_for(length - 1), self.pool.total());
        if need > have { Err(AdmissionError::DoesNotFit { length, need, have }) } else { Ok(()) }
    }

    /// Preempts every sequence, and continues with the empty blocks of `pool`. Sequences end where it ends. Returns those
    /// that are too long for it already, which are removed.
    pub(crate) fn replace_pool(&mut self, pool: BlockPool) -> Vec<(SequenceId, AdmissionError)> {
        while self.preempt(0).is_some() {}
        self.pool = pool;
        let waiting = std::mem::take(&mut self.waiting);
        let mut refused = Vec::new();
        let capacity = self.pool.total() * self.pool.block_size();
        for mut sequence in waiting {
            match self.fits(sequence.ids.len() + 1) {
                Ok(()) => {
                    sequence.max_length = sequence.max_length.min(capacity + 1);
                    self.waiting.push_back(sequence);
                }
                Err(error) => {
                    self.share.leave(sequence.scheduling.tenant);
                    refused.push((sequence.id, error));
                }
            }
        }
        refused
    }

    /// Schedules running sequences in their order: those with one token to compute, or those with more.
    fn schedule_running(&mut self, step: &mut Step, budget: &mut Budget, is_decode: bool) {
        let mut at = 0;
        while let Some(sequence) = self.running.get(at) {
            if sequence.remaining() > 0 && is_decode == (sequence.remaining() == 1) {
                self.schedule(at, step, budget);
            }
            at += 1;
        }
    }

    /// Schedules as many tokens of a running sequence as budget and blocks allow. Without a free block, a later sequence is
    /// preempted; the last itself skips the step.
    fn schedule(&mut self, at: usize, step: &mut Step, budget: &mut Budget) {
        while !self.compute(at, step, budget) {
            if !self.preempt_in(at + 1, step, budget) {
                return;
            }
        }
    }

    /// Preempts bulk sequences while they keep the next waiting sequence, an interactive one, from starting with
    /// `prefill_tokens` of its prompt.
    fn make_room(&mut self, prefill_tokens: usize) -> Vec<SequenceId> {
        let is_interactive = |sequence: &Sequence| sequence.scheduling.priority == Priority::Interactive;
        let mut preempted = Vec::new();
        while let Some(next) = self.next_waiting().filter(|at| is_interactive(&self.waiting[*at])) {
            let bulk = self.running.partition_point(is_interactive);
            let is_full = self.running.len() >= self.limits.sequences.max(1);
            if !is_full && !self.lacks_blocks(next, bulk, prefill_tokens) {
                break;
            }
            let Some(id) = self.preempt(bulk) else { break };
            preempted.push(id);
        }
        preempted
    }

    /// Whether too few blocks are free for the first `prefill_tokens` of a waiting sequence, and enough would be without the
    /// running ones from the index `bulk` on.
    fn lacks_blocks(&mut self, waiting: usize, bulk: usize, prefill_tokens: usize) -> bool {
        if bulk == self.running.len() {
            return false;
        }
        let Sequence { scheduling, ids, prompt, .. } = &self.waiting[waiting];
        let mut cached = self.pool.share(scheduling.prefix_scope, &ids[..ids.len() - 1], *prompt);
        let tokens = ids.len().min(cached.tokens() + prefill_tokens);
        let need = self.pool.blocks_for(tokens) - cached.blocks().len();
        let free = self.pool.free();
        self.pool.release(&mut cached);
        let held: usize = self.running[bulk..].iter().map(|sequence| sequence.table.blocks().len()).sum();
        let watermark = if bulk == 0 { 0 } else { self.limits.watermark };
        need + self.limits.watermark > free && need + watermark <= free + held
    }

    /// Preempts one of the running sequences from the index `first` on, and removes its work from the step. Returns false
    /// if there is none.
    fn preempt_in(&mut self, first: usize, step: &mut Step, budget: &mut Budget) -> bool {
        let Some(id) = self.preempt(first) else { return false };
        step.preempted.push(id);
        budget.copies.retain(|(holder, _)| *holder != id);
        step.work.retain(|work| work.id != id);
        true
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
        let needs_logits = end == sequence.ids.len();
        step.work.push(SequenceStep { id: sequence.id, range, needs_logits, prompt: sequence.prompt });
        true
    }

    /// Moves waiting sequences to the running ones while blocks for their next chunks are free.
    fn admit(&mut self, step: &mut Step, budget: &mut Budget) {
        while self.running.len() < self.limits.sequences.max(1) && budget.tokens.min(budget.prefill) > 0 {
            let next = self.next_waiting().filter(|at| !step.preempted.contains(&self.waiting[*at].id));
            let Some(at) = next else { return };
            let Some(mut sequence) = self.waiting.remove(at) else { return };
            // The last token is computed even if it is cached: its logits are needed.
            let prefix = &sequence.ids[..sequence.ids.len() - 1];
            sequence.table = self.pool.share(sequence.scheduling.prefix_scope, prefix, sequence.prompt);
            sequence.computed = sequence.table.tokens();
            let count = sequence.remaining().min(budget.tokens).min(budget.prefill);
            let blocks = self.pool.blocks_for(sequence.computed + count) - sequence.table.blocks().len();
            let watermark = if self.running.is_empty() { 0 } else { self.limits.watermark };
            if blocks + watermark > self.pool.free() {
                self.pool.release(&mut sequence.table);
                sequence.computed = 0;
                self.waiting.insert(at, sequence);
                return;
            }
            step.admitted.push((sequence.id, sequence.computed));
            let at = self.run(sequence);
            self.compute(at, step, budget);
        }
    }

    /// Order of admission, and reverse order of preemption.
    fn turn(&self, sequence: &Sequence) -> (Priority, u64, u64) {
        let Scheduling { tenant, priority, .. } = sequence.scheduling;
        (priority, self.share.tokens(tenant), sequence.arrival)
    }

    /// Index of the waiting sequence that is admitted next.
    fn next_waiting(&self) -> Option<usize> {
        (0..self.waiting.len()).min_by_key(|at| self.turn(&self.waiting[*at]))
    }

    /// Preempts one of the running sequences from the index `first` on: it loses its blocks and waits.
    fn preempt(&mut self, first: usize) -> Option<SequenceId> {
        let last = (first..self.running.len()).max_by_key(|at| self.turn(&self.running[*at]))?;
        let mut sequence = self.running.remove(last);
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

    /// Adds a sequence to the running ones by its order. Returns its index.
    fn run(&mut self, sequence: Sequence) -> usize {
        let at = self.running.partition_point(|other| other.order() <= sequence.order());
        self.running.insert(at, sequence);
        at
    }
}

#[cfg(test)]
mod tests;
