//! Time limit for the regular expressions of a tokenizer. The regex engine bounds backtracking per match, not per text:
//! a malicious expression can spend minutes on a valid text.

use std::time::{Duration, Instant};

use tokenizers::Tokenizer;

/// Units that probe texts repeat. Runs of one character class make ambiguous expressions backtrack.
const REPEATED: [&str; 7] = ["a", " ", "1", ".", "\n", "aA1 .", "中"];
/// Length of a probe text in bytes and its time limit, in ascending order so that the check itself is bounded. The
/// tokenizers of Llama 3, Qwen 2.5, Mistral Nemo and gpt-oss take 2% to 5% of the last limit, and 50 ms
/// for all texts.
const STEPS: [(usize, Duration); 3] = [
    (256, Duration::from_millis(50)),
    (4 << 10, Duration::from_millis(100)),
    (16 << 10, Duration::from_millis(200)),
];
/// Measurements per text. The fastest counts: other processes slow some of them down.
const ATTEMPTS: usize = 3;
/// A text that takes this many times its limit is not measured again.
const BEYOND_NOISE: u32 = 4;

/// A probe text exceeded its time limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooSlow {
    /// Length of the text in bytes.
    pub bytes: usize,
    /// Measured time in ms.
    pub took: usize,
    /// Time limit in ms.
    pub most: usize,
}

/// Measures the tokenizer on probe texts if its config contains regular expressions.
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
                // Errors surface when a request is tokenized.
                let _ = tokenizer.encode_fast(text.as_str(), false);
                start.elapsed()
            };
            let mut took = timed();
            for _ in 1..ATTEMPTS {
                if took > most && took < BEYOND_NOISE * most {
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
        // At every position the run is read to its end and given back letter by letter, before one letter matches.
        let slow = check(&splitting_at(r"a+(?=b)|a")).unwrap_err();
        assert!(slow.took > slow.most && slow.bytes <= 16 << 10, "{slow:?}");
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
