//! Which texts are computed together: a pure function of their lengths and what batches cost.

use std::cmp::Reverse;

use sconce_core::engine::Cost;

/// Tokens in one batch: enough for every thread, few enough that a batch that must be replayed costs little.
pub(crate) const BUDGET: usize = 16 * 1024;

/// Splits texts of these `lengths` into batches of at most `budget` tokens, a longer text alone. Where sequences
/// are padded those of like length go together.
pub(crate) fn batches(lengths: &[usize], cost: Cost, budget: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    if cost == Cost::Padded {
        order.sort_by_key(|&text| lengths[text]);
    }
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut taken = 0;
    for text in order {
        match batches.last_mut() {
            Some(batch) if taken + lengths[text] <= budget => batch.push(text),
            Some(_) | None => {
                batches.push(vec![text]);
                taken = 0;
            }
        }
        taken += lengths[text];
    }
    // The longest first: what comes last is what threads share out among them to end together.
    for batch in &mut batches {
        batch.sort_by_key(|&text| Reverse(lengths[text]));
    }
    batches
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_text_is_in_one_batch_and_no_batch_is_over_budget(
            lengths in prop::collection::vec(1usize..600, 0..200),
            padded: bool,
        ) {
            let cost = if padded { Cost::Padded } else { Cost::Packed };
            let batches = batches(&lengths, cost, 512);
            let mut seen: Vec<usize> = batches.iter().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            for batch in batches {
                let tokens: usize = batch.iter().map(|&text| lengths[text]).sum();
                prop_assert!(tokens <= 512 || batch.len() == 1);
            }
        }
    }

    #[test]
    fn batches_are_full_and_begin_with_the_longest() {
        let lengths = [100, 300, 212, 1, 512, 600];
        assert_eq!(batches(&lengths, Cost::Packed, 512), [vec![1, 0], vec![2, 3], vec![4], vec![5]]);
        assert_eq!(batches(&lengths, Cost::Padded, 512), [vec![2, 0, 3], vec![1], vec![4], vec![5]]);
        assert_eq!(batches(&[200, 312, 1], Cost::Packed, 512), [vec![1, 0], vec![2]], "exactly full");
        assert!(batches(&[], Cost::Packed, 512).is_empty());
    }
}
