//! Size classes of requests.

/// Maximum tokens of a small request.
const MAX_SMALL: u64 = 128;
/// Maximum tokens of a medium request.
const MAX_MEDIUM: u64 = 4096;

/// The size of a request, by which [`Rates`](sconce_registry::Rates) are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SizeClass {
    /// A single short text.
    Small,
    /// Several texts of medium length.
    Medium,
    /// Many long texts.
    Large,
}

impl SizeClass {
    /// All size classes.
    pub const ALL: [SizeClass; 3] = [SizeClass::Small, SizeClass::Medium, SizeClass::Large];

    /// The size class of a request with this many tokens.
    pub fn of(tokens: u64) -> SizeClass {
        if tokens <= MAX_SMALL {
            SizeClass::Small
        } else if tokens <= MAX_MEDIUM {
            SizeClass::Medium
        } else {
            SizeClass::Large
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_determine_the_size() {
        let sizes = [0, 128, 129, 4096, 4097, u64::MAX].map(SizeClass::of);
        let [small, medium, large] = SizeClass::ALL;
        assert_eq!(sizes, [small, small, medium, medium, large, large]);
    }
}
