//! Batches: packed sequences as an engine's input, rows as its output.

use serde::{Deserialize, Serialize};

/// Sequences packed end to end, without padding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Concatenated token ids of all sequences.
    pub ids: Vec<u32>,
    /// Token type ids, as long as `ids`.
    pub types: Vec<u32>,
    /// The sequences.
    pub sequences: Vec<Sequence>,
    /// The requested output.
    pub output_kind: OutputKind,
    /// The cached part of each sequence in a step of a [`Generator`](crate::generator::Generator). Empty without a KV
    /// cache.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cached: Vec<CachedSequence>,
}

/// The cached part of a sequence: the keys and values of its earlier tokens are in the KV cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedSequence {
    /// Number of cached tokens. The tokens of the batch follow them.
    pub length: usize,
    /// Block table: the cache blocks of all its tokens, in order, including those of the batch.
    pub blocks: Vec<u32>,
    /// Number of last tokens of the batch whose logits are requested.
    pub logits: usize,
    /// Tokens of its prompt. Tokens at later positions were generated: an engine may compute them by another kernel, and a
    /// token that is computed again must be computed by the same one.
    pub prompt: usize,
}

/// One sequence inside a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequence {
    /// Index of its first token in the batch.
    pub start: usize,
    /// Length in tokens; at least 1.
    pub length: usize,
    /// Leading tokens that pooling skips: a prompt that is not pooled.
    pub skip: usize,
    /// Trailing tokens that no token attends to: mask tokens of an expanded query.
    #[serde(default)]
    pub masked: usize,
}

impl Sequence {
    /// Leading tokens that are attended to.
    pub fn attended(&self) -> usize {
        self.length - self.masked
    }
}

/// The requested output of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputKind {
    /// One row per sequence, after pooling and all later layers.
    #[default]
    Pooled,
    /// The last hidden state of every token.
    Tokens,
    /// One row per token, after the head's token layers.
    Projected,
    /// One row of vocabulary logits per requested token.
    Logits,
}

/// An engine's output, in host memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// One row per sequence.
    Rows(Rows),
    /// One row per token, in the order of the batch.
    Tokens(Rows),
    /// One row of logits per requested token.
    Logits(Rows),
}

/// Rows of equal width.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// Columns of a row.
    pub width: usize,
    /// The concatenated rows.
    pub values: Vec<f32>,
    /// L2 norms of the rows before normalization; for scores, norms of the head's input. Empty if the engine does not
    /// know them.
    pub norms: Vec<f32>,
}

impl Rows {
    /// The rows in `range`, with their norms if there are any.
    #[must_use]
    pub fn part(&self, range: std::ops::Range<usize>) -> Rows {
        let norms = self.norms.get(range.clone()).unwrap_or_default().to_vec();
        let values = self.values.get(range.start * self.width..range.end * self.width).unwrap_or_default();
        Rows { width: self.width, values: values.to_vec(), norms }
    }

    /// Iterates over the rows.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }
}

impl Output {
    /// The rows.
    pub fn rows(&self) -> &Rows {
        match self {
            Output::Rows(rows) | Output::Tokens(rows) | Output::Logits(rows) => rows,
        }
    }

    /// Converts into the rows.
    pub fn into_rows(self) -> Rows {
        match self {
            Output::Rows(rows) | Output::Tokens(rows) | Output::Logits(rows) => rows,
        }
    }
}

impl Batch {
    /// An empty batch.
    pub fn new(output_kind: OutputKind) -> Batch {
        Batch { output_kind, ..Batch::default() }
    }

    /// Appends a sequence.
    pub fn push(&mut self, ids: &[u32], types: &[u32], skip: usize) {
        self.push_masked(ids, types, skip, 0);
    }

    /// Appends a sequence whose last `masked` tokens are not attended to.
    pub fn push_masked(&mut self, ids: &[u32], types: &[u32], skip: usize, masked: usize) {
        debug_assert_eq!(ids.len(), types.len());
        self.sequences.push(Sequence { start: self.ids.len(), length: ids.len(), skip, masked });
        self.ids.extend_from_slice(ids);
        self.types.extend_from_slice(types);
    }

    /// Appends the next tokens of a cached sequence.
    pub fn push_cached(&mut self, ids: &[u32], cached: CachedSequence) {
        self.push(ids, &vec![0; ids.len()], 0);
        self.cached.push(cached);
    }

    /// Tokens of the sequence at `index` that are in the KV cache before this batch.
    pub fn cached_length(&self, index: usize) -> usize {
        self.cached.get(index).map_or(0, |cached| cached.length)
    }

