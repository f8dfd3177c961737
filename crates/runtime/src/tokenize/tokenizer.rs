//! A model's tokenizer: adds special tokens, and truncates to `max_length`.

use std::path::Path;
use std::sync::OnceLock;

use sconce_core::card::{Format, ModelCard};
use tokenizers::{AddedToken, Encoding, PostProcessor, Tokenizer, TruncationDirection};

use super::error::TokenizerError;
use super::gguf;
use super::load::load;
use super::token_bytes::{TokenBytes, token_bytes};

/// Length limit of a text in bytes: its tokens take many times as much memory.
const MAX_TEXT_BYTES: usize = 16 << 20;

/// A tokenizer with the limits of its model.
pub struct ModelTokenizer {
    tokenizer: Tokenizer,
    pub(super) max_length: usize,
    special_tokens: usize,
    pub(super) special_tokens_of_pair: usize,
    has_type_ids: bool,
    /// The bytes of all tokens, from the first use on.
    token_bytes: OnceLock<Option<Vec<TokenBytes>>>,
}

/// A tokenized text or pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSequence {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token type ids, as long as `ids`.
    pub type_ids: Vec<u32>,
    /// Number of leading tokens that belong to the prompt.
    pub prompt_tokens: usize,
    /// Number of trailing tokens that attention masks out.
    pub masked: usize,
    /// Number of tokens before truncation.
    pub full_length: usize,
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its string in the vocabulary.
    pub text: String,
    /// Whether the tokenizer added it to the text.
    pub special: bool,
    /// Byte offsets of its start and end in the text.
    pub offsets: (usize, usize),
}

impl TokenSequence {
    /// Whether tokens were dropped to fit `max_length`.
    pub fn is_truncated(&self) -> bool {
        self.full_length > self.ids.len()
    }
}

impl ModelTokenizer {
    /// Loads the tokenizer in `folder`, or that of the GGUF file in it, with the limits of `card`.
    pub fn open(folder: &Path, card: &ModelCard) -> Result<ModelTokenizer, TokenizerError> {
        let gguf = card.weights.iter().find(|weights| weights.format == Format::Gguf);
        let mut tokenizer = match gguf {
            Some(weights) => gguf::load(&folder.join(&weights.name))?,
            None => load(folder)?,
        };
        // Tokenizer files carry their own truncation and padding. The card's limit applies, without padding.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(TokenizerError::Tokenizer)?;
        let empty = tokenizer.encode("", true).map_err(TokenizerError::Tokenizer)?;
        let vocabulary = tokenizer.get_vocab_size(true);
        if vocabulary > card.sizes.value.vocabulary {
            let model = card.sizes.value.vocabulary;
            return Err(TokenizerError::TooLarge { tokenizer: vocabulary, model });
        }
        let length = card.max_length.value;
        if length <= empty.len() {
            return Err(TokenizerError::MaxLengthTooSmall { length, special: empty.len() });
        }
        if let Some(sides) = &card.head.late_interaction {
            add_markers(&mut tokenizer, [&sides.value.query, &sides.value.document])?;
        }
        let special_tokens_of_pair =
            tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        let has_type_ids = card.config["type_vocab_size"].as_u64().is_some_and(|types| types > 1);
        let special_tokens = empty.len();
        Ok(ModelTokenizer {
            tokenizer,
            max_length: length,
            special_tokens,
            special_tokens_of_pair,
            has_type_ids,
            token_bytes: OnceLock::new(),
        })
    }

    /// Encodes `prompt` followed by `text`.
    pub fn encode(&self, prompt: &str, text: &str) -> Result<TokenSequence, TokenizerError> {
        self.encode_within(self.max_length, prompt, text)
    }

    /// Encodes `prompt` followed by `text`, truncated to `limit` tokens.
    pub(crate) fn encode_within(
        &self,
        limit: usize,
        prompt: &str,
        text: &str,
    ) -> Result<TokenSequence, TokenizerError> {
        let joined;
        let input = if prompt.is_empty() {
            text
        } else {
            joined = format!("{prompt}{text}");
            &joined
        };
        let mut content = self.content(input)?;
        let full_length = content.len() + self.special_tokens;
        let limit = limit.min(self.max_length);
        content.truncate(limit.saturating_sub(self.special_tokens), 0, TruncationDirection::Right);
        // The library keeps truncated tokens as overflowing encodings, and `post_process` would process them too.
        content.take_overflowing();
        let prompt_tokens = if prompt.is_empty() { 0 } else { self.prompt_length(prompt)? };
        self.finish(content, None, prompt_tokens, full_length)
    }

