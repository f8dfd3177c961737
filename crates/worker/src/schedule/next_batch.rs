//! Which waiting texts are computed next: a pure function of what waits, what was measured, and the time.

use std::time::{Duration, Instant};

use sconce::core::batch::OutputKind;
use sconce::core::engine::Cost;

/// How many of the texts that wait are looked at: enough for any batch, few enough that looking costs nothing.
pub(crate) const WINDOW: usize = 4096;

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Somebody who looks at a screen.
    Interactive,
    /// A program with much to do.
    Bulk,
}

/// A text that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Its tokens.
    pub(crate) tokens: usize,
    /// What is asked of the engine for it; one batch asks for one thing.
    pub(crate) output_kind: OutputKind,
    /// When it came.
    pub(crate) arrived: Instant,
}

/// How large batches may be, from what was measured on the placement that serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Budget {
    /// Tokens of an interactive batch.
    pub(crate) interactive: usize,
    /// Tokens of a bulk batch that nobody waits behind.
    pub(crate) bulk: usize,
    /// Tokens of a bulk batch while there is interactive traffic.
    pub(crate) shared: usize,
    /// Rows that may leave an engine at once.
    pub(crate) rows: usize,
    /// How long bulk waits behind interactive traffic before it takes every other turn.
    pub(crate) age: Duration,
    /// What batches cost beside their tokens.
    pub(crate) cost: Cost,
}

/// What has been going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Whether anything interactive came lately.
    pub(crate) interactive: bool,
    /// Whose batch was the last.
    pub(crate) last: Priority,
}

/// The texts of the next batch, by their place in the list of their priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    /// Which list.
    pub(crate) priority: Priority,
    /// Places in it, ascending; never none.
    pub(crate) members: Vec<usize>,
}

/// The next batch from two lists in order of arrival. The oldest of the list that has its turn is always in it, so
/// that nothing starves.
pub(crate) fn next_batch(
    interactive: &[Waiting],
    bulk: &[Waiting],
    now: Instant,
    budget: &Budget,
    traffic: Traffic,
) -> Option<Pick> {
    let overdue = |first: &Waiting| now.saturating_duration_since(first.arrived) > budget.age;
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
    let list = &list[..list.len().min(WINDOW)];
    Some(Pick { priority, members: fill(list, tokens, budget.rows, budget.cost) })
}