    /// The position of each token in its sequence, cached tokens included.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.sequences.iter().enumerate().flat_map(|(index, sequence)| {
            let first = self.cached_length(index);
            first..first + sequence.length
        })
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The sequences in `range` as a batch.
    #[must_use]
    pub fn part(&self, range: std::ops::Range<usize>) -> Batch {
        let mut part = Batch::new(self.output_kind);
        part.cached = self.cached.get(range.clone()).unwrap_or_default().to_vec();
        for sequence in &self.sequences[range] {
            let place = sequence.start..sequence.start + sequence.length;
            let Sequence { skip, masked, .. } = *sequence;
            part.push_masked(&self.ids[place.clone()], &self.types[place], skip, masked);
        }
        part
    }

    /// Some tokens of cached sequences as a batch without logits: the index of each sequence, and tokens of it.
    #[must_use]
    pub fn tokens_of(&self, parts: &[(usize, std::ops::Range<usize>)]) -> Batch {
        let mut batch = Batch::new(self.output_kind);
        for (index, tokens) in parts {
            let (start, cached) = (self.sequences[*index].start, &self.cached[*index]);
            let cached = CachedSequence { length: cached.length + tokens.start, logits: 0, ..cached.clone() };
            batch.push_cached(&self.ids[start + tokens.start..start + tokens.end], cached);
        }
        batch
    }

    /// The range of output rows of the sequences in `range`.
    pub fn rows_of(&self, range: std::ops::Range<usize>) -> std::ops::Range<usize> {
        let row = |index: usize| match self.output_kind {
            OutputKind::Pooled => index,
            OutputKind::Logits => self.cached.iter().take(index).map(|cached| cached.logits).sum(),
            OutputKind::Tokens | OutputKind::Projected => {
                self.sequences.get(index).map_or(self.tokens(), |sequence| sequence.start)
            }
        };
        row(range.start)..row(range.end)
    }

    /// Whether the sequences cover the ids without gap or overlap, and each has a token that is attended to. In a step,
    /// each has a cached part, and logits are requested of its own tokens.
    pub fn is_well_formed(&self) -> bool {
        let mut end = 0;
        let mut cached = self.cached.iter().zip(&self.sequences);
        self.types.len() == self.ids.len()
            && (self.cached.is_empty() || self.cached.len() == self.sequences.len())
            && (self.output_kind != OutputKind::Logits || !self.cached.is_empty())
            && cached.all(|(cached, sequence)| cached.logits <= sequence.length && sequence.masked == 0)
            && self.sequences.iter().all(|sequence| {
                let follows = sequence.start == end && sequence.length > sequence.masked;
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
        batch.push_masked(&[4, 5], &[0, 1], 1, 1);
        batch.push(&[6], &[0], 0);
        let part = batch.part(1..3);
        assert!(batch.is_well_formed() && part.is_well_formed());
        assert_eq!(part.ids, [4, 5, 6]);
        assert_eq!(part.sequences[0], Sequence { start: 0, length: 2, skip: 1, masked: 1 });
        assert_eq!(part.sequences[1].start, 2);
    }

    #[test]
    fn the_rows_of_a_sequence_are_one_or_one_a_token() {
        for (output_kind, ranges) in [(OutputKind::Pooled, [0..1, 1..3]), (OutputKind::Tokens, [0..3, 3..6])]
        {
            let mut batch = Batch::new(output_kind);
            for ids in [&[1, 2, 3][..], &[4, 5], &[6]] {
                batch.push(ids, &vec![0; ids.len()], 0);
            }
            assert_eq!([batch.rows_of(0..1), batch.rows_of(1..3)], ranges);
        }
        let rows = Rows { width: 2, values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], norms: vec![7.0, 8.0, 9.0] };
        let part = Rows { width: 2, values: vec![3.0, 4.0], norms: vec![8.0] };
        assert_eq!(rows.part(1..2), part);
        assert_eq!(Rows { norms: Vec::new(), ..rows }.part(1..2), Rows { norms: Vec::new(), ..part });
    }

    #[test]
    fn a_step_has_a_cached_part_for_each_sequence_and_rows_for_the_requested_logits() {
        let mut step = Batch::new(OutputKind::Logits);
        step.push_cached(&[1, 2, 3], CachedSequence { length: 4, blocks: vec![0, 1], logits: 2, prompt: 6 });
        step.push_cached(&[5], CachedSequence { length: 0, blocks: vec![2], logits: 0, prompt: 1 });
        step.push_cached(&[6], CachedSequence { length: 7, blocks: vec![3], logits: 1, prompt: 7 });
        assert!(step.is_well_formed());
        assert_eq!([step.rows_of(0..1), step.rows_of(1..2), step.rows_of(2..3)], [0..2, 2..2, 2..3]);
        assert_eq!((step.cached_length(0), step.part(2..3).cached), (4, step.cached[2..].to_vec()));
        let mut other = step.clone();
        other.cached.pop();
        assert!(!other.is_well_formed());
        step.cached[1].logits = 2;
        assert!(!step.is_well_formed());
        let mut plain = Batch::new(OutputKind::Logits);
        plain.push(&[1], &[0], 0);
        assert!(!plain.is_well_formed());
    }

    #[test]
    fn a_sequence_of_which_nothing_is_seen_is_not_well_formed() {
        for (ids, masked) in [(&[][..], 0), (&[1, 2], 2)] {
            let mut batch = Batch::new(OutputKind::Tokens);
            batch.push_masked(ids, &vec![0; ids.len()], 0, masked);
            assert!(!batch.is_well_formed());
        }
    }
}
