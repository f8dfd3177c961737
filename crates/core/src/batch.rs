//! Sequences packed end to end on their way into an engine, and the answers on their way out.

use serde::{Deserialize, Serialize};

/// Sequences packed end to end: no padding anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Token ids of all sequences, one after the other.
    pub ids: Vec<u32>,
    /// Token types, as long as `ids`.
    pub types: Vec<u32>,
    /// Where each sequence lies.
    pub sequences: Vec<Sequence>,
    /// What is asked of the engine.
    pub output_kind: OutputKind,
}

/// One sequence inside a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequence {
    /// Where its first token lies in the batch.
    pub start: usize,
    /// How many tokens it has; never zero.
    pub length: usize,
    /// How many leading tokens pooling passes over (a prompt that is not to be pooled).
    pub skip: usize,
    /// How many trailing tokens no token sees, not even they themselves (what some models fill up queries with).
    #[serde(default)]
    pub unseen: usize,
}

impl Sequence {
    /// How many leading tokens are seen.
    pub fn seen(&self) -> usize {
        self.length - self.unseen
    }
}

/// What is asked of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputKind {
    /// One row a sequence: the model's answer, through pooling and all later modules.
    #[default]
    Pooled,
    /// The last hidden state of every token.
    Tokens,
    /// One row a token, through what the model does to every token.
    Projected,
}

/// What an engine gives back, in host memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// One row a sequence.
    Rows(Rows),
    /// One row a token, in the order of the batch.
    Tokens(Rows),
}

/// Rows of equal width.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// Numbers a row.
    pub width: usize,
    /// The rows, one after the other.
    pub values: Vec<f32>,
    /// The length of each row before it was normalised, where rows are answers; of what the head was given, where
    /// they are scores. None where an engine can't tell.
    pub norms: Vec<f32>,
}

impl Rows {
    /// The rows at `range` with their norms, where there are norms.
    #[must_use]
    pub fn part(&self, range: std::ops::Range<usize>) -> Rows {
        let norms = self.norms.get(range.clone()).unwrap_or_default().to_vec();
        let values = self.values.get(range.start * self.width..range.end * self.width).unwrap_or_default();
        Rows { width: self.width, values: values.to_vec(), norms }
    }

    /// The rows one by one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }
}

impl Output {
    /// The rows, whatever they stand for.
    pub fn rows(&self) -> &Rows {
        match self {
            Output::Rows(rows) | Output::Tokens(rows) => rows,
        }
    }

    /// The rows, taken.
    pub fn into_rows(self) -> Rows {
        match self {
            Output::Rows(rows) | Output::Tokens(rows) => rows,
        }
    }
}

impl Batch {
    /// An empty batch that asks for `output_kind`.
    pub fn new(output_kind: OutputKind) -> Batch {
        Batch { output_kind, ..Batch::default() }
    }

    /// Adds a sequence at the end.
    pub fn push(&mut self, ids: &[u32], types: &[u32], skip: usize) {
        self.push_filled(ids, types, skip, 0);
    }

    /// Adds a sequence whose last `unseen` tokens no token sees.
    pub fn push_filled(&mut self, ids: &[u32], types: &[u32], skip: usize, unseen: usize) {
        debug_assert_eq!(ids.len(), types.len());
        self.sequences.push(Sequence { start: self.ids.len(), length: ids.len(), skip, unseen });
        self.ids.extend_from_slice(ids);
        self.types.extend_from_slice(types);
    }

    /// How many tokens it holds.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The sequences `range` as a batch of their own.
    #[must_use]
    pub fn part(&self, range: std::ops::Range<usize>) -> Batch {
        let mut part = Batch::new(self.output_kind);
        for sequence in &self.sequences[range] {
            let place = sequence.start..sequence.start + sequence.length;
            let Sequence { skip, unseen, .. } = *sequence;
            part.push_filled(&self.ids[place.clone()], &self.types[place], skip, unseen);
        }
        part
    }

    /// The places among the rows of this batch where those of the sequences `range` lie.
    pub fn rows_of(&self, range: std::ops::Range<usize>) -> std::ops::Range<usize> {
        let row = |index: usize| match self.output_kind {
            OutputKind::Pooled => index,
            OutputKind::Tokens | OutputKind::Projected => {
                self.sequences.get(index).map_or(self.tokens(), |sequence| sequence.start)
            }
        };
        row(range.start)..row(range.end)
    }

    /// Whether it can be computed at all: no sequence of which nothing is seen, no gap, no overlap, types beside ids.
    pub fn is_well_formed(&self) -> bool {
        let mut end = 0;
        self.types.len() == self.ids.len()
            && self.sequences.iter().all(|sequence| {
                let follows = sequence.start == end && sequence.length > sequence.unseen;
                end = sequence.start.saturating_add(sequence.length);
                follows
            })
            && end == self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_batch_of_its_own() {
        let mut batch = Batch::new(OutputKind::Pooled);
        batch.push(&[1, 2, 3], &[0, 0, 0], 0);
        batch.push_filled(&[4, 5], &[0, 1], 1, 1);
        batch.push(&[6], &[0], 0);
        let part = batch.part(1..3);
        assert!(batch.is_well_formed() && part.is_well_formed());
        assert_eq!(part.ids, [4, 5, 6]);
        assert_eq!(part.sequences[0], Sequence { start: 0, length: 2, skip: 1, unseen: 1 });
        assert_eq!(part.sequences[1].start, 2);
    }

    #[test]
    fn the_rows_of_a_sequence_are_one_or_one_a_token() {
        for (output_kind, places) in [(OutputKind::Pooled, [0..1, 1..3]), (OutputKind::Tokens, [0..3, 3..6])]
        {
            let mut batch = Batch::new(output_kind);
            for ids in [&[1, 2, 3][..], &[4, 5], &[6]] {
                batch.push(ids, &vec![0; ids.len()], 0);
            }
            assert_eq!([batch.rows_of(0..1), batch.rows_of(1..3)], places);
        }
        let rows = Rows { width: 2, values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], norms: vec![7.0, 8.0, 9.0] };
        let part = Rows { width: 2, values: vec![3.0, 4.0], norms: vec![8.0] };
        assert_eq!(rows.part(1..2), part);
        assert_eq!(Rows { norms: Vec::new(), ..rows }.part(1..2), Rows { norms: Vec::new(), ..part });
    }

    #[test]
    fn a_sequence_of_which_nothing_is_seen_is_not_well_formed() {
        for (ids, unseen) in [(&[][..], 0), (&[1, 2], 2)] {
            let mut batch = Batch::new(OutputKind::Tokens);
            batch.push_filled(ids, &vec![0; ids.len()], 0, unseen);
            assert!(!batch.is_well_formed());
        }
    }
}
