//! Tests of the scheduler: single decisions, and simulated generations with random arrivals, cancellations and small pools.

use std::collections::HashMap;
use std::time::Instant;

use proptest::prelude::*;
use sconce_testkit::draws::Draws;

use super::*;

const LIMITS: Limits = Limits { step_tokens: 16, prefill_tokens: 8, sequences: 4, watermark: 1 };

fn scheduler(blocks: u32, limits: Limits) -> Scheduler {
    Scheduler::new(BlockPool::new(blocks, 4), limits)
}

/// A sequence whose tokens no other sequence has.
fn sequence(id: SequenceId, prompt: usize, output: usize) -> NewSequence {
    let ids = (0..prompt as u32).map(|at| id as u32 * 1000 + at).collect();
    NewSequence { id, scheduling: Scheduling::default(), ids, max_length: prompt + output }
}

/// Computes a step and appends a token where logits are needed.
fn advance(scheduler: &mut Scheduler) -> Step {
    let step = scheduler.next_step(usize::MAX);
    scheduler.advance(&step);
    for work in step.work.iter().filter(|work| work.needs_logits) {
        scheduler.append(work.id, 7);
    }
    step
}

fn work(step: &Step) -> Vec<(SequenceId, Range<usize>, bool)> {
    step.work.iter().map(|work| (work.id, work.range.clone(), work.needs_logits)).collect()
}

#[test]
fn prompts_are_computed_in_chunks_after_decodes() {
    let mut scheduler = scheduler(32, LIMITS);
    scheduler.submit(sequence(1, 5, 9)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(1, 0..5, true)]);
    scheduler.submit(sequence(2, 20, 9)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(1, 5..6, true), (2, 0..8, false)]);
    assert_eq!(work(&advance(&mut scheduler)), [(1, 6..7, true), (2, 8..16, false)]);
    assert_eq!(work(&advance(&mut scheduler)), [(1, 7..8, true), (2, 16..20, true)]);
    assert_eq!(work(&advance(&mut scheduler)), [(1, 8..9, true), (2, 20..21, true)]);
}

#[test]
fn prefill_budget_is_shared_by_prompts() {
    let mut scheduler = scheduler(32, LIMITS);
    scheduler.submit(sequence(1, 5, 9)).unwrap();
    scheduler.submit(sequence(2, 5, 9)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(1, 0..5, true), (2, 0..3, false)]);
    assert_eq!(work(&advance(&mut scheduler)), [(1, 5..6, true), (2, 3..5, true)]);
}

#[test]
fn the_number_of_running_sequences_is_limited() {
    let mut scheduler = scheduler(32, Limits { sequences: 2, ..LIMITS });
    (1..=3).for_each(|id| scheduler.submit(sequence(id, 2, 2)).unwrap());
    assert_eq!(work(&advance(&mut scheduler)), [(1, 0..2, true), (2, 0..2, true)]);
    assert_eq!((scheduler.running(), scheduler.waiting()), (2, 1));
    scheduler.remove(1);
    assert_eq!(work(&advance(&mut scheduler)), [(2, 2..3, true), (3, 0..2, true)]);
}

#[test]
fn the_watermark_keeps_blocks_for_running_sequences() {
    let mut scheduler = scheduler(3, LIMITS);
    scheduler.submit(sequence(1, 4, 4)).unwrap();
    scheduler.submit(sequence(2, 8, 4)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(1, 0..4, true), (2, 0..4, false)]);
    let mut scheduler = self::scheduler(3, Limits { watermark: 2, ..LIMITS });
    scheduler.submit(sequence(1, 4, 4)).unwrap();
    scheduler.submit(sequence(2, 8, 4)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(1, 0..4, true)]);
}

