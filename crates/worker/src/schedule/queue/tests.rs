//! Tests of the queue.

use std::sync::atomic::{AtomicUsize, Ordering};

use sconce::core::batch::OutputKind;
use sconce::tokenize::TokenSequence;

use super::*;

mod budgets;
mod fairness;
mod outcome;
mod oversized;

fn job(lengths: &[usize], priority: Priority) -> Arc<Job> {
    of(1, lengths, priority)
}

fn of(tenant: u64, lengths: &[usize], priority: Priority) -> Arc<Job> {
    let text = |&length: &usize| TokenSequence {
        ids: vec![1; length],
        type_ids: vec![0; length],
        full_length: length,
        ..TokenSequence::default()
    };
    let texts = lengths.iter().map(text).collect();
    Arc::new(Job::new(texts, OutputKind::Pooled, priority, false, TenantId(tenant)).0)
}

fn queue() -> Queue {
    Queue::new(Rate { min_seconds: 0.001, tokens_per_second: 1000.0 }, 2.0)
}

#[test]
fn capacity_is_counted_in_tokens_and_an_empty_queue_admits_any_job() {
    let queue = queue();
    queue.admit(&job(&[5000], Priority::Bulk)).expect("alone");
    let full = queue.admit(&job(&[10], Priority::Bulk)).expect_err("the queue is full");
    assert!((full.seconds - 3.01).abs() < 0.01, "{full:?}");
    queue.admit(&job(&[10], Priority::Interactive)).expect("another list");
    assert_eq!(queue.size(), (2, 5010));
}

#[test]
fn cancelled_jobs_are_never_computed() {
    let queue = queue();
    let (cancelled, kept) = (job(&[10, 20, 30], Priority::Interactive), job(&[7], Priority::Interactive));
    queue.admit(&cancelled).expect("capacity");
    queue.admit(&kept).expect("capacity");
    assert_eq!(queue.cancel(&cancelled), 60);
    assert_eq!(queue.size(), (1, 7));
    let batch = queue.next(0, || (BatchLayout::Packed, 1), 1).expect("something waits");
    assert_eq!(batch.entries.len(), 1);
    assert!(Arc::ptr_eq(&batch.entries[0].job, &kept));
    queue.close();
    assert!(queue.next(0, || (BatchLayout::Packed, 1), 1).is_none());
}

#[test]
fn a_batch_keeps_the_order_of_the_other_texts() {
    let queue = queue();
    let all = job(&[30, 30, 10], Priority::Interactive);
    queue.admit(&all).expect("capacity");
    let taken = |batch: ActiveBatch<'_>| batch.entries.iter().map(|entry| entry.index).collect::<Vec<_>>();
    // Fifty milliseconds are fifty tokens.
    assert_eq!(taken(queue.next(0, || (BatchLayout::Packed, 1), 1).expect("a batch")), [0, 2]);
    assert_eq!(taken(queue.next(0, || (BatchLayout::Packed, 1), 1).expect("a batch")), [1]);
    assert_eq!(queue.size(), (0, 0));
}

#[test]
fn the_spare_worker_takes_interactive_texts_while_all_others_are_busy_with_bulk() {
    let queue = queue();
    let next = |worker| queue.next(worker, || (BatchLayout::Packed, 2), 1);
    queue.admit(&job(&[10; 40], Priority::Bulk)).expect("capacity");
    let first = next(0).expect("bulk");
    thread::scope(|scope| {
        let spare = scope.spawn(|| next(2));
        let second = next(1).expect("bulk");
        thread::sleep(Duration::from_millis(20));
        assert!(!spare.is_finished(), "bulk is not for it");
        let waits = job(&[5], Priority::Interactive);
        queue.admit(&waits).expect("capacity");
        let taken = spare.join().expect("no panic").expect("a text");
        assert!(Arc::ptr_eq(&taken.entries[0].job, &waits));
        drop((first, second));
        assert_eq!(queue.lock().bulk_in_flight, 0);
        assert_eq!(queue.lock().in_flight.batches(), 0);
        let spare = scope.spawn(|| next(2).is_none());
        queue.admit(&job(&[5], Priority::Interactive)).expect("capacity");
        thread::sleep(Duration::from_millis(20));
        assert!(!spare.is_finished(), "the others have nothing to do");
        queue.close();
        assert!(spare.join().expect("no panic"));
    });
}

