//! Outputs of the fake model: a function of token ids, equal on every placement.

use sconce_core::batch::{Batch, OutputKind, Rows};

/// Vocabulary size of generated sequences.
const VOCABULARY: u64 = 256;

/// Generates output rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputGenerator {
    pub(super) width: usize,
    pub(super) normalizes: bool,
    pub(super) noise: f32,
    /// Whether rows are scores, which have no norm of their own.
    pub(super) scores: bool,
}

impl OutputGenerator {
    /// One row per sequence or per token, as the batch requests.
    pub(super) fn rows(&self, batch: &Batch) -> Rows {
        let mut rows = Rows { width: self.width, ..Rows::default() };
        for sequence in &batch.sequences {
            let mut hash = sequence.length as u64;
            for &id in &batch.ids[sequence.start..sequence.start + sequence.length] {
                hash = mix(hash ^ u64::from(id));
                if batch.output_kind != OutputKind::Pooled {
                    self.push(&mut rows, hash);
                }
            }
            if batch.output_kind == OutputKind::Pooled {
                self.push(&mut rows, hash);
            }
        }
        if batch.output_kind == OutputKind::Tokens {
            rows.norms.clear();
        }
        rows
    }

    fn push(&self, rows: &mut Rows, hash: u64) {
        let start = rows.values.len();
        for place in 0..self.width as u64 {
            let number = uniform(mix(hash ^ place));
            let noise = self.noise * uniform(mix(hash ^ place ^ (1 << 40)));
            rows.values.push(number * (1.0 + noise));
        }
        let row = &mut rows.values[start..];
        let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        if self.normalizes {
            for x in row {
                *x /= norm;
            }
        }
        rows.norms.push(if self.scores { 1.0 } else { norm });
    }
}

/// A batch of sequences of these lengths, generated from `seed`.
pub(super) fn generated(lengths: &[usize], seed: u64, output_kind: OutputKind) -> Batch {
    let mut batch = Batch::new(output_kind);
    let mut state = seed;
    for &length in lengths {
        let mut id = || {
            state = mix(state);
            (state % VOCABULARY) as u32
        };
        let ids: Vec<u32> = (0..length).map(|_| id()).collect();
        batch.push(&ids, &vec![0; length], 0);
    }
    batch
}

/// The next value of splitmix64.
pub(super) fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A value between -1 and 1.
fn uniform(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
}