#[test]
fn the_latest_sequence_is_preempted_and_waits_first() {
    let mut scheduler = scheduler(4, Limits { watermark: 0, prefill_tokens: 16, ..LIMITS });
    scheduler.submit(sequence(1, 8, 8)).unwrap();
    scheduler.submit(sequence(2, 8, 8)).unwrap();
    scheduler.submit(sequence(3, 2, 2)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(1, 0..8, true), (2, 0..8, true)]);
    let step = advance(&mut scheduler);
    assert_eq!((work(&step), step.preempted), (vec![(1, 8..9, true)], vec![2]));
    assert_eq!((scheduler.block_table(2), scheduler.waiting()), (None, 2));
    // Its first block is still cached: `1` took the last one. One block is free for the rest.
    assert_eq!(work(&advance(&mut scheduler)), [(1, 9..10, true)]);
    scheduler.remove(1);
    assert_eq!(work(&advance(&mut scheduler)), [(2, 4..9, true), (3, 0..2, true)]);
}

#[test]
fn the_oldest_sequence_is_not_starved_by_decodes() {
    let mut scheduler =
        scheduler(32, Limits { step_tokens: 2, prefill_tokens: 2, sequences: 3, watermark: 0 });
    scheduler.submit(sequence(1, 3, 20)).unwrap();
    scheduler.submit(sequence(2, 1, 20)).unwrap();
    scheduler.submit(sequence(3, 1, 20)).unwrap();
    for _ in 0..8 {
        let step = advance(&mut scheduler);
        assert!(step.work.iter().any(|work| work.id == 1), "{step:?}");
    }
}

#[test]
fn cached_prefixes_are_not_computed_again() {
    let mut scheduler = scheduler(32, LIMITS);
    scheduler.submit(sequence(1, 8, 2)).unwrap();
    advance(&mut scheduler);
    scheduler.remove(1);
    let scheduling = |prefix_scope| Scheduling { prefix_scope, ..Scheduling::default() };
    let same = |id, scope, length| NewSequence {
        id,
        scheduling: scheduling(scope),
        max_length: 20,
        ..sequence(1, length, 0)
    };
    scheduler.submit(same(2, 0, 8)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(2, 4..8, true)], "the last token is computed");
    scheduler.submit(same(3, 0, 9)).unwrap();
    scheduler.submit(same(4, 1, 6)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(2, 8..9, true), (3, 8..9, true), (4, 0..6, true)]);
}

#[test]
fn sequences_that_never_fit_are_refused() {
    let mut scheduler = scheduler(4, LIMITS);
    let refused = scheduler.submit(sequence(1, 10, 8)).unwrap_err();
    assert_eq!(refused, AdmissionError::DoesNotFit { length: 18, need: 5, have: 4 });
    assert_eq!(
        refused.to_string(),
        "a sequence of 18 tokens does not fit in the KV cache: it needs 5 blocks of 4"
    );
    assert_eq!(scheduler.submit(sequence(1, 0, 8)), Err(AdmissionError::EmptyPrompt));
    assert_eq!(scheduler.submit(sequence(1, 10, 7)), Ok(()), "the last token needs no cache");
}

#[test]
fn a_full_sequence_is_not_scheduled() {
    let mut scheduler = scheduler(4, LIMITS);
    scheduler.submit(sequence(1, 3, 2)).unwrap();
    let step = scheduler.next_step(usize::MAX);
    scheduler.advance(&step);
    assert!(scheduler.append(1, 7));
    let step = scheduler.next_step(usize::MAX);
    scheduler.advance(&step);
    assert!(!scheduler.append(1, 7));
    assert_eq!(scheduler.next_step(usize::MAX), Step::default());
    assert_eq!(scheduler.remove(1).unwrap().len(), 5);
    assert_eq!((scheduler.remove(1), scheduler.append(1, 7)), (None, false));
}