#[test]
fn a_flooding_tenant_leaves_the_others_their_share() {
    let queue = queue();
    let interactive = Priority::Interactive;
    while queue.admit(&of(1, &[40; 5], interactive)).is_ok() {}
    assert_eq!(queue.size().1, 2000, "two seconds of work");
    let other = of(2, &[10], interactive);
    queue.admit(&other).expect("the other has its share");
    queue.admit(&of(1, &[10], interactive)).expect_err("the first has had more than its share");
    let batch = queue.next(0, || (BatchLayout::Packed, 1), 1).expect("a batch");
    assert!(Arc::ptr_eq(&batch.entries[0].job, &other), "the tenant without served work goes first");
    // From here on both tenants have waiting work and are served alternately.
    queue.admit(&of(2, &[20; 40], interactive)).expect("within its share");
    for _ in 0..6 {
        let batch = queue.next(0, || (BatchLayout::Packed, 1), 1).expect("a batch");
        let tokens = |tenant| {
            let own = batch.entries.iter().filter(|entry| entry.job.tenant == TenantId(tenant));
            own.map(Entry::tokens).sum::<usize>()
        };
        assert_eq!(tokens(1) + tokens(2), 100, "a tenth of a second, since two wait");
    }
    let (own, tenants) = queue.lock().interactive.share(TenantId(2));
    assert!(
        (240..=360).contains(&(800 - own)),
        "half of six batches of a hundred tokens, and not {}",
        800 - own
    );
    assert_eq!(tenants, 2);
}

#[test]
fn admission_holds_at_its_exact_bounds() {
    let (bulk, queue) = (Priority::Bulk, queue());
    // Two seconds of work are 2000 tokens.
    queue.admit(&of(1, &[1500], bulk)).expect("an empty queue admits any job");
    queue.capacity(bulk, TenantId(1), 500).expect("the queue is exactly full");
    let full = queue.capacity(bulk, TenantId(1), 501).expect_err("one token more");
    assert!((full.seconds - 0.001).abs() < 1e-9, "{full:?}");
    queue.capacity(bulk, TenantId(2), 5000).expect("a tenant without waiting work");
    queue.admit(&of(2, &[900], bulk)).expect("a tenant without waiting work");
    queue.capacity(bulk, TenantId(2), 100).expect("half of the queue for one of two tenants");
    queue.capacity(bulk, TenantId(2), 101).expect_err("one token more than half");
    queue.capacity(bulk, TenantId(1), 1).expect_err("this tenant has more than half");
    queue.set_limit(3.0);
    queue.capacity(bulk, TenantId(2), 600).expect("a longer queue");
    queue.close();
    assert_eq!(queue.admit(&of(3, &[1], bulk)), Err(QueueFull { seconds: 1.0 }));
}

#[test]
fn bulk_batches_are_short_only_after_recent_interactive_requests() {
    let now = Instant::now();
    let tokens_after = |interactive_at| {
        let queue = queue();
        queue.admit(&job(&[10; 40], Priority::Bulk)).expect("capacity");
        assert_eq!(queue.lock().interactive_at, None);
        queue.lock().interactive_at = interactive_at;
        let batch = queue.next(0, || (BatchLayout::Packed, 1), 1).expect("a batch");
        batch.entries.iter().map(Entry::tokens).sum::<usize>()
    };
    assert_eq!(tokens_after(None), 200);
    assert_eq!(tokens_after(now.checked_sub(2 * INTERACTIVE_WINDOW)), 200);
    assert_eq!(tokens_after(Some(now + Duration::from_hours(1))), 20);
    let queue = queue();
    let waits = job(&[10], Priority::Interactive);
    queue.admit(&waits).expect("capacity");
    assert_eq!(queue.lock().interactive_at, Some(waits.arrived));
}

