//! A random generator whose seed is an argument, so that decisions can be replayed.

use std::hash::{BuildHasher, RandomState};

/// `SplitMix64`. Not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that always draws the same values.
    pub fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    /// A generator with a seed from the operating system.
    pub fn from_entropy() -> Random {
        Random(RandomState::new().hash_one(0u8))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A value in `0.0..1.0`.
    pub fn fraction(&mut self) -> f64 {
        fraction(self.bits())
    }
}

/// The finalizer of `SplitMix64`: every input bit changes every output bit with probability 1/2.
pub(crate) fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// The upper 53 bits as a value in `0.0..1.0`.
pub(crate) fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A hash of a text that is the same in every process.
pub fn stable_hash(text: &[u8]) -> u64 {
    // FNV-1a, then mixed: its upper bits alone are weak.
    mix(text.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_values() {
        let draw = |seed| {
            let mut random = Random::seeded(seed);
            (0..4).map(|_| random.bits()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(
            Random::seeded(0).bits(),
            0xE220_A839_7B1D_CDAF,
            "the first value of the published algorithm"
        );
    }

    #[test]
    fn fractions_are_uniform() {
        let mut random = Random::seeded(1);
        let mut tenths = [0u32; 10];
        for _ in 0..100_000 {
            let value = random.fraction();
            assert!((0.0..1.0).contains(&value));
            tenths[(value * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (9_500..10_500).contains(count)), "{tenths:?}");
        assert!(fraction(u64::MAX) < 1.0);
    }

    #[test]
    fn the_hash_is_stable_and_differs_by_text() {
        assert_eq!(stable_hash(b"worker-1"), stable_hash(b"worker-1"));
        assert_ne!(stable_hash(b"worker-1") >> 40, stable_hash(b"worker-2") >> 40);
    }
}