    /// Token ids as they are, truncated to `max_length`.
    pub(crate) fn sequence_of_ids(&self, ids: &[u32]) -> TokenSequence {
        let used = &ids[..ids.len().min(self.max_length)];
        let (type_ids, full_length) = (vec![0; used.len()], ids.len());
        TokenSequence { ids: used.to_vec(), type_ids, full_length, ..TokenSequence::default() }
    }

    /// The tokens of a text, without special tokens.
    pub(super) fn content(&self, text: &str) -> Result<Encoding, TokenizerError> {
        check_length(text)?;
        self.tokenizer.encode_fast(text, false).map_err(TokenizerError::Tokenizer)
    }

    /// Adds special tokens to one or two encodings.
    pub(super) fn finish(
        &self,
        text: Encoding,
        second: Option<Encoding>,
        prompt_tokens: usize,
        full_length: usize,
    ) -> Result<TokenSequence, TokenizerError> {
        let encoding = self.tokenizer.post_process(text, second, true).map_err(TokenizerError::Tokenizer)?;
        let ids = encoding.get_ids().to_vec();
        if ids.len() > self.max_length {
            return Err(TokenizerError::Overflow { tokens: ids.len(), most: self.max_length });
        }
        let type_ids = if self.has_type_ids { encoding.get_type_ids().to_vec() } else { vec![0; ids.len()] };
        Ok(TokenSequence { ids, type_ids, prompt_tokens, masked: 0, full_length })
    }

    /// The tokens of a text with their strings and offsets, without truncation.
    pub fn tokens(&self, text: &str, special: bool) -> Result<Vec<Token>, TokenizerError> {
        check_length(text)?;
        let encoding = self.tokenizer.encode(text, special).map_err(TokenizerError::Tokenizer)?;
        let of_text = encoding.get_special_tokens_mask().iter().zip(encoding.get_offsets());
        let tokens = encoding.get_ids().iter().zip(encoding.get_tokens()).zip(of_text);
        let tokens = tokens.map(|((&id, text), (&mask, &offsets))| Token {
            id,
            text: text.clone(),
            special: mask == 1,
            offsets,
        });
        Ok(tokens.collect())
    }

    /// Splits `text` into chunks that fit into one sequence after `prompt`, each with its number of tokens. Chunks end
    /// between words where possible.
    pub(crate) fn chunks(&self, prompt: &str, text: &str) -> Result<Vec<(String, usize)>, TokenizerError> {
        let prompt_tokens = if prompt.is_empty() { 0 } else { self.tokens(prompt, false)?.len() };
        let limit = self.max_length.saturating_sub(self.special_tokens + prompt_tokens).max(1);
        let offsets: Vec<(usize, usize)> =
            self.tokens(text, false)?.into_iter().map(|token| token.offsets).collect();
        if prompt.is_empty() && offsets.len() <= limit {
            return Ok(vec![(text.to_owned(), offsets.len())]);
        }
        // A chunk alone may have other tokens than within the text: SentencePiece begins it with a space.
        let most = limit + prompt_tokens;
        let excess = |chunk: &str| Ok(self.content(&format!("{prompt}{chunk}"))?.len().saturating_sub(most));
        split(text, &offsets, limit, excess)
    }

    /// The text of token ids.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        self.tokenizer.decode(ids, skip_special).map_err(TokenizerError::Tokenizer)
    }

    /// The bytes that each token adds to a text, by id. None if they depend on other tokens.
    pub(crate) fn token_bytes(&self) -> Option<&[TokenBytes]> {
        self.token_bytes.get_or_init(|| token_bytes(&self.tokenizer)).as_deref()
    }

    /// The id of a token, by its string in the vocabulary.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The string of a token in the vocabulary.
    pub(crate) fn token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// The added tokens by id.
    pub(super) fn added_tokens(&self) -> Vec<(u32, AddedToken)> {
        self.tokenizer.get_added_tokens_decoder().into_iter().collect()
    }

    /// Number of leading tokens that sentence-transformers excludes from pooling for a prompt: those of the prompt
    /// alone, without its closing special token.
    fn prompt_length(&self, prompt: &str) -> Result<usize, TokenizerError> {
        check_length(prompt)?;
        let alone = self.tokenizer.encode_fast(prompt, true).map_err(TokenizerError::Tokenizer)?;
        let closes = alone.get_special_tokens_mask().last() == Some(&1);
        Ok(alone.len() - usize::from(closes))
    }
}

