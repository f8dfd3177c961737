//! The prefill tokens of a step. Prompts get the time of the decodes beside them, so that a long prompt at most doubles the
//! time between the tokens of other sequences. They get more if more sequences wait for their first token than decode, and
//! never so little that the fixed cost of a chunk takes most of its time.

use super::line_fit::LineFit;

/// Fewest tokens of a chunk beside decodes.
const MIN_TOKENS: usize = 8;
/// Tokens of a chunk beside decodes until both are measured.
const FIRST_TOKENS: usize = 64;

/// Measured times of steps.
#[derive(Debug, Default)]
pub(super) struct PrefillBudget {
    /// Seconds of a step of decodes, by their number.
    decode: LineFit,
    /// Seconds of a chunk of prompts, by its tokens.
    prefill: LineFit,
}

impl PrefillBudget {
    /// Prefill tokens of a step with this many decodes, at most `limit`. `prompts` sequences wait for their first token.
    pub(super) fn tokens(&self, decodes: usize, prompts: usize, limit: usize) -> usize {
        if decodes == 0 {
            return limit;
        }
        let tokens = match (self.decode.at(decodes as f64), self.prefill.line()) {
            (Some(decode), Some((fixed, token))) => {
                let time = decode * (prompts as f64 / decodes as f64).max(1.0);
                // At least half of the time is for tokens.
                ((time - fixed).max(fixed) / token.max(1e-9)) as usize
            }
            _ => FIRST_TOKENS,
        };
        tokens.max(MIN_TOKENS).min(limit)
    }

    /// Records a step.
    pub(super) fn observe(&mut self, decodes: usize, prefill: usize, seconds: f64) {
        if prefill == 0 {
            self.decode.observe(decodes as f64, seconds);
            return;
        }
        let decode = if decodes > 0 { self.decode.at(decodes as f64) } else { Some(0.0) };
        if let Some(decode) = decode {
            self.prefill.observe(prefill as f64, (seconds - decode).max(0.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_takes_about_as_long_as_the_decodes_beside_it() {
        let mut budget = PrefillBudget::default();
        assert_eq!(budget.tokens(0, 1, 512), 512);
        assert_eq!(budget.tokens(3, 1, 512), FIRST_TOKENS);
        budget.observe(0, 512, 0.512);
        assert_eq!(budget.tokens(3, 1, 512), FIRST_TOKENS, "decodes are not measured yet");
        budget.observe(3, 0, 0.1);
        assert_eq!(budget.tokens(3, 1, 512).next_multiple_of(2), 100);
        for round in 0..100 {
            let tokens = 50 << (round % 2);
            budget.observe(3, tokens, 0.1 + 0.002 * tokens as f64);
        }
        assert_eq!(budget.tokens(3, 1, 512).next_multiple_of(2), 50);
        assert_eq!(budget.tokens(3, 1, 20), 20);
        for _ in 0..100 {
            budget.observe(3, 0, 0.001);
        }
        assert_eq!(budget.tokens(3, 1, 512), MIN_TOKENS);
    }

    /// A budget after steps whose chunks cost 70 ms and 2.5 ms per token, beside decodes of 30 ms and 5 ms per sequence.
    fn measured() -> PrefillBudget {
        let mut budget = PrefillBudget::default();
        for round in 0..40 {
            let (decodes, tokens): (usize, usize) = (1 + round % 8, 16 << (round % 5));
            budget.observe(decodes, 0, 0.03 + 0.005 * decodes as f64);
            budget.observe(0, tokens, 0.07 + 0.0025 * tokens as f64);
        }
        budget
    }

    #[test]
    fn the_fixed_cost_of_a_chunk_takes_at_most_half_of_its_time() {
        let budget = measured();
        // One decode takes 35 ms, less than an empty chunk.
        let alone = budget.tokens(1, 1, 512);
        assert!((26..=30).contains(&alone), "{alone}");
        // 32 decodes take 190 ms, which leaves 120 ms for tokens.
        let beside = budget.tokens(32, 1, 512);
        assert!((44..=52).contains(&beside), "{beside}");
    }

    #[test]
    fn small_chunks_do_not_make_the_next_ones_smaller() {
        let mut budget = measured();
        let mut sizes = Vec::new();
        for _ in 0..200 {
            let tokens = budget.tokens(8, 4, 512);
            sizes.push(tokens);
            budget.observe(8, tokens, 0.03 + 0.005 * 8.0 + 0.07 + 0.0025 * tokens as f64);
        }
        assert!(sizes.iter().all(|tokens| (24..=32).contains(tokens)), "{sizes:?}");
    }

    #[test]
    fn many_waiting_prompts_get_more_time_than_few_decodes() {
        let budget = measured();
        // 31 sequences wait for one: 31 times 35 ms.
        let many = budget.tokens(1, 31, 512);
        assert!((390..=420).contains(&many), "{many}");
        assert_eq!(budget.tokens(8, 8, 512), budget.tokens(8, 1, 512));
        assert!(budget.tokens(8, 24, 512) > 2 * budget.tokens(8, 8, 512));
    }
}
