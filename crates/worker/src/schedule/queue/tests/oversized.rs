//! Tests of jobs that are larger than the queue.

use super::*;

const BULK: Priority = Priority::Bulk;

/// The next batch: for each text its job and its index.
fn batch(queue: &Queue) -> Vec<(Arc<Job>, usize)> {
    let taken = queue.next(0, || (BatchLayout::Packed, 1), 1).expect("something waits");
    taken.entries.iter().map(|entry| (Arc::clone(&entry.job), entry.index)).collect()
}

/// Tokens in the list of bulk, and texts and tokens in its backlog.
fn bulk(queue: &Queue) -> (usize, (usize, usize)) {
    let state = queue.lock();
    (state.bulk.tokens(), state.bulk.backlog())
}

#[test]
fn an_oversized_job_leaves_capacity_for_others_and_they_do_not_wait_for_its_end() {
    let queue = queue();
    // Ten seconds of work, where two may wait.
    let large = job(&[100; 100], BULK);
    queue.admit(&large).expect("an empty queue admits any job");
    assert_eq!(queue.size(), (100, 10_000));
    assert_eq!(bulk(&queue), (500, (95, 9500)), "a quarter of the queue");
    let others: Vec<_> = (0..10).map(|_| job(&[50], BULK)).collect();
    for other in &others {
        queue.admit(other).expect("an oversized job leaves capacity");
    }
    let (mut waits, mut indexes) = (others.len(), Vec::new());
    for _ in 0..100 {
        for (of, index) in batch(&queue) {
            if Arc::ptr_eq(&of, &large) {
                indexes.push(index);
            } else {
                waits -= 1;
            }
        }
        if waits == 0 {
            break;
        }
    }
    assert!(waits == 0 && indexes.len() <= 10, "{waits} wait after {} texts", indexes.len());
    while queue.size().0 > 0 {
        indexes.extend(batch(&queue).into_iter().map(|(_, index)| index));
    }
    indexes.sort_unstable();
    assert_eq!(indexes, (0..100).collect::<Vec<_>>(), "every text is taken once");
    assert_eq!(bulk(&queue), (0, (0, 0)));
}

#[test]
fn a_second_oversized_job_is_refused_until_the_first_is_gone() {
    let queue = queue();
    let first = job(&[100; 60], BULK);
    queue.admit(&first).expect("an empty queue admits any job");
    // Of 6000 tokens 5500 are in the backlog.
    let full = queue.admit(&job(&[100; 60], BULK)).expect_err("the backlog is full");
    assert!((full.seconds - 9.0).abs() < 1e-6, "{full:?}");
    queue.admit(&of(2, &[100; 60], BULK)).expect("another tenant has its share");
    assert_eq!(queue.cancel(&first), 6000);
    assert_eq!(queue.size(), (60, 6000));
    queue.admit(&job(&[100; 60], BULK)).expect("this tenant has nothing waiting");
}

#[test]
fn a_job_of_up_to_half_the_queue_waits_whole() {
    let queue = queue();
    queue.admit(&job(&[100; 10], BULK)).expect("capacity");
    assert_eq!(bulk(&queue), (1000, (0, 0)));
    queue.admit(&job(&[100; 10], BULK)).expect("capacity");
    queue.admit(&job(&[1], BULK)).expect_err("the queue is full");
    queue.admit(&job(&[101; 10], BULK)).expect_err("so is it for a part of an oversized job");
}