#[test]
fn cancellation_during_a_step_releases_blocks_at_once() {
    let mut scheduler = scheduler(4, LIMITS);
    scheduler.submit(sequence(1, 8, 2)).unwrap();
    let step = scheduler.next_step(usize::MAX);
    assert_eq!(scheduler.pool().free(), 2);
    assert!(scheduler.remove(1).is_some());
    assert_eq!(scheduler.pool().free(), 4);
    scheduler.advance(&step);
    assert_eq!(scheduler.pool().cached(), 0, "blocks of a step that was not recorded are not cached");
}

#[test]
fn forks_share_blocks_and_copy_the_partial_one() {
    let mut scheduler = scheduler(8, LIMITS);
    scheduler.submit(sequence(1, 6, 4)).unwrap();
    let step = scheduler.next_step(usize::MAX);
    scheduler.advance(&step);
    assert!(scheduler.fork(1, 2) && !scheduler.fork(9, 3));
    scheduler.append(1, 7);
    scheduler.append(2, 8);
    let step = scheduler.next_step(usize::MAX);
    assert_eq!(work(&step), [(1, 6..7, true), (2, 6..7, true)]);
    assert_eq!(step.copies, [BlockCopy { source: 1, destination: 2 }]);
    assert_eq!(scheduler.block_table(1), Some(&[0, 2][..]));
    assert_eq!(scheduler.block_table(2), Some(&[0, 1][..]));
}

#[test]
fn a_fork_beyond_the_limit_waits() {
    let mut scheduler = scheduler(8, Limits { sequences: 1, ..LIMITS });
    scheduler.submit(sequence(1, 6, 4)).unwrap();
    advance(&mut scheduler);
    assert!(scheduler.fork(1, 2) && scheduler.fork(2, 3));
    assert_eq!((scheduler.running(), scheduler.waiting()), (1, 2));
    assert_eq!(scheduler.ids(3), scheduler.ids(1));
    scheduler.remove(1);
    assert_eq!(work(&advance(&mut scheduler))[0].1, 4..7, "its full block is cached");
}

/// Continues with an empty pool of the same size.
/// A sequence of a tenant.
fn of_tenant(id: SequenceId, tenant: u64, prompt: usize, output: usize) -> NewSequence {
    let scheduling = Scheduling { tenant, ..Scheduling::default() };
    NewSequence { scheduling, ..sequence(id, prompt, output) }
}

#[test]
fn a_tenant_with_few_sequences_is_admitted_before_one_with_many() {
    let limits = Limits { step_tokens: 64, prefill_tokens: 64, sequences: 8, watermark: 0 };
    let mut scheduler = scheduler(1000, limits);
    let mut next = 0;
    let mut submit = |scheduler: &mut Scheduler, tenant: u64| {
        next += 1;
        scheduler.submit(of_tenant(next * 2 + tenant, tenant, 4, 8)).unwrap();
    };
    (0..64).for_each(|_| submit(&mut scheduler, 0));
    (0..2).for_each(|_| submit(&mut scheduler, 1));
    let mut tokens = [0, 0];
    for _ in 0..1000 {
        let step = scheduler.next_step(usize::MAX);
        scheduler.advance(&step);
        for work in &step.work {
            tokens[(work.id % 2) as usize] += work.range.len();
            if work.needs_logits && !scheduler.append(work.id, 7) {
                scheduler.remove(work.id);
                submit(&mut scheduler, work.id % 2);
            }
        }
    }
    // Two of eight sequences run for the second tenant all the time.
    let share = tokens[1] as f64 / (tokens[0] + tokens[1]) as f64;
    assert!((0.24..0.26).contains(&share), "{tokens:?}");
}

