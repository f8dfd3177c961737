//! Numerics classes and pins: which outputs may share an index.

use std::fmt;
use std::str::FromStr;

/// Maximum length of the hash in a class.
const MAX_HASH: usize = 64;

/// Accuracy band of a class: the maximum distance from the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Band {
    /// Equal to the f32 reference up to the order of summation.
    Exact,
    /// Within half precision of the f32 reference.
    Half,
    /// Beyond half precision, and still useful.
    Coarse,
    /// Measured against a reference that is not f32.
    Unknown,
}

impl Band {
    const ALL: [Band; 4] = [Band::Exact, Band::Half, Band::Coarse, Band::Unknown];

    /// The name in a class.
    pub fn name(self) -> &'static str {
        match self {
            Band::Exact => "exact",
            Band::Half => "half",
            Band::Coarse => "coarse",
            Band::Unknown => "unknown",
        }
    }

    /// Whether this band is tighter than `other`. `unknown` has another reference: it is neither tighter nor looser
    /// than any band.
    pub fn is_tighter_than(self, other: Band) -> bool {
        self != Band::Unknown && other != Band::Unknown && self < other
    }
}

/// A numerics class, as `HASH-BAND`: hash of weights, tokenizer and semantics, and the band.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumericsClass {
    hash: Box<str>,
    band: Band,
}

impl NumericsClass {
    /// Hash of weights, tokenizer and semantics.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The band.
    pub fn band(&self) -> Band {
        self.band
    }
}

impl fmt::Display for NumericsClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.hash, self.band.name())
    }
}

/// A text that is not a numerics class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a numerics class: expected HASH-BAND with a band of exact, half, coarse or unknown")]
pub struct InvalidClass(String);

impl FromStr for NumericsClass {
    type Err = InvalidClass;

    fn from_str(text: &str) -> Result<NumericsClass, InvalidClass> {
        let invalid = || InvalidClass(text.chars().take(2 * MAX_HASH).collect());
        let (hash, band) = text.rsplit_once('-').ok_or_else(invalid)?;
        let band = Band::ALL.into_iter().find(|known| known.name() == band).ok_or_else(invalid)?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if hash.is_empty() || hash.len() > MAX_HASH || !hash.bytes().all(is_hex) {
            return Err(invalid());
        }
        Ok(NumericsClass { hash: hash.into(), band })
    }
}

/// The class that a request is restricted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The class.
    pub class: NumericsClass,
    /// Whether a tighter band of the same weights may serve it too.
    pub allow_tighter: bool,
}

impl Pin {
    /// Whether outputs of `class` satisfy the pin.
    pub fn admits(&self, class: &NumericsClass) -> bool {
        let same_hash = class.hash == self.class.hash;
        let tighter = self.allow_tighter && class.band.is_tighter_than(self.class.band);
        same_hash && (class.band == self.class.band || tighter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(text: &str) -> NumericsClass {
        text.parse().unwrap()
    }

    #[test]
    fn a_class_reads_back_what_it_prints() {
        for band in Band::ALL {
            let text = format!("0123456789ab-{}", band.name());
            assert_eq!(class(&text).to_string(), text);
            assert_eq!((class(&text).hash(), class(&text).band()), ("0123456789ab", band));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let long = format!("{}-half", "a".repeat(65));
        for text in
            ["", "abc", "-half", "abc-", "abc-fine", "ABC-half", "abc -half", "a-b-half", "abc-half ", &long]
        {
            assert!(text.parse::<NumericsClass>().is_err(), "{text}");
        }
        let error = "x".repeat(1000).parse::<NumericsClass>().unwrap_err().to_string();
        assert!(error.len() < 300, "the message quotes a part: {error}");
    }

    #[test]
    fn a_pin_admits_its_class_and_where_allowed_tighter_bands_of_its_weights() {
        let bands = ["exact", "half", "coarse", "unknown"];
        let tighter = [("exact", "half"), ("exact", "coarse"), ("half", "coarse")];
        for pinned in bands {
            for offered in bands {
                let offer = class(&format!("aa-{offered}"));
                let strict = Pin { class: class(&format!("aa-{pinned}")), allow_tighter: false };
                assert_eq!(strict.admits(&offer), offered == pinned, "{offered} for {pinned}");
                let loose = Pin { allow_tighter: true, ..strict };
                let expected = offered == pinned || tighter.contains(&(offered, pinned));
                assert_eq!(loose.admits(&offer), expected, "{offered} for {pinned}");
                assert!(!loose.admits(&class(&format!("ab-{offered}"))), "other weights");
            }
        }
    }
}
