//! Forms batches from sequence lengths: a pure function.

use std::cmp::Reverse;

use sconce_core::engine::BatchLayout;

/// Maximum number of tokens in a batch: enough for all threads, few enough that a replay is cheap.
pub(super) const MAX_BATCH_TOKENS: usize = 16 * 1024;

/// Groups sequences into batches of at most `max_tokens`; a longer sequence is a batch of its own. Engines that pad get
/// sequences of similar length together.
pub(super) fn batches(lengths: &[usize], cost: BatchLayout, max_tokens: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    if cost == BatchLayout::Padded {
        order.sort_by_key(|&text| lengths[text]);
    }
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut tokens = 0;
    for text in order {
        match batches.last_mut() {
            Some(batch) if tokens + lengths[text] <= max_tokens => batch.push(text),
            Some(_) | None => {
                batches.push(vec![text]);
                tokens = 0;
            }
        }
        tokens += lengths[text];
    }
    // Longest first: threads balance their load with the short sequences at the end.
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
            let cost = if padded { BatchLayout::Padded } else { BatchLayout::Packed };
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
        assert_eq!(batches(&lengths, BatchLayout::Packed, 512), [vec![1, 0], vec![2, 3], vec![4], vec![5]]);
        assert_eq!(batches(&lengths, BatchLayout::Padded, 512), [vec![2, 0, 3], vec![1], vec![4], vec![5]]);
        assert_eq!(batches(&[200, 312, 1], BatchLayout::Packed, 512), [vec![1, 0], vec![2]], "exactly full");
        assert!(batches(&[], BatchLayout::Packed, 512).is_empty());
    }
}