#[test]
fn bulk_waits_for_interactive_sequences_and_is_preempted_first() {
    let mut scheduler = scheduler(4, Limits { watermark: 0, prefill_tokens: 16, ..LIMITS });
    let bulk = |id| {
        let scheduling = Scheduling { priority: Priority::Bulk, ..Scheduling::default() };
        NewSequence { scheduling, ..sequence(id, 4, 8) }
    };
    scheduler.submit(bulk(1)).unwrap();
    scheduler.submit(sequence(2, 4, 8)).unwrap();
    scheduler.submit(bulk(3)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(2, 0..4, true), (1, 0..4, true), (3, 0..4, true)]);
    // The next tokens of all three need a block each, and one is free.
    let step = advance(&mut scheduler);
    assert_eq!(step.preempted, [3]);
    assert_eq!(work(&step), [(2, 4..5, true), (1, 4..5, true)]);
}

#[test]
fn an_interactive_sequence_takes_the_place_of_a_bulk_one() {
    let mut scheduler = scheduler(32, Limits { sequences: 2, ..LIMITS });
    for id in [1, 2] {
        let scheduling = Scheduling { priority: Priority::Bulk, ..Scheduling::default() };
        scheduler.submit(NewSequence { scheduling, ..sequence(id, 2, 20) }).unwrap();
    }
    assert_eq!(work(&advance(&mut scheduler)), [(1, 0..2, true), (2, 0..2, true)]);
    scheduler.submit(sequence(3, 2, 2)).unwrap();
    let step = advance(&mut scheduler);
    assert_eq!(step.preempted, [2]);
    assert_eq!(work(&step), [(1, 2..3, true), (3, 0..2, true)]);
    scheduler.submit(sequence(4, 2, 2)).unwrap();
    assert_eq!(advance(&mut scheduler).preempted, [1]);
    scheduler.submit(sequence(5, 2, 2)).unwrap();
    assert!(advance(&mut scheduler).preempted.is_empty(), "interactive sequences stay");
}

#[test]
fn an_interactive_sequence_gets_the_blocks_of_bulk_ones() {
    let bulk = Scheduling { priority: Priority::Bulk, ..Scheduling::default() };
    let limits = Limits { watermark: 1, prefill_tokens: 16, step_tokens: 32, ..LIMITS };
    // Blocks of four tokens: the first bulk sequence has four, and the second three.
    let mut scheduler = scheduler(8, limits);
    scheduler.submit(NewSequence { scheduling: bulk, ..sequence(1, 14, 2) }).unwrap();
    advance(&mut scheduler);
    scheduler.submit(NewSequence { scheduling: bulk, ..sequence(2, 9, 8) }).unwrap();
    advance(&mut scheduler);
    assert_eq!(scheduler.running(), 2);
    // One block and the watermark are too few for three.
    scheduler.submit(sequence(3, 9, 8)).unwrap();
    let step = advance(&mut scheduler);
    assert_eq!(step.preempted, [2], "the latest, and no more than needed");
    assert!(work(&step).contains(&(3, 0..9, true)), "{step:?}");
    // Once that has a fourth block, not enough would be free for another one, even without bulk.
    while scheduler.block_table(3).is_some_and(|blocks| blocks.len() < 4) {
        advance(&mut scheduler);
    }
    scheduler.submit(sequence(4, 30, 2)).unwrap();
    assert!(advance(&mut scheduler).preempted.is_empty());
}

#[test]
fn sequences_end_where_a_smaller_pool_ends() {
    let mut scheduler = scheduler(32, LIMITS);
    scheduler.submit(sequence(1, 4, 100)).unwrap();
    scheduler.submit(sequence(2, 12, 100)).unwrap();
    // Two blocks of four tokens, and one token that is not computed.
    let refused = scheduler.replace_pool(BlockPool::new(2, 4));
    assert_eq!(refused.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2]);
    let continues: Vec<bool> = (0..5).map(|_| scheduler.append(1, 7)).collect();
    assert_eq!(continues, [true, true, true, true, false]);
}

#[test]
fn a_long_prompt_leaves_prefill_tokens_for_others() {
    let mut scheduler = scheduler(64, LIMITS);
    scheduler.submit(sequence(1, 80, 2)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(1, 0..8, false)]);
    scheduler.submit(sequence(2, 6, 2)).unwrap();
    assert_eq!(work(&advance(&mut scheduler)), [(1, 8..12, false), (2, 0..4, false)]);
    assert_eq!(work(&advance(&mut scheduler)), [(1, 12..20, false)], "nobody waits");
}

