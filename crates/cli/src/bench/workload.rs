//! The texts that are run where the user brings none, and texts of a wished length.

use sconce::VocabularyError;
use sconce::planner::cases::CANARIES;
use sconce::tokens::Tokens;

/// Texts of the built-in workload.
const TEXTS: usize = 256;
/// A short text: twelve tokens in the vocabulary of BERT.
pub(super) const SHORT: &str = CANARIES[2];

/// Texts of unlike lengths out of a few sentences.
pub(super) fn texts() -> Vec<String> {
    let text = |number: usize| {
        let sentences = (0..=number % 5).map(|step| CANARIES[(number + step * 3) % CANARIES.len()]);
        sentences.collect::<Vec<_>>().join(" ")
    };
    (0..TEXTS).map(text).collect()
}

/// Tokens of each text, as the model takes them.
pub(super) fn lengths(tokens: &Tokens, texts: &[String]) -> Result<Vec<usize>, VocabularyError> {
    texts.iter().map(|text| Ok(tokens.encode("", text)?.ids.len())).collect()
}

/// `count` texts of about `length` tokens, no two beginning alike, and how many tokens they have in all.
pub(super) fn of_length(
    tokens: &Tokens,
    count: usize,
    length: usize,
) -> Result<(Vec<String>, usize), VocabularyError> {
    let words: Vec<&str> = CANARIES[CANARIES.len() - 1].split_whitespace().collect();
    let mut all = 0;
    let texts = (0..count).map(|number| {
        let taken = |many: usize| {
            let words = words.iter().cycle().skip(number % words.len()).take(many);
            words.copied().collect::<Vec<_>>().join(" ")
        };
        // A word has a token or more: the most words that are not too long.
        let (mut fits, mut over) = (1, length.max(2));
        while over - fits > 1 {
            let middle = usize::midpoint(fits, over);
            if tokens.encode("", &taken(middle))?.whole <= length {
                fits = middle;
            } else {
                over = middle;
            }
        }
        let text = taken(fits);
        all += tokens.encode("", &text)?.ids.len();
        Ok(text)
    });
    let texts = texts.collect::<Result<Vec<_>, VocabularyError>>()?;
    Ok((texts, all))
}
