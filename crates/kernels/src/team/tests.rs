//! Tests of teams: every task runs once, parked threads wake, panics reach the caller.

use std::collections::BTreeSet;

use super::*;

#[test]
fn every_task_runs_once_over_many_regions() {
    for count in [1, 2, 3, 8] {
        let team = Team::new(count);
        assert_eq!(team.count(), count);
        for round in 0..5_000usize {
            let tasks = round % 17;
            let ran: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            team.for_each(tasks, |task| {
                ran[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == 1), "{count} threads, round {round}");
        }
    }
}

#[test]
fn results_and_items_keep_their_order() {
    let team = Team::new(4);
    assert_eq!(team.map(100, |task| task * task), (0..100).map(|task| task * task).collect::<Vec<_>>());
    let mut values = vec![0; 1000];
    team.each(values.chunks_mut(7).enumerate(), |(part, values)| values.fill(part));
    assert!(values.iter().enumerate().all(|(at, part)| *part == at / 7));
    for count in [0, 1, 31, 32, 33, 500] {
        let parts: Vec<Vec<usize>> = team.in_parts((0..count).collect()).collect();
        assert!(parts.len() <= 32 && parts.len() >= count.min(17));
        assert_eq!(parts.concat(), (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn all_threads_write_zeros() {
    for count in [0, 1, VALUES, 3 * VALUES + 1] {
        assert_eq!(Team::new(3).zeros(count), vec![0.0; count]);
    }
}

#[test]
fn helpers_that_have_parked_are_woken() {
    let team = Team::new(3);
    for _ in 0..20 {
        thread::sleep(SPIN * 20);
        let threads = Mutex::new(BTreeSet::new());
        // Tasks that wait for one another need as many threads.
        let arrived = AtomicUsize::new(0);
        team.for_each(3, |_| {
            threads
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(format!("{:?}", thread::current().id()));
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < 3 {
                thread::yield_now();
            }
        });
        assert_eq!(threads.into_inner().unwrap_or_else(PoisonError::into_inner).len(), 3);
    }
}

#[test]
fn the_caller_waits_for_a_slow_helper() {
    let team = Team::new(2);
    let (started, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    team.for_each(2, |_| {
        let first = started.fetch_add(1, Ordering::SeqCst) == 0;
        while started.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        // One of both is slower than any spinning.
        thread::sleep(if first { Duration::from_millis(50) } else { Duration::ZERO });
        done.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(done.load(Ordering::SeqCst), 2);
}

#[test]
fn a_region_in_a_region_runs_on_its_thread() {
    let team = Team::new(2);
    let count = AtomicUsize::new(0);
    team.for_each(4, |_| {
        let own = thread::current().id();
        team.for_each(4, |_| {
            assert_eq!(thread::current().id(), own);
            count.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(count.into_inner(), 16);
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_goes_on() {
    let team = Team::new(2);
    for round in 0..200 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            team.for_each(8, |task| assert_ne!(task, round % 8, "task {task}"));
        }));
        let panic = result.expect_err("a task panics");
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains(&format!("task {}", round % 8)), "{message}");
        assert_eq!(team.map(5, |task| task), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn callers_on_several_threads_do_not_disturb_each_other() {
    let team = Team::new(2);
    thread::scope(|scope| {
        for caller in 0..4usize {
            let team = &team;
            scope.spawn(move || {
                for round in 0..2_000usize {
                    let sums = team.map(6, |task| caller + round + task);
                    assert_eq!(sums, (0..6).map(|task| caller + round + task).collect::<Vec<_>>());
                }
            });
        }
    });
}
