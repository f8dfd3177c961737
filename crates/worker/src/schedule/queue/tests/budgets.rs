//! Tests of batch budgets and of the measured rate.

use proptest::prelude::*;

use super::*;
use crate::schedule::next_batch::{Budget, LOOKAHEAD, WaitingText};

const IDLE: Traffic = Traffic { interactive: false, last: Priority::Interactive };

fn budget(rows: usize, cost: BatchLayout) -> Budget {
    let most = usize::MAX / 2;
    Budget {
        interactive: most,
        bulk: most,
        shared: most,
        rows,
        max_bulk_wait: Duration::from_millis(500),
        cost,
    }
}

fn texts(lengths: &[usize], output_kind: OutputKind) -> Vec<WaitingText> {
    let arrived = Instant::now();
    lengths.iter().map(|&tokens| WaitingText { tokens, output_kind, arrived }).collect()
}

fn members(list: &[WaitingText], budget: &Budget) -> Vec<usize> {
    next_batch(list, &[], Instant::now(), budget, IDLE).expect("something waits").members
}

proptest! {
    #[test]
    fn no_batch_has_more_rows_than_its_budget(
        lengths in prop::collection::vec(1usize..50, 1..40), pooled: bool, padded: bool, most in 1usize..200,
    ) {
        let output_kind = if pooled { OutputKind::Pooled } else { OutputKind::Tokens };
        let cost = if padded { BatchLayout::Padded } else { BatchLayout::Packed };
        let list = texts(&lengths, output_kind);
        let members = members(&list, &budget(most, cost));
        let rows_of = |at: usize| if pooled { 1 } else { lengths[at] };
        let rows: usize = members.iter().map(|&at| rows_of(at)).sum();
        prop_assert!(rows <= most || members.len() == 1, "{rows} rows of {most}");
        for at in (0..lengths.len()).filter(|at| !members.contains(at)) {
            prop_assert!(rows + rows_of(at) > most, "text {at} would have fitted");
        }
    }
}

#[test]
fn only_padded_batches_prefer_texts_of_similar_length() {
    let list = texts(&[100, 10, 90, 60, 95], OutputKind::Pooled);
    let within = |cost| members(&list, &Budget { interactive: 300, ..budget(9, cost) });
    assert_eq!(within(BatchLayout::Padded), [0, 2, 4]);
    assert_eq!(within(BatchLayout::Packed), [0, 1, 2, 3], "in the order of arrival");
}

#[test]
fn texts_beyond_the_lookahead_wait() {
    let list = texts(&vec![1; LOOKAHEAD + 3], OutputKind::Pooled);
    assert_eq!(members(&list, &budget(usize::MAX, BatchLayout::Packed)).len(), LOOKAHEAD);
}

#[test]
fn bulk_is_overdue_after_its_maximum_wait_and_not_at_it() {
    let (interactive, bulk) = (texts(&[1], OutputKind::Pooled), texts(&[1], OutputKind::Pooled));
    let after = |milliseconds| {
        let now = bulk[0].arrived + Duration::from_millis(milliseconds);
        let pick = next_batch(&interactive, &bulk, now, &budget(9, BatchLayout::Packed), IDLE);
        pick.expect("something waits").priority
    };
    assert_eq!(after(500), Priority::Interactive);
    assert_eq!(after(501), Priority::Bulk);
}

#[test]
fn a_batch_corrects_the_rate_only_if_it_is_large_and_took_time() {
    // At 10,000 tokens a second half of the 20 ms of a short batch are 100 tokens, shared by the workers.
    for (tokens, seconds, concurrency, expected) in [
        (100, 0.1, 1, 10_000.0),
        (101, 0.01, 1, 10_010.0),
        (25, 0.1, 4, 10_000.0),
        (26, 0.01, 4, 9_260.0),
        (101, 0.01, 0, 10_010.0),
        (100, 0.1, 0, 10_000.0),
        (101, 0.0, 1, 10_000.0),
        (101, -0.01, 1, 10_000.0),
    ] {
        let mut rate = Rate { min_seconds: 0.0, tokens_per_second: 10_000.0 };
        rate.observe(tokens, seconds, concurrency);
        let got = rate.tokens_per_second;
        assert!((got - expected).abs() < 1e-6, "{tokens} tokens in {seconds} s of {concurrency}: {got}");
    }
}

#[test]
fn the_budget_is_never_zero_and_rows_are_bounded_by_their_width() {
    let rate = Rate { min_seconds: 0.0, tokens_per_second: 100.0 };
    let rows = |width| rate.budget(BatchLayout::Packed, width, 1, 0).rows;
    assert_eq!([rows(384), rows(1), rows(0), rows(usize::MAX)], [(16 << 20) / 384, 16 << 20, 16 << 20, 1]);
    let budget = rate.budget(BatchLayout::Padded, 384, 64, 0);
    assert_eq!((budget.interactive, budget.bulk, budget.shared), (1, 1, 1));
    assert_eq!((budget.cost, budget.max_bulk_wait), (BatchLayout::Padded, Duration::from_millis(500)));
    assert_eq!(rate.budget(BatchLayout::Packed, 384, 0, 0).bulk, 20, "no worker counts as one");
}

#[test]
fn a_rate_is_the_best_measured_and_at_least_one_token_a_second() {
    let best = Rate::from(&[(10, 0.01), (100, 0.02), (400, 0.16)]);
    assert_eq!(best, Rate { min_seconds: 0.01, tokens_per_second: 5000.0 });
    assert_eq!(Rate::from(&[]), Rate { min_seconds: 0.0, tokens_per_second: 1.0 });
    assert!(Rate::from(&[(10, 0.0)]).tokens_per_second.is_finite());
    let slow = Rate { min_seconds: 0.0, tokens_per_second: 0.5 };
    assert!((slow.seconds(10) - 10.0).abs() < 1e-9);
    assert_eq!(best.tokens(0.5), 2500);
}
