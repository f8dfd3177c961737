//! Tokenizes prompts in which text of the caller never becomes a control token.

use std::collections::BTreeSet;
use std::ops::Range;

use super::error::TokenizerError;
use super::tokenizer::{ModelTokenizer, Token};

/// How often a part of a prompt is cut. A cut leaves less than the token that it is in.
const MAX_CUTS: usize = 32;

impl ModelTokenizer {
    /// Token ids of a prompt. Control tokens are recognized except in `caller`, ascending byte ranges that the caller
    /// wrote. Control tokens are the special tokens, and other added tokens that occur in `template`.
    ///
    /// No begin token is added: a chat template writes its own.
    pub(crate) fn encode_prompt(
        &self,
        text: &str,
        caller: &[Range<usize>],
        template: &str,
    ) -> Result<Vec<u32>, TokenizerError> {
        let prompt = Prompt { tokenizer: self, text, caller, control: self.control_tokens(template) };
        let mut ids = Vec::new();
        prompt.encode(0..text.len(), 0, &mut ids)?;
        Ok(ids)
    }

    fn control_tokens(&self, template: &str) -> BTreeSet<u32> {
        let is_control = |content: &str| !content.trim().is_empty() && template.contains(content);
        let added = self.added_tokens().into_iter();
        added.filter(|(_, token)| token.special || is_control(&token.content)).map(|(id, _)| id).collect()
    }
}

struct Prompt<'a> {
    tokenizer: &'a ModelTokenizer,
    text: &'a str,
    caller: &'a [Range<usize>],
    control: BTreeSet<u32>,
}

impl Prompt<'_> {
    /// Appends the ids of a part. If a control token covers text of the caller, the part is cut inside the token, and the
    /// pieces are encoded by themselves. So the ids contain no such token, whatever the tokenizer does.
    fn encode(&self, part: Range<usize>, cuts: usize, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let tokens = self.tokens(part.clone())?;
        let mut bounds = vec![part.start];
        for token in &tokens {
            let range = part.start + token.offsets.0..part.start + token.offsets.1;
            if self.control.contains(&token.id) && self.is_of_caller(range.clone()) {
                let middle = middle(self.text, range);
                let control = || TokenizerError::ControlToken(token.text.clone());
                bounds.push(middle.filter(|_| cuts < MAX_CUTS).ok_or_else(control)?);
            }
        }
        if bounds.len() == 1 {
            ids.extend(tokens.into_iter().map(|token| token.id));
            return Ok(());
        }
        bounds.push(part.end);
        bounds.windows(2).try_for_each(|bounds| self.encode(bounds[0]..bounds[1], cuts + 1, ids))
    }

    /// The tokens of a part, with offsets in it. A part amid the text is encoded after a line break, which is removed
    /// again: tokenizers that put a space before a text would put one before the part.
    fn tokens(&self, part: Range<usize>) -> Result<Vec<Token>, TokenizerError> {
        let text = &self.text[part.clone()];
        if part.start > 0 {
            let line_break = self.tokenizer.tokens("\n", false)?;
            let mut tokens = self.tokenizer.tokens(&format!("\n{text}"), false)?;
            let follows = line_break.iter().zip(&tokens).all(|(one, other)| one.id == other.id);
            if follows && tokens.len() >= line_break.len() {
                tokens.drain(..line_break.len());
                for token in &mut tokens {
                    token.offsets = (token.offsets.0.saturating_sub(1), token.offsets.1.saturating_sub(1));
                }
                return Ok(tokens);
            }
        }
        self.tokenizer.tokens(text, false)
    }

    /// Whether the caller wrote a part of this range. White space does not count: tokens can include what is around them.
    fn is_of_caller(&self, range: Range<usize>) -> bool {
        let first = self.caller.partition_point(|caller| caller.end <= range.start);
        let overlapping = self.caller[first..].iter().take_while(|caller| caller.start < range.end);
        let mut parts = overlapping.map(|caller| caller.start.max(range.start)..caller.end.min(range.end));
        parts.any(|part| self.text.get(part).is_none_or(|part| !part.trim().is_empty()))
    }
}

/// A character boundary inside a range, near its middle.
fn middle(text: &str, range: Range<usize>) -> Option<usize> {
    let middle = range.start + range.len() / 2;
    let after = (middle.max(range.start + 1)..range.end).find(|at| text.is_char_boundary(*at));
    after.or_else(|| (range.start + 1..middle).rev().find(|at| text.is_char_boundary(*at)))
}

#[cfg(test)]
mod tests;
