//! Batch formation: which waiting texts are computed next, a pure function of the waiting texts, the budget and the time.

use std::time::{Duration, Instant};

use sconce::core::batch::OutputKind;
use sconce::core::engine::BatchLayout;

/// Maximum number of waiting texts that are considered for one batch.
pub(crate) const LOOKAHEAD: usize = 4096;

/// The priority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Latency matters: a user waits for the response.
    Interactive,
    /// Throughput matters.
    Bulk,
}

/// A waiting text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingText {
    pub(crate) tokens: usize,
    /// All texts of a batch have the same output kind.
    pub(crate) output_kind: OutputKind,
    pub(crate) arrived: Instant,
}

/// Limits on batch size, derived from the measured throughput of the active placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Budget {
    /// Maximum tokens of an interactive batch.
    pub(crate) interactive: usize,
    /// Maximum tokens of a bulk batch without interactive traffic.
    pub(crate) bulk: usize,
    /// Maximum tokens of a bulk batch during interactive traffic.
    pub(crate) shared: usize,
    /// Maximum output rows of a batch.
    pub(crate) rows: usize,
    /// Time that bulk waits behind interactive traffic before it gets every other batch.
    pub(crate) max_bulk_wait: Duration,
    /// Whether the placement pads or packs sequences.
    pub(crate) cost: BatchLayout,
}

/// Recent traffic of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Whether an interactive request arrived recently.
    pub(crate) interactive: bool,
    /// Priority of the last batch.
    pub(crate) last: Priority,
}

/// The texts selected for the next batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) priority: Priority,
    /// Indices into the list of this priority: ascending, at least one.
    pub(crate) members: Vec<usize>,
}

/// Selects the next batch from two lists. The head of the chosen list is always in it, so that no text starves.
pub(crate) fn next_batch(
    interactive: &[WaitingText],
    bulk: &[WaitingText],
    now: Instant,
    budget: &Budget,
    traffic: Traffic,
) -> Option<Selection> {
    let overdue = |first: &WaitingText| now.saturating_duration_since(first.arrived) > budget.max_bulk_wait;
    let priority = match (interactive.first(), bulk.first()) {
        (None, None) => return None,
        (None, Some(_)) => Priority::Bulk,
        (Some(_), Some(first)) if overdue(first) && traffic.last == Priority::Interactive => Priority::Bulk,
        (Some(_), _) => Priority::Interactive,
    };
    let (list, tokens) = match priority {
        Priority::Interactive => (interactive, budget.interactive),
        Priority::Bulk if traffic.interactive || !interactive.is_empty() => (bulk, budget.shared),
        Priority::Bulk => (bulk, budget.bulk),
    };
    let list = &list[..list.len().min(LOOKAHEAD)];
    Some(Selection { priority, members: select(list, tokens, budget.rows, budget.cost) })
}