fn lose_cache(scheduler: &mut Scheduler) {
    let pool = BlockPool::new(scheduler.pool().total() as u32, scheduler.pool().block_size());
    assert_eq!(scheduler.replace_pool(pool), []);
}

#[test]
fn a_smaller_pool_refuses_what_can_no_longer_fit() {
    let mut scheduler = scheduler(8, LIMITS);
    scheduler.submit(sequence(1, 6, 4)).unwrap();
    scheduler.submit(sequence(2, 20, 4)).unwrap();
    advance(&mut scheduler);
    let block_size = scheduler.pool().block_size();
    let refused = scheduler.replace_pool(BlockPool::new(3, block_size));
    let refused: Vec<SequenceId> = refused.into_iter().map(|(id, _)| id).collect();
    assert_eq!((refused, scheduler.waiting(), scheduler.running()), (vec![2], 1, 0));
    assert_eq!(work(&advance(&mut scheduler))[0].0, 1);
}

#[test]
fn a_reset_computes_everything_again() {
    let mut scheduler = scheduler(8, LIMITS);
    scheduler.submit(sequence(1, 6, 4)).unwrap();
    scheduler.submit(sequence(2, 2, 4)).unwrap();
    advance(&mut scheduler);
    lose_cache(&mut scheduler);
    assert_eq!((scheduler.waiting(), scheduler.pool().free(), scheduler.pool().cached()), (2, 8, 0));
    assert_eq!(work(&advance(&mut scheduler)), [(1, 0..7, true), (2, 0..1, false)]);
}

#[test]
fn a_step_from_before_a_reset_is_ignored() {
    let mut scheduler = scheduler(8, LIMITS);
    scheduler.submit(sequence(1, 16, 4)).unwrap();
    advance(&mut scheduler);
    let stale = scheduler.next_step(usize::MAX);
    assert_eq!(work(&stale), [(1, 8..16, true)]);
    lose_cache(&mut scheduler);
    assert_eq!(work(&scheduler.next_step(usize::MAX)), [(1, 0..8, false)]);
    scheduler.advance(&stale);
    assert_eq!(work(&scheduler.next_step(usize::MAX)), [(1, 0..8, false)]);
}

/// An engine that computes no numbers: each position of the cache has a hash of the tokens up to it.
struct Simulation {
    scheduler: Scheduler,
    cache: Vec<u64>,
    random: Draws,
    next_id: SequenceId,
    /// Remaining output tokens of each sequence.
    outputs: HashMap<SequenceId, usize>,
    steps: usize,
    preemptions: usize,
}

fn prefix_hash(previous: u64, token: u32) -> u64 {
    (previous ^ u64::from(token).wrapping_add(0x9E37_79B9)).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
}

impl Simulation {
    fn new(blocks: u32, block_size: usize, limits: Limits, seed: u64) -> Self {
        Self {
            scheduler: Scheduler::new(BlockPool::new(blocks, block_size), limits),
            cache: vec![0; blocks as usize * block_size],
            random: Draws(seed),
            next_id: 0,
            outputs: HashMap::new(),
            steps: 0,
            preemptions: 0,
        }
    }