#[test]
fn only_workers_within_the_concurrency_limit_take_batches() {
    let (bulk, interactive) = (Priority::Bulk, Priority::Interactive);
    for (worker, concurrency, busy, expected) in [
        // Regular workers take what waits, in a closed queue as well.
        (0, 1, &[][..], Some(2)),
        (1, 2, &[bulk], Some(2)),
        // The spare worker needs all others busy, and one of them with bulk.
        (2, 2, &[bulk, interactive], Some(1)),
        (2, 2, &[interactive, interactive], None),
        (2, 2, &[bulk], None),
        // A single worker has no spare, and workers above the spare sleep.
        (1, 1, &[bulk], None),
        (3, 2, &[bulk, interactive], None),
    ] {
        let queue = queue();
        let now = Instant::now();
        let in_flight: Vec<ActiveBatch<'_>> =
            busy.iter().map(|&one| taken(&queue, now, one, false)).collect();
        queue.admit(&job(&[6, 6], interactive)).expect("capacity");
        queue.close();
        let batch = queue.next(worker, || (BatchLayout::Packed, concurrency), 1);
        let texts = batch.as_ref().map(|batch| batch.entries.len());
        assert_eq!(texts, expected, "worker {worker} of {concurrency} beside {busy:?}");
        assert_eq!(batch.is_some_and(|batch| batch.spare), worker == concurrency && expected.is_some());
        drop(in_flight);
        let state = queue.lock();
        assert_eq!((state.in_flight.batches(), state.bulk_in_flight), (0, 0));
    }
}

/// A batch without texts that began at this time.
fn taken(queue: &Queue, began: Instant, priority: Priority, spare: bool) -> ActiveBatch<'_> {
    let mut state = queue.lock();
    let worker_seconds = state.in_flight.update(began, isize::from(!spare));
    state.bulk_in_flight += usize::from(!spare && priority == Priority::Bulk);
    drop(state);
    ActiveBatch {
        entries: Vec::new(),
        began,
        tokens: 0,
        priority,
        spare,
        concurrency: 2,
        worker_seconds,
        queue,
    }
}

#[test]
fn a_worker_above_the_concurrency_limit_sleeps_until_the_limit_grows() {
    let queue = queue();
    queue.admit(&job(&[6], Priority::Interactive)).expect("capacity");
    let asked = AtomicUsize::new(0);
    let limit = || (BatchLayout::Packed, if asked.fetch_add(1, Ordering::Relaxed) == 0 { 1 } else { 2 });
    let batch = queue.next(1, limit, 1).expect("it takes a batch once it is within the limit");
    assert!(!batch.spare);
}

#[test]
fn the_rate_counts_batches_that_run_at_once() {
    let day = Duration::from_hours(24);
    let rate_after = |batches: usize, spare: bool| {
        let queue = queue();
        // The work of the day before does not count.
        let start = Instant::now();
        queue.lock().in_flight.update(start, 3);
        queue.lock().in_flight.update(start + day, -3);
        let one = |_| taken(&queue, start + day, Priority::Bulk, spare);
        let all: Vec<ActiveBatch<'_>> = (0..batches).map(one).collect();
        all[0].observe(2000 * 86_400, start + 2 * day);
        queue.rate().tokens_per_second
    };
    // A tenth of the difference: 2000 tokens a second alone, 4000 where two batches ran.
    assert!((rate_after(1, false) - 1100.0).abs() < 1.0, "{}", rate_after(1, false));
    assert!((rate_after(2, false) - 1300.0).abs() < 1.0, "{}", rate_after(2, false));
    assert!((rate_after(1, true) - 1000.0).abs() < 1e-9, "the spare worker is not measured");
}

#[test]
fn tokens_are_unfinished_until_their_batch_ends() {
    let queue = queue();
    queue.admit(&job(&[30, 30, 10], Priority::Interactive)).expect("capacity");
    assert_eq!(queue.unfinished_tokens(), 70);
    let batch = queue.next(0, || (BatchLayout::Packed, 1), 1).expect("a batch");
    assert_eq!((queue.size().1, queue.unfinished_tokens()), (30, 70));
    drop(batch);
    assert_eq!(queue.unfinished_tokens(), 30);
}
