//! Selection of the most likely tokens without sorting the vocabulary.

use std::cmp::Ordering;

/// A token and its value: a logit, or a weight derived from it.
pub(crate) type Candidate = (u32, f32);

/// Descending value, then ascending id. Values are not NaN.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature of comparators of slices")]
fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Writes the `k` largest of `values` to `selected`, sorted by [`by_likelihood`]. The id of a value is its index; negative
/// infinity is never selected.
///
/// Takes O(n + k log k): values above the smallest candidate so far are collected, and the collection is partitioned
/// each time that it has doubled.
pub(crate) fn top_k(values: &[f32], k: usize, selected: &mut Vec<Candidate>) {
    selected.clear();
    if k == 0 {
        return;
    }
    let k = k.min(values.len());
    let capacity = (2 * k).max(64);
    let mut threshold = f32::NEG_INFINITY;
    for (token, &value) in (0_u32..).zip(values) {
        // A later value that equals the threshold loses by its id.
        if value > threshold {
            selected.push((token, value));
            if selected.len() == capacity {
                selected.select_nth_unstable_by(k - 1, by_likelihood);
                selected.truncate(k);
                threshold = selected[k - 1].1;
            }
        }
    }
    if selected.len() > k {
        selected.select_nth_unstable_by(k - 1, by_likelihood);
        selected.truncate(k);
    }
    selected.sort_unstable_by(by_likelihood);
}

/// The index of the largest value, the first on ties. `None` if there is none above negative infinity.
pub(crate) fn argmax(values: &[f32]) -> Option<usize> {
    let max = maximum(values);
    if max == f32::NEG_INFINITY { None } else { values.iter().position(|&value| value >= max) }
}

/// The largest value, or negative infinity. NaN is ignored.
pub(crate) fn maximum(values: &[f32]) -> f32 {
    // Independent maxima, so that the loop is vectorized.
    let mut maxima = [f32::NEG_INFINITY; 16];
    let chunks = values.chunks_exact(maxima.len());
    let mut max = f32::NEG_INFINITY;
    for &value in chunks.remainder() {
        max = if value > max { value } else { max };
    }
    for chunk in chunks {
        for (max, &value) in maxima.iter_mut().zip(chunk) {
            *max = if value > *max { value } else { *max };
        }
    }
    for value in maxima {
        max = if value > max { value } else { max };
    }
    max
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few distinct values, so that ties are common.
    fn values() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            4 => (-20_i8..20).prop_map(f32::from),
            2 => -100.0_f32..100.0,
            1 => Just(f32::NEG_INFINITY),
        ];
        proptest::collection::vec(value, 0..700)
    }

    proptest! {
        #[test]
        fn top_k_is_the_prefix_of_a_full_sort(values in values(), k in 0_usize..400) {
            let mut sorted: Vec<Candidate> =
                (0_u32..).zip(values.iter().copied()).filter(|(_, value)| *value > f32::NEG_INFINITY).collect();
            sorted.sort_by(by_likelihood);
            sorted.truncate(k);
            let mut selected = vec![(7, 7.0)];
            top_k(&values, k, &mut selected);
            prop_assert_eq!(selected, sorted);
        }

        #[test]
        fn argmax_is_the_first_of_top_1(values in values()) {
            let mut selected = Vec::new();
            top_k(&values, 1, &mut selected);
            let first = selected.first();
            prop_assert_eq!(argmax(&values), first.map(|&(token, _)| token as usize));
            let max = first.map_or(f32::NEG_INFINITY, |&(_, value)| value);
            prop_assert_eq!(maximum(&values).total_cmp(&max), Ordering::Equal);
        }
    }
}