    /// Submits a sequence with one of a few prompts, so that prefixes are shared.
    fn submit(&mut self, max_prompt: usize, max_output: usize) {
        let (kind, scope) = (self.random.below(3) as u32, self.random.below(2) as u64);
        let prompt = self.random.below(max_prompt) + 1;
        let output = self.random.below(max_output) + 1;
        let (id, max_length) = (self.next_id, prompt + output);
        let priority = if self.random.below(4) == 0 { Priority::Bulk } else { Priority::Interactive };
        let ids = (0..prompt as u32).map(|at| if at < 20 { at * kind } else { at + id as u32 }).collect();
        self.next_id += 1;
        let need = (max_length - 1).div_ceil(self.scheduler.pool().block_size());
        let result = self.scheduler.submit(NewSequence {
            id,
            scheduling: Scheduling { tenant: scope, prefix_scope: scope, priority },
            ids,
            max_length,
        });
        assert_eq!(result.is_ok(), need <= self.scheduler.pool().total());
        if result.is_ok() {
            self.outputs.insert(id, output);
        }
    }

    fn some_id(&mut self) -> Option<SequenceId> {
        let mut ids: Vec<SequenceId> = self.outputs.keys().copied().collect();
        ids.sort_unstable();
        (!ids.is_empty()).then(|| ids[self.random.below(ids.len())])
    }

    fn cancel(&mut self) {
        if let Some(id) = self.some_id() {
            assert!(self.scheduler.remove(id).is_some());
            self.outputs.remove(&id);
        }
    }

    /// Forks any sequence, waiting or running.
    fn fork(&mut self) {
        if let Some(id) = self.some_id() {
            assert!(self.scheduler.fork(id, self.next_id));
            self.outputs.insert(self.next_id, self.outputs[&id]);
            self.next_id += 1;
        }
    }

    /// Computes a step, checks it, and appends or finishes.
    fn step(&mut self) {
        let computed: HashMap<SequenceId, usize> =
            self.scheduler.running.iter().map(|sequence| (sequence.id, sequence.computed)).collect();
        // Bulk sequences make progress only if no interactive one waits.
        let is_interactive = |sequence: &&Sequence| sequence.scheduling.priority == Priority::Interactive;
        let waits = self.scheduler.waiting.iter().any(|sequence| is_interactive(&sequence));
        let oldest = self.scheduler.running.first().filter(|oldest| is_interactive(oldest) || !waits);
        let oldest = oldest.map(|sequence| sequence.id);
        let step = self.scheduler.next_step(usize::MAX);
        self.check(&step, &computed, oldest);
        let size = self.scheduler.pool().block_size();
        for BlockCopy { source, destination } in &step.copies {
            let source = *source as usize * size;
            self.cache.copy_within(source..source + size, *destination as usize * size);
        }
        for work in &step.work {
            let ids = self.scheduler.ids(work.id).unwrap();
            let table = self.scheduler.block_table(work.id).unwrap();
            let slot = |position: usize| table[position / size] as usize * size + position % size;
            let scope = self
                .scheduler
                .running
                .iter()
                .find(|other| other.id == work.id)
                .unwrap()
                .scheduling
                .prefix_scope;
            let mut hash = scope;
            for (position, &token) in ids.iter().enumerate().take(work.range.end) {
                hash = prefix_hash(hash, token);
                if position < work.range.start {
                    assert_eq!(
                        self.cache[slot(position)],
                        hash,
                        "position {position} of sequence {}",
                        work.id
                    );
                } else {
                    self.cache[slot(position)] = hash;
                }
            }
        }
        self.scheduler.advance(&step);
        for work in step.work.iter().filter(|work| work.needs_logits) {
            let left = self.outputs.get_mut(&work.id).unwrap();
            *left -= 1;
            let left = *left;
            let continues = self.scheduler.append(work.id, self.random.below(5) as u32);
            assert_eq!(continues, left > 0);
            if left == 0 || self.random.below(50) == 0 {
                assert!(self.scheduler.remove(work.id).is_some());
                self.outputs.remove(&work.id);
            }
        }
        self.steps += 1;
        self.preemptions += step.preempted.len();
    }