fn check_length(text: &str) -> Result<(), TokenizerError> {
    let bytes = text.len();
    if bytes > MAX_TEXT_BYTES {
        return Err(TokenizerError::TooLong { bytes, most: MAX_TEXT_BYTES });
    }
    Ok(())
}

/// Splits `text`, whose tokens have these offsets, into chunks of at most `limit` tokens. A chunk ends at the last word
/// start in its last quarter, if there is one. It ends before that if it has too many tokens alone: `excess` of them.
fn split<E>(
    text: &str,
    offsets: &[(usize, usize)],
    limit: usize,
    excess: impl Fn(&str) -> Result<usize, E>,
) -> Result<Vec<(String, usize)>, E> {
    let mut chunks = Vec::new();
    let (mut first, mut start) = (0, 0);
    let mut most = limit;
    loop {
        let (next, byte) = if offsets.len() - first > most {
            let end = first + most;
            let starts_word = |at: &usize| offsets[*at].0 > offsets[*at - 1].1;
            let mut near = (first + most - most / 4..=end).rev().filter(|at| *at > first);
            let next = near.find(starts_word).unwrap_or(end);
            (next, text.floor_char_boundary(offsets[next].0))
        } else {
            (offsets.len(), text.len())
        };
        let chunk = &text[start..byte];
        let excess = excess(chunk)?.min(next - first);
        // A chunk of one token, or of none, can't be shorter.
        if excess > 0 && next - first > 1 {
            most = (next - first - excess).max(1);
            continue;
        }
        chunks.push((chunk.to_owned(), next - first));
        if next == offsets.len() {
            return Ok(chunks);
        }
        (first, start, most) = (next, byte, limit);
    }
}

/// Adds the query and document markers as special tokens if the vocabulary has them, as in training.
fn add_markers(tokenizer: &mut Tokenizer, markers: [&String; 2]) -> Result<(), TokenizerError> {
    let words = markers.into_iter().filter_map(|marker| marker.split_whitespace().next());
    let known = words.filter(|word| tokenizer.token_to_id(word).is_some());
    let tokens: Vec<AddedToken> = known.map(|word| AddedToken::from(word, true).normalized(false)).collect();
    tokenizer.add_special_tokens(tokens).map_err(TokenizerError::Tokenizer)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_split_between_words_and_nothing_is_lost() {
        let text = "one two threefour five";
        let offsets = [(0, 3), (4, 7), (8, 13), (13, 17), (18, 22)];
        let none = |_: &str| Ok::<_, ()>(0);
        let cut = |limit| split(text, &offsets, limit, none).expect("it can be counted");
        let piece = |text: &str, tokens| (text.to_owned(), tokens);
        assert_eq!(cut(5), [piece(text, 5)]);
        assert_eq!(cut(4), [piece("one two threefour ", 4), piece("five", 1)]);
        assert_eq!(cut(3), [piece("one two three", 3), piece("four five", 2)], "no word begins near enough");
        assert_eq!(cut(1).len(), 5);
        assert_eq!(cut(2).into_iter().map(|(text, _)| text).collect::<String>(), text);
        assert_eq!(split("", &[], 4, none), Ok(vec![piece("", 0)]));
        // Every chunk but the first begins with one more token.
        let excess = |chunk: &str| {
            let tokens = offsets.iter().filter(|(start, end)| chunk.contains(&text[*start..*end])).count();
            Ok::<_, ()>((tokens + usize::from(!chunk.starts_with("one"))).saturating_sub(2))
        };
        let shorter = split(text, &offsets, 2, excess).expect("it can be counted");
        assert_eq!(shorter, [piece("one two ", 2), piece("three", 1), piece("four ", 1), piece("five", 1)]);
    }
}
