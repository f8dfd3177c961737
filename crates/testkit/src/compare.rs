//! Comparisons of values in tests. `f32::max` and `f64::max` drop NaN, so a fold over them calls a row of NaN equal to
//! anything; here NaN is infinitely far from every value.

/// The largest of `values`; infinite if one is NaN or there are none.
pub fn largest<T: Into<f64>>(values: impl IntoIterator<Item = T>) -> f64 {
    let larger = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    let largest = values.into_iter().map(Into::into).reduce(larger);
    largest.filter(|largest| !largest.is_nan()).unwrap_or(f64::INFINITY)
}

/// The smallest of `values`; negative infinity if one is NaN or there are none.
pub fn smallest<T: Into<f64>>(values: impl IntoIterator<Item = T>) -> f64 {
    -largest(values.into_iter().map(|value| -value.into()))
}

/// The largest absolute difference; infinite if a value is NaN, the lengths differ or both are empty.
pub fn max_difference<A: Copy + Into<f64>, B: Copy + Into<f64>>(got: &[A], want: &[B]) -> f64 {
    if got.len() != want.len() {
        return f64::INFINITY;
    }
    largest(got.iter().zip(want).map(|(&got, &want)| (got.into() - want.into()).abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_far(distance: f64) -> bool {
        distance.is_infinite() && distance > 0.0
    }

    #[test]
    fn nan_is_infinitely_far_wherever_it_stands() {
        let plain = [0.5f32, 0.25, 1.0];
        for place in 0..3 {
            let mut values = plain;
            values[place] = f32::NAN;
            assert!(is_far(largest(values)) && is_far(-smallest(values)), "at {place}");
            assert!(
                is_far(max_difference(&values, &plain)) && is_far(max_difference(&plain, &values)),
                "{place}"
            );
        }
        assert!(is_far(largest([f32::NAN])) && is_far(-smallest([f32::NAN])));
    }

    #[test]
    fn counts_that_differ_and_no_numbers_at_all_are_infinitely_far() {
        for (got, want) in [(&[1.0f32][..], &[][..]), (&[], &[1.0f64]), (&[], &[])] {
            assert!(is_far(max_difference(got, want)), "{got:?} {want:?}");
        }
        assert!(is_far(largest::<f64>([])) && is_far(-smallest::<f64>([])));
    }

    #[test]
    fn numbers_are_compared_by_value() {
        let values = [-0.25, 0.5, -1.5];
        let found = [largest(values), smallest(values), max_difference(&[1.0f32, -2.0], &[1.5f64, -1.0])];
        assert_eq!(found.map(f64::to_bits), [0.5f64, -1.5, 1.0].map(f64::to_bits));
    }
}
