//! Text that knows which of its bytes come from the caller.

use std::ops::Range;
use std::rc::Rc;

use super::budget::Budget;
use super::error::TemplateError;

/// Text of the template or of the caller, or a mixture. Equality, order and search look at the text alone, so a template
/// renders the same bytes as without the ranges.
#[derive(Clone, Debug)]
pub(super) struct Text {
    text: Rc<str>,
    /// Byte ranges that come from the caller: ascending, apart from each other, none empty.
    caller: Rc<[Range<usize>]>,
}

impl Text {
    /// Text that is the caller's as a whole, or the template's.
    pub(super) fn new(budget: &Budget, text: &str, of_caller: bool) -> Result<Text, TemplateError> {
        let mut builder = TextBuilder::default();
        builder.push_str(budget, text, of_caller)?;
        Ok(builder.finish())
    }

    /// Text of the template.
    pub(super) fn of_template(text: &str) -> Text {
        Text { text: text.into(), caller: Rc::default() }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Byte ranges that come from the caller, in ascending order.
    pub(super) fn caller_ranges(&self) -> &[Range<usize>] {
        &self.caller
    }

    /// Whether a byte comes from the caller.
    pub(super) fn has_caller(&self) -> bool {
        !self.caller.is_empty()
    }

    /// A byte range of the text.
    pub(super) fn slice(&self, budget: &Budget, range: Range<usize>) -> Result<Text, TemplateError> {
        if range == (0..self.text.len()) {
            return Ok(self.clone());
        }
        let mut builder = TextBuilder::default();
        builder.push_slice(budget, self, range)?;
        Ok(builder.finish())
    }

    /// The part that is a slice of [`as_str`](Text::as_str).
    pub(super) fn part(&self, budget: &Budget, part: &str) -> Result<Text, TemplateError> {
        let start = part.as_ptr().addr().saturating_sub(self.text.as_ptr().addr());
        self.slice(budget, start..start + part.len())
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.text == other.text
    }
}

/// Concatenates texts.
#[derive(Default)]
pub(super) struct TextBuilder {
    text: String,
    caller: Vec<Range<usize>>,
}

impl TextBuilder {
    pub(super) fn push_str(
        &mut self,
        budget: &Budget,
        text: &str,
        of_caller: bool,
    ) -> Result<(), TemplateError> {
        budget.allocate(text.len())?;
        let start = self.text.len();
        self.text.push_str(text);
        if of_caller {
            self.mark(start..self.text.len());
        }
        Ok(())
    }

    pub(super) fn push(&mut self, budget: &Budget, text: &Text) -> Result<(), TemplateError> {
        self.push_slice(budget, text, 0..text.text.len())
    }

    fn push_slice(&mut self, budget: &Budget, text: &Text, range: Range<usize>) -> Result<(), TemplateError> {
        budget.scan(range.len() + text.caller.len())?;
        budget.allocate(range.len() + size_of::<Range<usize>>())?;
        let start = self.text.len();
        self.text.push_str(&text.text[range.clone()]);
        for caller in text.caller.iter() {
            let (from, to) = (caller.start.max(range.start), caller.end.min(range.end));
            if from < to {
                self.mark(start + from - range.start..start + to - range.start);
            }
        }
        Ok(())
    }

    fn mark(&mut self, range: Range<usize>) {
        match self.caller.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.caller.push(range),
        }
    }

    pub(super) fn finish(self) -> Text {
        Text { text: self.text.into(), caller: self.caller.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text, with the caller's in brackets.
    fn shown(text: &Text) -> String {
        let (mut shown, mut at) = (String::new(), 0);
        for range in text.caller_ranges() {
            assert!(at <= range.start && !range.is_empty(), "{:?}", text.caller_ranges());
            shown =
                [&shown, &text.as_str()[at..range.start], "[", &text.as_str()[range.clone()], "]"].concat();
            at = range.end;
        }
        shown + &text.as_str()[at..]
    }

    #[test]
    fn slices_and_concatenations_keep_the_origin_of_every_byte() {
        let budget = Budget::new(0, 0);
        let mut builder = TextBuilder::default();
        for (text, of_caller) in [("<a>", false), ("né", true), ("wé", true), ("", true), ("</a>", false)] {
            builder.push_str(&budget, text, of_caller).expect("it fits");
        }
        let text = builder.finish();
        assert_eq!(shown(&text), "<a>[néwé]</a>");
        let part = text.slice(&budget, 1..6).expect("it fits");
        assert_eq!(shown(&part), "a>[né]");
        let mut twice = TextBuilder::default();
        twice.push(&budget, &part).expect("it fits");
        twice.push(&budget, &part).expect("it fits");
        assert_eq!(shown(&twice.finish()), "a>[né]a>[né]");
        let inner = text.part(&budget, text.as_str()[1..].trim_end_matches("</a>")).expect("it fits");
        assert_eq!(shown(&inner), "a>[néwé]");
        assert!(!text.slice(&budget, 0..3).expect("it fits").has_caller());
    }
}
