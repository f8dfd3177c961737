//! Weights of vocabulary tokens: the nonzero values of a sparse row.

use serde::Serialize;

/// The weight of a vocabulary token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TokenWeight {
    /// Token id.
    pub index: u32,
    /// Its weight.
    pub value: f32,
}

/// The positive values of a row.
pub fn nonzero_weights(row: &[f32]) -> Vec<TokenWeight> {
    let weights = (0..).zip(row.iter().copied());
    weights.filter(|(_, value)| *value > 0.0).map(|(index, value)| TokenWeight { index, value }).collect()
}

/// The dot product of two lists that are sorted by token id.
pub fn sparse_dot(a: &[TokenWeight], b: &[TokenWeight]) -> f32 {
    let mut b = b.iter().peekable();
    let mut sum = 0.0f64;
    for left in a {
        while b.next_if(|right| right.index < left.index).is_some() {}
        if let Some(right) = b.next_if(|right| right.index == left.index) {
            sum += f64::from(left.value) * f64::from(right.value);
        }
    }
    sum as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positive_weights_are_kept_and_only_shared_tokens_count() {
        let a = nonzero_weights(&[0.0, 1.5, 0.0, 2.0, -0.0]);
        assert_eq!(a, [TokenWeight { index: 1, value: 1.5 }, TokenWeight { index: 3, value: 2.0 }]);
        let b = nonzero_weights(&[4.0, 0.0, 1.0, 0.5]);
        assert!((sparse_dot(&a, &b) - 1.0).abs() < 1e-6);
        assert!((sparse_dot(&b, &a) - 1.0).abs() < 1e-6);
        assert!(sparse_dot(&a, &[]).abs() < 1e-6);
    }
}
