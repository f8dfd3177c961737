//! The built-in workload, and texts of a given length.

use sconce::TokenizerError;
use sconce::planner::cases::CANARIES;
use sconce::tokenize::ModelTokenizer;

/// Texts of the built-in workload.
const TEXTS: usize = 256;
/// A short text: twelve tokens in the vocabulary of BERT.
pub(super) const SHORT: &str = CANARIES[2];

/// Texts of varying length, made of a few sentences.
pub(super) fn texts() -> Vec<String> {
    let text = |number: usize| {
        let sentences = (0..=number % 5).map(|step| CANARIES[(number + step * 3) % CANARIES.len()]);
        sentences.collect::<Vec<_>>().join(" ")
    };
    (0..TEXTS).map(text).collect()
}

/// Tokens of each text after truncation.
pub(super) fn lengths(tokens: &ModelTokenizer, texts: &[String]) -> Result<Vec<usize>, TokenizerError> {
    texts.iter().map(|text| Ok(tokens.encode("", text)?.ids.len())).collect()
}

/// `count` texts of about `length` tokens, without a common prefix, and their total number of tokens.
pub(super) fn of_length(
    tokens: &ModelTokenizer,
    count: usize,
    length: usize,
) -> Result<(Vec<String>, usize), TokenizerError> {
    let words: Vec<&str> = CANARIES[CANARIES.len() - 1].split_whitespace().collect();
    let mut all = 0;
    let texts = (0..count).map(|number| {
        let taken = |many: usize| {
            let words = words.iter().cycle().skip(number % words.len()).take(many);
            words.copied().collect::<Vec<_>>().join(" ")
        };
        // A word has at least one token. Binary search for the maximum number of words.
        let (mut fits, mut over) = (1, length.max(2));
        while over - fits > 1 {
            let middle = usize::midpoint(fits, over);
            if tokens.encode("", &taken(middle))?.full_length <= length {
                fits = middle;
            } else {
                over = middle;
            }
        }
        let text = taken(fits);
        all += tokens.encode("", &text)?.ids.len();
        Ok(text)
    });
    let texts = texts.collect::<Result<Vec<_>, TokenizerError>>()?;
    Ok((texts, all))
}