/// The first of `list` and as many others as go with it.
fn fill(list: &[Waiting], tokens: usize, rows: usize, cost: Cost) -> Vec<usize> {
    let Some(first) = list.first() else { return Vec::new() };
    let mut order: Vec<usize> = (0..list.len()).collect();
    if cost == Cost::Padded {
        order.sort_by_key(|&at| (list[at].tokens.abs_diff(first.tokens), at));
    }
    let rows_of = |text: &Waiting| if text.output_kind == OutputKind::Pooled { 1 } else { text.tokens };
    let mut members: Vec<usize> = Vec::new();
    let (mut sum, mut longest, mut taken) = (0, 0, 0);
    for at in order {
        let text = &list[at];
        let longer = longest.max(text.tokens);
        let size = match cost {
            Cost::Packed => sum + text.tokens,
            Cost::Padded => (members.len() + 1) * longer,
        };
        let fits = size <= tokens && taken + rows_of(text) <= rows && text.output_kind == first.output_kind;
        if fits || members.is_empty() {
            members.push(at);
            (sum, longest, taken) = (sum + text.tokens, longer, taken + rows_of(text));
        }
        if cost == Cost::Packed && sum >= tokens {
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

    const AGE: Duration = Duration::from_millis(500);

    fn budget(cost: Cost) -> Budget {
        Budget { interactive: 1000, bulk: 4000, shared: 300, rows: 2000, age: AGE, cost }
    }

    fn waiting(start: Instant, tokens: usize, milliseconds: u64) -> Waiting {
        let arrived = start + Duration::from_millis(milliseconds);
        Waiting { tokens, output_kind: OutputKind::Pooled, arrived }
    }

    /// Entries as tokens and age.
    type List = Vec<(usize, u64)>;

    fn lists() -> impl Strategy<Value = (List, List)> {
        let list = || prop::collection::vec((1usize..700, 0u64..2000), 0..60);
        (list(), list())
    }

    fn sorted(start: Instant, list: &[(usize, u64)]) -> Vec<Waiting> {
        let mut list: Vec<Waiting> = list.iter().map(|&(tokens, at)| waiting(start, tokens, at)).collect();
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
            let cost = if padded { Cost::Padded } else { Cost::Packed };
            let budget = budget(cost);
            let last = if after_bulk { Priority::Bulk } else { Priority::Interactive };
            let traffic = Traffic { interactive: seen, last };
            let Some(pick) = next_batch(&interactive, &bulk, now, &budget, traffic) else {
                prop_assert!(interactive.is_empty() && bulk.is_empty());
                return Ok(());
            };
            let (list, most) = match pick.priority {
                Priority::Interactive => (&interactive, budget.interactive),
                Priority::Bulk if seen || !interactive.is_empty() => (&bulk, budget.shared),
                Priority::Bulk => (&bulk, budget.bulk),
            };
            prop_assert_eq!(pick.members[0], 0);
            prop_assert!(pick.members.windows(2).all(|pair| pair[0] < pair[1]));
            let lengths = || pick.members.iter().map(|&at| list[at].tokens);
            let size = match cost {
                Cost::Packed => lengths().sum::<usize>(),
                Cost::Padded => pick.members.len() * lengths().max().unwrap_or(0),
            };
            prop_assert!(size <= most || pick.members.len() == 1, "{} of {}", size, most);
            // Nothing that would still fit is left out.
            if cost == Cost::Packed {
                let left = list.iter().enumerate().filter(|(at, _)| !pick.members.contains(at));
                for (_, text) in left {
                    prop_assert!(size + text.tokens > most);
                }
            }
        }

        #[test]
        fn everything_has_its_turn((interactive, bulk) in lists()) {
            let start = Instant::now();
            let (mut interactive, mut bulk) = (sorted(start, &interactive), sorted(start, &bulk));
            let mut now = start + Duration::from_secs(2);
            let mut last = Priority::Interactive;
            let all = interactive.len() + bulk.len();
            let mut seen = 0;
            for _ in 0..=all {
                let traffic = Traffic { interactive: true, last };
                let budget = budget(Cost::Padded);
                let Some(pick) = next_batch(&interactive, &bulk, now, &budget, traffic) else { break };
                let list = if pick.priority == Priority::Bulk { &mut bulk } else { &mut interactive };
                for &at in pick.members.iter().rev() {
                    list.remove(at);
                }
                seen += pick.members.len();
                last = pick.priority;
                now += Duration::from_millis(20);
            }
            prop_assert_eq!(seen, all);
        }
    }

    #[test]
    fn bulk_waits_behind_interactive_until_it_is_old_and_then_takes_every_other_turn() {
        let start = Instant::now();
        let (interactive, bulk) = ([waiting(start, 10, 0)], [waiting(start, 10, 0)]);
        let at = |milliseconds, last| {
            let now = start + Duration::from_millis(milliseconds);
            let traffic = Traffic { interactive: true, last };
            next_batch(&interactive, &bulk, now, &budget(Cost::Packed), traffic).map(|pick| pick.priority)
        };
        assert_eq!(at(100, Priority::Interactive), Some(Priority::Interactive));
        assert_eq!(at(600, Priority::Interactive), Some(Priority::Bulk));
        assert_eq!(at(600, Priority::Bulk), Some(Priority::Interactive));
    }

    #[test]
    fn where_sequences_are_padded_those_of_like_length_go_together() {
        let start = Instant::now();
        let lengths = [100, 500, 90, 400, 110, 8];
        let list: Vec<Waiting> = (0..).zip(lengths).map(|(at, tokens)| waiting(start, tokens, at)).collect();
        let traffic = Traffic { interactive: false, last: Priority::Interactive };
        let budget = Budget { interactive: 350, ..budget(Cost::Padded) };
        let pick = next_batch(&list, &[], start, &budget, traffic).expect("something waits");
        assert_eq!(pick.members, [0, 2, 4]);
    }

    #[test]
    fn one_batch_asks_for_one_thing() {
        let start = Instant::now();
        let mut list = vec![waiting(start, 10, 0); 3];
        list[1].output_kind = OutputKind::Tokens;
        let traffic = Traffic { interactive: false, last: Priority::Interactive };
        let pick = next_batch(&list, &[], start, &budget(Cost::Packed), traffic).expect("something waits");
        assert_eq!(pick.members, [0, 2]);
    }
}
