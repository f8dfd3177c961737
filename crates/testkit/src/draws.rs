//! Random numbers that are the same in every run.

/// A random generator: `SplitMix64`.
#[derive(Clone, Debug)]
pub struct Draws(pub u64);

impl Draws {
    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (value ^ (value >> 31)) as usize % limit
    }

    /// Whether something of this probability happens.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Changes `bytes` in some places: another byte, a number at an edge, or a part that is removed, repeated or taken from
    /// `other`.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        const EDGES: [u64; 6] = [0, 1, 0x7fff_ffff, 0xffff_ffff, u64::MAX >> 1, u64::MAX];
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            let end = (at + self.below(64)).min(bytes.len());
            match self.below(6) {
                0 | 1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = self.below(256) as u8),
                2 => {
                    let number = EDGES[self.below(EDGES.len())].to_le_bytes();
                    let width = [1, 4, 8][self.below(3)];
                    bytes.iter_mut().skip(at).zip(&number[..width]).for_each(|(byte, new)| *byte = *new);
                }
                3 => drop(bytes.drain(at..end)),
                4 => {
                    let part = bytes[at..end].to_vec();
                    let to = self.below(bytes.len() + 1);
                    bytes.splice(to..to, part);
                }
                _ => {
                    let from = self.below(other.len() + 1);
                    let part = other[from..].iter().copied().take(self.below(64)).collect::<Vec<u8>>();
                    bytes.splice(at..end, part);
                }
            }
        }
    }
}

/// Number of inputs of a fuzz test: `SCONCE_FUZZ_INPUTS`, or `default`.
pub fn fuzz_inputs(default: usize) -> usize {
    std::env::var("SCONCE_FUZZ_INPUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}
