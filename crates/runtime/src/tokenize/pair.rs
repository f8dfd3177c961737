//! Text pairs as one sequence, joined by the tokenizer's post-processor and truncated to `max_length`.

use sconce_core::card::ModelCard;
use tokenizers::utils::truncation::{self, TruncationParams, truncate_encodings};
use tokenizers::{Encoding, TruncationDirection};

use super::error::TokenizerError;
use super::rerank_template;
use super::tokenizer::{ModelTokenizer, TokenSequence};

/// Which text of a pair is truncated when the pair exceeds `max_length`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TruncationStrategy {
    /// The longer text, until both have equal length; then both.
    #[default]
    LongestFirst,
    /// The second text, which is the document. Falls back to `LongestFirst` if the first alone exceeds the limit.
    OnlySecond,
}

impl ModelTokenizer {
    /// Encodes a query and a document for a reranker: joined by the tokenizer, or in the card's prompt template.
    pub(crate) fn pair(
        &self,
        card: &ModelCard,
        query: &str,
        document: &str,
        truncation: TruncationStrategy,
        instruction: Option<&str>,
    ) -> Result<TokenSequence, TokenizerError> {
        match &card.head.template {
            None => self.encode_pair(query, document, truncation),
            Some(template) => {
                let parts = rerank_template::render(&template.value, instruction, query, document);
                self.encode_between(&parts.before, &parts.text, &parts.after)
            }
        }
    }

    /// Encodes `first` and `second` as one sequence.
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        truncation: TruncationStrategy,
    ) -> Result<TokenSequence, TokenizerError> {
        let (first, second) = (self.content(first)?, self.content(second)?);
        let full_length = first.len() + second.len() + self.special_tokens_of_pair;
        let limit = self.max_length.saturating_sub(self.special_tokens_of_pair);
        let (first, second) = truncate_pair(first, second, limit, truncation)?;
        self.finish(first, Some(second), 0, full_length)
    }

    /// Encodes `before`, `text` and `after`. Only `text` is truncated, and no special tokens are added.
    fn encode_between(&self, before: &str, text: &str, after: &str) -> Result<TokenSequence, TokenizerError> {
        let ids = |text: &str| Ok::<_, TokenizerError>(self.content(text)?.get_ids().to_vec());
        let (before, mut text, after) = (ids(before)?, ids(text)?, ids(after)?);
        let full_length = before.len() + text.len() + after.len();
        text.truncate(self.max_length.saturating_sub(before.len() + after.len()));
        let ids = [before, text, after].concat();
        Ok(TokenSequence { type_ids: vec![0; ids.len()], ids, full_length, ..TokenSequence::default() })
    }
}

/// Truncates a pair to `limit` tokens by the rules of the tokenizer library.
fn truncate_pair(
    first: Encoding,
    second: Encoding,
    limit: usize,
    strategy: TruncationStrategy,
) -> Result<(Encoding, Encoding), TokenizerError> {
    let first_fits = first.len() < limit;
    let strategy = match strategy {
        TruncationStrategy::OnlySecond if first_fits => truncation::TruncationStrategy::OnlySecond,
        TruncationStrategy::OnlySecond | TruncationStrategy::LongestFirst => {
            truncation::TruncationStrategy::LongestFirst
        }
    };
    let parameters =
        TruncationParams { max_length: limit, strategy, stride: 0, direction: TruncationDirection::Right };
    let truncated = truncate_encodings(first, Some(second), &parameters);
    let (mut first, second) = truncated.map_err(TokenizerError::Tokenizer)?;
    let mut second = second.unwrap_or_default();
    // The library keeps truncated tokens as overflowing encodings, and `post_process` would join them too.
    first.take_overflowing();
    second.take_overflowing();
    Ok((first, second))
}
