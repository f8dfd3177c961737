//! A bound on the time that regular expressions of a tokenizer take. Backtracking is bounded for each match, not for a
//! whole text, so a hostile expression can still spend minutes on a legal text.

use std::time::{Duration, Instant};

use tokenizers::Tokenizer;

/// What probe texts repeat: runs of one class of characters make an ambiguous expression backtrack.
const REPEATED: [&str; 7] = ["a", " ", "1", ".", "\n", "aA1 .", "中"];
/// Bytes of a probe text and the longest time it may take, shortest first, so that the check itself is bounded.
/// Published tokenizers need a hundredth of it.
const STEPS: [(usize, Duration); 3] = [
    (256, Duration::from_millis(100)),
    (4 << 10, Duration::from_millis(300)),
    (64 << 10, Duration::from_millis(2000)),
];
/// Measurements of a text, the fastest of which counts: other processes slow some of them down.
const ATTEMPTS: usize = 3;

/// A probe text that took too long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooSlow {
    /// Bytes of the text.
    pub bytes: usize,
    /// Milliseconds that it took.
    pub took: usize,
    /// Milliseconds that it may take.
    pub most: usize,
}

/// Times the tokenizer on probe texts if it has regular expressions of its own.
pub(crate) fn check(tokenizer: &Tokenizer) -> Result<(), TooSlow> {
    let parts = [
        serde_json::to_string(&tokenizer.get_normalizer()),
        serde_json::to_string(&tokenizer.get_pre_tokenizer()),
    ];
    if !parts.into_iter().flatten().any(|part| part.contains("\"Regex\"")) {
        return Ok(());
    }
    for (bytes, most) in STEPS {
        for repeated in REPEATED {
            let text = repeated.repeat(bytes / repeated.len());
            let timed = || {
                let start = Instant::now();
                // An error ends the work early; requests get it as theirs.
                let _ = tokenizer.encode_fast(text.as_str(), false);
                start.elapsed()
            };
            let mut took = timed();
            for _ in 1..ATTEMPTS {
                if took > most {
                    took = took.min(timed());
                }
            }
            if took > most {
                let millis = |time: Duration| time.as_millis() as usize;
                return Err(TooSlow { bytes: text.len(), took: millis(took), most: millis(most) });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokenizers::models::bpe::BPE;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{SplitDelimiterBehavior, Tokenizer};

    use super::check;

    fn splitting_at(expression: &str) -> Tokenizer {
        let mut tokenizer = Tokenizer::new(BPE::default());
        let pattern = SplitPattern::Regex(expression.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
        tokenizer.with_pre_tokenizer(Some(split));
        tokenizer
    }

    #[test]
    fn an_expression_that_backtracks_for_minutes_is_rejected() {
        // Every position tries every end of the run twice before it gives up.
        let slow = check(&splitting_at(r"(?=a*)(a+)(a+)(?!a)\1\1\1b")).unwrap_err();
        assert!(slow.took > slow.most && slow.bytes <= 64 << 10, "{slow:?}");
    }

    #[test]
    fn expressions_of_published_tokenizers_pass() {
        for expression in [
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        ] {
            assert_eq!(check(&splitting_at(expression)), Ok(()), "{expression}");
        }
    }
}
