//! Tests of the queue.

use sconce::core::batch::Want;
use sconce::tokens::Tokenized;

use super::*;

fn job(lengths: &[usize], priority: Priority) -> Arc<Job> {
    of(1, lengths, priority)
}

fn of(owner: u64, lengths: &[usize], priority: Priority) -> Arc<Job> {
    let text = |&length: &usize| Tokenized {
        ids: vec![1; length],
        types: vec![0; length],
        whole: length,
        ..Tokenized::default()
    };
    let texts = lengths.iter().map(text).collect();
    Arc::new(Job::new(texts, Want::Pooled, priority, false, Owner(owner)).0)
}

fn queue() -> Queue {
    Queue::new(Rate { least: 0.001, tokens_per_second: 1000.0 }, 2.0)
}

#[test]
fn room_is_counted_in_tokens_and_what_is_alone_has_always_room() {
    let queue = queue();
    queue.admit(&job(&[5000], Priority::Bulk)).expect("alone");
    let full = queue.admit(&job(&[10], Priority::Bulk)).expect_err("no room");
    assert!((full.seconds - 3.01).abs() < 0.01, "{full:?}");
    queue.admit(&job(&[10], Priority::Interactive)).expect("another list");
    assert_eq!(queue.size(), (2, 5010));
}

#[test]
fn what_nobody_waits_for_is_never_taken() {
    let queue = queue();
    let (gone, stays) = (job(&[10, 20, 30], Priority::Interactive), job(&[7], Priority::Interactive));
    queue.admit(&gone).expect("room");
    queue.admit(&stays).expect("room");
    assert_eq!(queue.leave(&gone), 60);
    assert_eq!(queue.size(), (1, 7));
    let batch = queue.next(0, || (Cost::Packed, 1), 1).expect("something waits");
    assert_eq!(batch.entries.len(), 1);
    assert!(Arc::ptr_eq(&batch.entries[0].job, &stays));
    queue.close();
    assert!(queue.next(0, || (Cost::Packed, 1), 1).is_none());
}

#[test]
fn a_batch_leaves_the_others_in_their_order() {
    let queue = queue();
    let all = job(&[30, 30, 10], Priority::Interactive);
    queue.admit(&all).expect("room");
    let taken = |batch: Taken<'_>| batch.entries.iter().map(|entry| entry.index).collect::<Vec<_>>();
    // Fifty milliseconds are fifty tokens.
    assert_eq!(taken(queue.next(0, || (Cost::Packed, 1), 1).expect("a batch")), [0, 2]);
    assert_eq!(taken(queue.next(0, || (Cost::Packed, 1), 1).expect("a batch")), [1]);
    assert_eq!(queue.size(), (0, 0));
}

#[test]
fn a_spare_hand_takes_interactive_texts_while_all_others_are_busy_with_bulk() {
    let queue = queue();
    let hand = |hand| queue.next(hand, || (Cost::Packed, 2), 1);
    queue.admit(&job(&[10; 40], Priority::Bulk)).expect("room");
    let first = hand(0).expect("bulk");
    thread::scope(|scope| {
        let spare = scope.spawn(|| hand(2));
        let second = hand(1).expect("bulk");
        thread::sleep(Duration::from_millis(20));
        assert!(!spare.is_finished(), "bulk is not for it");
        let waits = job(&[5], Priority::Interactive);
        queue.admit(&waits).expect("room");
        let taken = spare.join().expect("no panic").expect("a text");
        assert!(Arc::ptr_eq(&taken.entries[0].job, &waits));
        drop((first, second));
        assert_eq!(queue.lock().bulk_at_work, 0);
        assert_eq!(queue.lock().busy.batches(), 0);
        let spare = scope.spawn(|| hand(2).is_none());
        queue.admit(&job(&[5], Priority::Interactive)).expect("room");
        thread::sleep(Duration::from_millis(20));
        assert!(!spare.is_finished(), "the others have nothing to do");
        queue.close();
        assert!(spare.join().expect("no panic"));
    });
}

#[test]
fn an_owner_who_floods_leaves_the_others_their_share() {
    let queue = queue();
    let interactive = Priority::Interactive;
    while queue.admit(&of(1, &[40; 5], interactive)).is_ok() {}
    assert_eq!(queue.size().1, 2000, "two seconds of work");
    let other = of(2, &[10], interactive);
    queue.admit(&other).expect("the other has its share");
    queue.admit(&of(1, &[10], interactive)).expect_err("the first has had more than its share");
    let batch = queue.next(0, || (Cost::Packed, 1), 1).expect("a batch");
    assert!(Arc::ptr_eq(&batch.entries[0].job, &other), "who has had nothing goes first");
    // From here on both have something waiting, and take turns.
    queue.admit(&of(2, &[20; 40], interactive)).expect("within its share");
    for _ in 0..6 {
        let batch = queue.next(0, || (Cost::Packed, 1), 1).expect("a batch");
        let tokens = |owner| {
            let own = batch.entries.iter().filter(|entry| entry.job.owner == Owner(owner));
            own.map(Entry::tokens).sum::<usize>()
        };
        assert_eq!(tokens(1) + tokens(2), 100, "a tenth of a second, since two wait");
    }
    let (own, owners) = queue.lock().interactive.share(Owner(2));
    assert!(
        (240..=360).contains(&(800 - own)),
        "half of six batches of a hundred tokens, and not {}",
        800 - own
    );
    assert_eq!(owners, 2);
}
