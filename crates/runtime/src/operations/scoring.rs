//! Activation of raw scores.

use sconce_core::head::Scoring;

/// Applies the activation to the scores of one sequence.
pub fn activate(raw: &[f32], scoring: Scoring) -> Vec<f32> {
    match scoring {
        Scoring::Raw => raw.to_vec(),
        Scoring::Sigmoid => raw.iter().map(|&x| (1.0 / (1.0 + f64::from(-x).exp())) as f32).collect(),
        Scoring::Softmax => {
            let max = raw.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exponentials: Vec<f64> = raw.iter().map(|&x| f64::from(x - max).exp()).collect();
            let sum: f64 = exponentials.iter().sum();
            exponentials.into_iter().map(|x| (x / sum) as f32).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_become_probabilities_without_overflow() {
        assert_eq!(activate(&[1.5, -2.0], Scoring::Raw), [1.5, -2.0]);
        let sigmoid = activate(&[0.0, 200.0, -200.0], Scoring::Sigmoid);
        assert!((sigmoid[0] - 0.5).abs() < 1e-7 && sigmoid[1] > 0.999 && sigmoid[2] < 1e-30);
        let softmax = activate(&[1000.0, 1000.0, -1000.0], Scoring::Softmax);
        assert_eq!(softmax, [0.5, 0.5, 0.0]);
    }
}