    fn check(&self, step: &Step, computed: &HashMap<SequenceId, usize>, oldest: Option<SequenceId>) {
        let Limits { step_tokens, prefill_tokens, sequences, .. } = self.scheduler.limits;
        let tokens: usize = step.work.iter().map(|work| work.range.len()).sum();
        assert!(tokens <= step_tokens, "{step:?}");
        let prefill: usize = step.work.iter().map(|work| work.range.len()).filter(|&length| length > 1).sum();
        assert!(prefill <= prefill_tokens, "{step:?}");
        assert!(self.scheduler.running() <= sequences);
        assert!(oldest.is_none_or(|id| step.work.iter().any(|work| work.id == id)), "{oldest:?} in {step:?}");
        assert!(!step.work.is_empty() || self.outputs.is_empty(), "{step:?}");
        for (at, work) in step.work.iter().enumerate() {
            assert!(!work.range.is_empty() && !step.preempted.contains(&work.id));
            assert!(step.work[..at].iter().all(|other| other.id != work.id));
            assert!(computed.get(&work.id).is_none_or(|&computed| computed == work.range.start), "{step:?}");
            assert_eq!(work.needs_logits, work.range.end == self.scheduler.ids(work.id).unwrap().len());
        }
        for (at, copy) in step.copies.iter().enumerate() {
            let writes = |work: &SequenceStep| {
                let table = self.scheduler.block_table(work.id);
                table.is_some_and(|table| table.contains(&copy.destination))
            };
            assert!(step.work.iter().any(writes), "{step:?}");
            assert!(step.copies[..at].iter().all(|other| other.destination != copy.destination), "{step:?}");
        }
        assert!(self.scheduler.waiting.iter().is_sorted_by_key(|sequence| sequence.arrival));
        assert!(self.scheduler.running.iter().is_sorted_by_key(Sequence::order));
        assert!(self.scheduler.waiting.iter().all(|sequence| sequence.table.blocks().is_empty()));
    }

    /// Computes steps until every sequence is finished.
    fn drain(&mut self) {
        let limit = self.steps + 100_000;
        while !self.outputs.is_empty() {
            self.step();
            assert!(self.steps < limit, "generation does not end");
        }
        assert_eq!((self.scheduler.running(), self.scheduler.waiting()), (0, 0));
        assert_eq!(self.scheduler.pool().free(), self.scheduler.pool().total());
    }
}

proptest! {
    #[test]
    fn every_position_is_computed_in_order(
        (blocks, block_size) in (1_u32..30, 1_usize..6),
        (step_tokens, prefill_tokens, sequences, watermark) in (1_usize..20, 1_usize..20, 1_usize..9, 0_usize..4),
        events in proptest::collection::vec(0_u8..12, 0..120),
        seed in any::<u64>(),
    ) {
        let limits = Limits { step_tokens, prefill_tokens, sequences, watermark };
        let mut simulation = Simulation::new(blocks, block_size, limits, seed);
        for event in events {
            match event {
                0..4 => simulation.submit(40, 30),
                4 => simulation.cancel(),
                5 => simulation.fork(),
                6 if seed % 4 == 0 => lose_cache(&mut simulation.scheduler),
                _ => simulation.step(),
            }
        }
        simulation.drain();
    }
}

#[test]
fn many_sequences_over_ten_thousand_steps_leave_nothing_behind() {
    let limits = Limits { step_tokens: 1024, prefill_tokens: 512, sequences: 64, watermark: 8 };
    let mut simulation = Simulation::new(600, 16, limits, 1);
    let start = Instant::now();
    let mut most_running = 0;
    while simulation.steps < 10_000 {
        most_running = most_running.max(simulation.scheduler.running());
        while simulation.outputs.len() < 80 {
            simulation.submit(300, 300);
        }
        match simulation.random.below(100) {
            0 => simulation.cancel(),
            1 => simulation.fork(),
            _ => simulation.step(),
        }
    }
    simulation.drain();
    assert!(
        simulation.preemptions > 0 && most_running > 60,
        "{} preemptions, {most_running} running",
        simulation.preemptions
    );
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}
