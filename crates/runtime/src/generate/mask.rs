//! Sets of tokens as bitsets.

/// The tokens that may be sampled, such as those that a grammar allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenMask {
    words: Vec<u64>,
    tokens: usize,
}

impl TokenMask {
    /// A mask over `tokens` token ids that allows none.
    pub(crate) fn new(tokens: usize) -> Self {
        Self { words: vec![0; tokens.div_ceil(64)], tokens }
    }

    /// A mask over `tokens` token ids with the bits of `words`, lowest first.
    pub(crate) fn from_words(words: &[u32], tokens: usize) -> Self {
        let whole = |pair: &[u32]| pair.iter().rev().fold(0, |whole, word| whole << 32 | u64::from(*word));
        Self { words: words.chunks(2).map(whole).collect(), tokens }
    }

    /// Disallows the tokens that `other` does not allow.
    pub(crate) fn intersect(&mut self, other: &TokenMask) {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        for (word, other) in self.words.iter_mut().zip(others) {
            *word &= other;
        }
    }

    /// Allows a token. Ids outside of the mask stay disallowed.
    pub(crate) fn allow(&mut self, token: u32) {
        if (token as usize) < self.tokens {
            self.words[token as usize / 64] |= 1 << (token % 64);
        }
    }

    /// Whether a token is allowed.
    #[cfg(test)]
    pub(crate) fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// Sets the logits of all other tokens to negative infinity.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        let words = self.words.iter().copied().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks_mut(64).zip(words) {
            match word {
                0 => logits.fill(f32::NEG_INFINITY),
                u64::MAX => {}
                _ => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn only_allowed_tokens_keep_their_logits(
            tokens in 0_usize..200,
            vocabulary in 0_usize..300,
            allowed in proptest::collection::btree_set(0_u32..300, 0..100),
        ) {
            let mut mask = TokenMask::new(tokens);
            for &token in &allowed {
                mask.allow(token);
            }
            let mut logits = vec![1.0; vocabulary];
            mask.apply(&mut logits);
            for (token, logit) in (0_u32..).zip(logits) {
                let keeps = allowed.contains(&token) && (token as usize) < tokens;
                prop_assert_eq!(mask.allows(token), keeps);
                prop_assert_eq!(logit > f32::NEG_INFINITY, keeps);
            }
        }

        #[test]
        fn words_and_intersections_are_sets(
            one in proptest::collection::btree_set(0_u32..200, 0..100),
            other in proptest::collection::btree_set(0_u32..300, 0..100),
        ) {
            let mut words = [0_u32; 7];
            for token in &one {
                words[*token as usize / 32] |= 1 << (token % 32);
            }
            let mut mask = TokenMask::from_words(&words, 200);
            let mut allowed = TokenMask::new(300);
            for token in &other {
                allowed.allow(*token);
            }
            prop_assert!((0..300).all(|token| mask.allows(token) == one.contains(&token)));
            mask.intersect(&allowed);
            prop_assert!((0..300).all(|token| mask.allows(token) == (one.contains(&token) && other.contains(&token))));
        }

        #[test]
        fn a_full_mask_changes_nothing(vocabulary in 0_usize..300) {
            let mut mask = TokenMask::new(vocabulary);
            (0..vocabulary as u32).for_each(|token| mask.allow(token));
            let mut logits = vec![1.0; vocabulary];
            mask.apply(&mut logits);
            prop_assert!(logits.iter().all(|logit| logit.is_finite()));
        }
    }
}
