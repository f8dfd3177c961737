//! The prefill tokens of a step: as many as take about the time of its decodes, so that a long prompt at most doubles the
//! time between the tokens of other sequences.

/// Fewest tokens of a chunk beside decodes.
const MIN_TOKENS: usize = 8;
/// Tokens of a chunk beside decodes until both are measured.
const FIRST_TOKENS: usize = 64;
/// Weight of a new measurement in the moving averages.
const SMOOTHING: f64 = 0.2;

/// Measured times of steps.
#[derive(Debug, Default)]
pub(super) struct PrefillBudget {
    /// Seconds of a step of decodes.
    decode: Option<f64>,
    /// Seconds of a prefill token.
    token: Option<f64>,
}

impl PrefillBudget {
    /// Prefill tokens of a step with this many decodes, at most `limit`.
    pub(super) fn tokens(&self, decodes: usize, limit: usize) -> usize {
        if decodes == 0 {
            return limit;
        }
        let tokens = match (self.decode, self.token) {
            (Some(decode), Some(token)) => (decode / token.max(1e-9)) as usize,
            _ => FIRST_TOKENS,
        };
        tokens.max(MIN_TOKENS).min(limit)
    }

    /// Records a step.
    pub(super) fn observe(&mut self, decodes: usize, prefill: usize, seconds: f64) {
        if prefill == 0 {
            average(&mut self.decode, seconds);
            return;
        }
        let decode = if decodes > 0 { self.decode } else { Some(0.0) };
        if let Some(decode) = decode {
            average(&mut self.token, (seconds - decode).max(0.0) / prefill as f64);
        }
    }
}

fn average(average: &mut Option<f64>, measured: f64) {
    *average = Some(average.map_or(measured, |average| average + SMOOTHING * (measured - average)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_takes_about_as_long_as_the_decodes_beside_it() {
        let mut budget = PrefillBudget::default();
        assert_eq!(budget.tokens(0, 512), 512);
        assert_eq!(budget.tokens(3, 512), FIRST_TOKENS);
        budget.observe(0, 512, 0.512);
        assert_eq!(budget.tokens(3, 512), FIRST_TOKENS, "decodes are not measured yet");
        budget.observe(3, 0, 0.1);
        assert_eq!(budget.tokens(3, 512), 100);
        for _ in 0..100 {
            budget.observe(3, 50, 0.1 + 50.0 * 0.002);
        }
        assert_eq!(budget.tokens(3, 512), 50);
        assert_eq!(budget.tokens(3, 20), 20);
        for _ in 0..100 {
            budget.observe(3, 0, 0.001);
        }
        assert_eq!(budget.tokens(3, 512), MIN_TOKENS);
    }
}
