//! Routing of tokens to experts, in f32 for every engine and dtype.

use crate::description::Experts;

/// The router of a layer.
pub(crate) struct Router {
    /// `[experts, hidden]`.
    pub(crate) weight: Vec<f32>,
    pub(crate) experts: Experts,
}

/// The tokens of one expert, ascending, and the weight of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Assignment {
    pub(crate) tokens: Vec<u32>,
    pub(crate) weights: Vec<f32>,
}

impl Router {
    /// The assignment of each expert for `rows`, hidden states of tokens.
    pub(crate) fn route(&self, rows: &[f32]) -> Vec<Assignment> {
        let Experts { count, per_token, normalized } = self.experts;
        let hidden = self.weight.len() / count;
        let mut assigned = vec![Assignment::default(); count];
        for (token, row) in rows.chunks_exact(hidden).enumerate() {
            let score = |weight: &[f32]| -> f64 {
                weight.iter().zip(row).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
            };
            let scores: Vec<f64> = self.weight.chunks_exact(hidden).map(score).collect();
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let top = scores[order[0]];
            let among = if normalized { &order[..per_token] } else { &order[..] };
            let total: f64 = among.iter().map(|expert| (scores[*expert] - top).exp()).sum();
            for &expert in &order[..per_token] {
                assigned[expert].tokens.push(token as u32);
                assigned[expert].weights.push(((scores[expert] - top).exp() / total) as f32);
            }
        }
        assigned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_to_their_best_experts_with_normalized_weights() {
        // The score of an expert is its weight times the only value of a token.
        let router = |normalized| Router {
            weight: vec![1.0, 3.0, 2.0],
            experts: Experts { count: 3, per_token: 2, normalized },
        };
        let assigned = router(true).route(&[1.0, -1.0]);
        let tokens: Vec<&[u32]> = assigned.iter().map(|own| &own.tokens[..]).collect();
        assert_eq!(tokens, [&[1][..], &[0], &[0, 1]]);
        let best = 1.0 / (1.0 + (-1.0f32).exp());
        assert!((assigned[1].weights[0] - best).abs() < 1e-6 && (assigned[0].weights[0] - best).abs() < 1e-6);
        let part = router(false).route(&[1.0]);
        let total: f32 = part.iter().flat_map(|own| &own.weights).sum();
        let left_out = 1.0 / (1.0 + 1.0f32.exp() + 2.0f32.exp());
        assert!((total + left_out - 1.0).abs() < 1e-6, "{total}");
    }
}
