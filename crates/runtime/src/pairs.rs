//! Two texts as one sequence: joined as the tokenizer joins them, and cut where they are too long together.

use sconce_core::card::ModelCard;
use tokenizers::utils::truncation::{TruncationParams, TruncationStrategy, truncate_encodings};
use tokenizers::{Encoding, TruncationDirection};

use crate::instruct;
use crate::tokens::{Tokenized, Tokens};
use crate::vocabulary::VocabularyError;

/// Which of two texts is cut where they are too long together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// The longer one, until they are equally long, then both.
    #[default]
    Longest,
    /// The second, which is the document; where that does not make enough room, the longer one.
    Second,
}

impl Tokens {
    /// A query and a document as the model takes them: joined by the tokenizer, or put into the card's template
    /// with an instruction.
    pub(crate) fn pair(
        &self,
        card: &ModelCard,
        query: &str,
        document: &str,
        cut: Cut,
        instruction: Option<&str>,
    ) -> Result<Tokenized, VocabularyError> {
        match &card.head.template {
            None => self.encode_pair(query, document, cut),
            Some(template) => {
                let parts = instruct::parts(&template.value, instruction, query, document);
                self.encode_between(&parts.before, &parts.text, &parts.after)
            }
        }
    }

    /// `first` and `second` as one sequence.
    pub fn encode_pair(&self, first: &str, second: &str, cut: Cut) -> Result<Tokenized, VocabularyError> {
        let (first, second) = (self.content(first)?, self.content(second)?);
        let whole = first.len() + second.len() + self.added_to_pairs;
        let room = self.max_length.saturating_sub(self.added_to_pairs);
        let (first, second) = shortened(first, second, room, cut)?;
        self.finish(first, Some(second), 0, whole)
    }

    /// `text` between what is never cut, with no special tokens beyond those that are written out.
    fn encode_between(&self, before: &str, text: &str, after: &str) -> Result<Tokenized, VocabularyError> {
        let ids = |text: &str| Ok::<_, VocabularyError>(self.content(text)?.get_ids().to_vec());
        let (before, mut text, after) = (ids(before)?, ids(text)?, ids(after)?);
        let whole = before.len() + text.len() + after.len();
        text.truncate(self.max_length.saturating_sub(before.len() + after.len()));
        let ids = [before, text, after].concat();
        Ok(Tokenized { types: vec![0; ids.len()], ids, skip: 0, unseen: 0, whole })
    }
}

/// Two texts that have room together, cut by the tokenizer's own rules.
fn shortened(
    first: Encoding,
    second: Encoding,
    room: usize,
    cut: Cut,
) -> Result<(Encoding, Encoding), VocabularyError> {
    let fits = first.len() < room;
    let strategy = match cut {
        Cut::Second if fits => TruncationStrategy::OnlySecond,
        Cut::Second | Cut::Longest => TruncationStrategy::LongestFirst,
    };
    let parameters =
        TruncationParams { max_length: room, strategy, stride: 0, direction: TruncationDirection::Right };
    let cut = truncate_encodings(first, Some(second), &parameters);
    let (mut first, second) = cut.map_err(VocabularyError::Tokenizer)?;
    let mut second = second.unwrap_or_default();
    // What was cut off is kept by the library as pieces of their own, which would be joined too.
    first.take_overflowing();
    second.take_overflowing();
    Ok((first, second))
}