/// The head of `list` and as many other texts as fit into the batch. Padded batches prefer texts of similar length.
fn select(list: &[WaitingText], tokens: usize, rows: usize, cost: BatchLayout) -> Vec<usize> {
    let Some(first) = list.first() else { return Vec::new() };
    let mut order: Vec<usize> = (0..list.len()).collect();
    if cost == BatchLayout::Padded {
        order.sort_by_key(|&at| (list[at].tokens.abs_diff(first.tokens), at));
    }
    let rows_of = |text: &WaitingText| if text.output_kind == OutputKind::Pooled { 1 } else { text.tokens };
    let mut members: Vec<usize> = Vec::new();
    let (mut sum, mut longest, mut selected_rows) = (0, 0, 0);
    for at in order {
        let text = &list[at];
        let longer = longest.max(text.tokens);
        let size = match cost {
            BatchLayout::Packed => sum + text.tokens,
            BatchLayout::Padded => (members.len() + 1) * longer,
        };
        let fits =
            size <= tokens && selected_rows + rows_of(text) <= rows && text.output_kind == first.output_kind;
        if fits || members.is_empty() {
            members.push(at);
            (sum, longest, selected_rows) = (sum + text.tokens, longer, selected_rows + rows_of(text));
        }
        if cost == BatchLayout::Packed && sum >= tokens {
            break;
        }
    }
    members.sort_unstable();
    members
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_BULK_WAIT: Duration = Duration::from_millis(500);

    fn budget(cost: BatchLayout) -> Budget {
        Budget { interactive: 1000, bulk: 4000, shared: 300, rows: 2000, max_bulk_wait: MAX_BULK_WAIT, cost }
    }

    fn waiting(start: Instant, tokens: usize, milliseconds: u64) -> WaitingText {
        let arrived = start + Duration::from_millis(milliseconds);
        WaitingText { tokens, output_kind: OutputKind::Pooled, arrived }
    }

    /// Texts as tokens and arrival time in milliseconds.
    type List = Vec<(usize, u64)>;

    fn lists() -> impl Strategy<Value = (List, List)> {
        let list = || prop::collection::vec((1usize..700, 0u64..2000), 0..60);
        (list(), list())
    }

    fn sorted(start: Instant, list: &[(usize, u64)]) -> Vec<WaitingText> {
        let mut list: Vec<WaitingText> =
            list.iter().map(|&(tokens, at)| waiting(start, tokens, at)).collect();
        list.sort_by_key(|text| text.arrived);
        list
    }

    proptest! {
        #[test]
        fn a_batch_keeps_its_budget_and_holds_the_oldest(
            (interactive, bulk) in lists(), seen: bool, after_bulk: bool, padded: bool,
        ) {
            let start = Instant::now();
            let now = start + Duration::from_secs(2);
            let (interactive, bulk) = (sorted(start, &interactive), sorted(start, &bulk));
            let cost = if padded { BatchLayout::Padded } else { BatchLayout::Packed };
            let budget = budget(cost);
            let last = if after_bulk { Priority::Bulk } else { Priority::Interactive };
            let traffic = Traffic { interactive: seen, last };
            let Some(selection) = next_batch(&interactive, &bulk, now, &budget, traffic) else {
                prop_assert!(interactive.is_empty() && bulk.is_empty());
                return Ok(());
            };
            let (list, most) = match selection.priority {
                Priority::Interactive => (&interactive, budget.interactive),
                Priority::Bulk if seen || !interactive.is_empty() => (&bulk, budget.shared),
                Priority::Bulk => (&bulk, budget.bulk),
            };
            prop_assert_eq!(selection.members[0], 0);
            prop_assert!(selection.members.windows(2).all(|pair| pair[0] < pair[1]));
            let lengths = || selection.members.iter().map(|&at| list[at].tokens);
            let size = match cost {
                BatchLayout::Packed => lengths().sum::<usize>(),
                BatchLayout::Padded => selection.members.len() * lengths().max().unwrap_or(0),
            };
            prop_assert!(size <= most || selection.members.len() == 1, "{} of {}", size, most);
            // No text that would still fit is left out.
            if cost == BatchLayout::Packed {
                let left = list.iter().enumerate().filter(|(at, _)| !selection.members.contains(at));
                for (_, text) in left {
                    prop_assert!(size + text.tokens > most);
                }
            }
        }

        #[test]
        fn no_text_starves((interactive, bulk) in lists()) {
            let start = Instant::now();
            let (mut interactive, mut bulk) = (sorted(start, &interactive), sorted(start, &bulk));
            let mut now = start + Duration::from_secs(2);
            let mut last = Priority::Interactive;
            let all = interactive.len() + bulk.len();
            let mut seen = 0;
            for _ in 0..=all {
                let traffic = Traffic { interactive: true, last };
                let budget = budget(BatchLayout::Padded);
                let Some(selection) = next_batch(&interactive, &bulk, now, &budget, traffic) else { break };
                let list = if selection.priority == Priority::Bulk { &mut bulk } else { &mut interactive };
                for &at in selection.members.iter().rev() {
                    list.remove(at);
                }
                seen += selection.members.len();
                last = selection.priority;
                now += Duration::from_millis(20);
            }
            prop_assert_eq!(seen, all);
        }
    }

    #[test]
    fn bulk_waits_behind_interactive_until_it_is_overdue_and_then_gets_every_other_batch() {
        let start = Instant::now();
        let (interactive, bulk) = ([waiting(start, 10, 0)], [waiting(start, 10, 0)]);
        let at = |milliseconds, last| {
            let now = start + Duration::from_millis(milliseconds);
            let traffic = Traffic { interactive: true, last };
            next_batch(&interactive, &bulk, now, &budget(BatchLayout::Packed), traffic)
                .map(|selection| selection.priority)
        };
        assert_eq!(at(100, Priority::Interactive), Some(Priority::Interactive));
        assert_eq!(at(600, Priority::Interactive), Some(Priority::Bulk));
        assert_eq!(at(600, Priority::Bulk), Some(Priority::Interactive));
    }

    #[test]
    fn padded_batches_hold_texts_of_similar_length() {
        let start = Instant::now();
        let lengths = [100, 500, 90, 400, 110, 8];
        let list: Vec<WaitingText> =
            (0..).zip(lengths).map(|(at, tokens)| waiting(start, tokens, at)).collect();
        let traffic = Traffic { interactive: false, last: Priority::Interactive };
        let budget = Budget { interactive: 350, ..budget(BatchLayout::Padded) };
        let selection = next_batch(&list, &[], start, &budget, traffic).expect("something waits");
        assert_eq!(selection.members, [0, 2, 4]);
    }

    #[test]
    fn a_batch_has_one_output_kind() {
        let start = Instant::now();
        let mut list = vec![waiting(start, 10, 0); 3];
        list[1].output_kind = OutputKind::Tokens;
        let traffic = Traffic { interactive: false, last: Priority::Interactive };
        let selection =
            next_batch(&list, &[], start, &budget(BatchLayout::Packed), traffic).expect("something waits");
        assert_eq!(selection.members, [0, 2]);
    }
}
