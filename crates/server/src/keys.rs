//! Keys that open the door: kept as hashes, compared in constant time.

use std::fmt;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// The hashes of the keys that are let in. None lets everybody in.
#[derive(Clone, Default)]
pub struct Keys {
    hashes: Vec<[u8; 32]>,
}

/// A line that is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A hash that is none.
    #[error("`sha256:` is followed by 64 hexadecimal digits; line {0} is not")]
    Hash(usize),
    /// No key at all.
    #[error("no key in it: a line is a key, or `sha256:` and its hash")]
    None,
}

impl Keys {
    /// One key a line, as it is or as `sha256:` and its hash; empty lines and those that begin with `#` are none.
    pub fn read(text: &str) -> Result<Keys, KeyError> {
        let mut hashes = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            hashes.push(match line.strip_prefix("sha256:") {
                Some(hex) => digits(hex).ok_or(KeyError::Hash(number + 1))?,
                None => Sha256::digest(line).into(),
            });
        }
        if hashes.is_empty() { Err(KeyError::None) } else { Ok(Keys { hashes }) }
    }

    /// These keys and those.
    pub fn extend(&mut self, other: Keys) {
        self.hashes.extend(other.hashes);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Whether a request with these headers is let in.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        if self.hashes.is_empty() {
            return true;
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let key = bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()));
        key.is_some_and(|key| self.knows(key))
    }

    /// Every hash is compared to its end, so that time tells nothing.
    fn knows(&self, key: &str) -> bool {
        let hash: [u8; 32] = Sha256::digest(key).into();
        self.hashes.iter().fold(Choice::from(0), |any, known| any | known.ct_eq(&hash)).into()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.hashes.len())
    }
}

fn digits(hex: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().expect("a header"));
        headers
    }

    #[test]
    fn any_of_several_keys_opens_the_door_and_nothing_else_does() {
        let hash = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
        let keys = Keys::read(&format!("# ours\none\n\nsha256:{hash}\n")).expect("two keys");
        for key in ["one", "foo"] {
            assert!(keys.admit(&headers("authorization", &format!("Bearer {key}"))), "{key}");
            assert!(keys.admit(&headers("x-api-key", key)), "{key}");
        }
        for value in ["Bearer two", "Bearer ", "one", "Basic one", "Bearer on"] {
            assert!(!keys.admit(&headers("authorization", value)), "{value}");
        }
        assert!(!keys.admit(&HeaderMap::new()));
        assert!(Keys::default().admit(&HeaderMap::new()));
        assert_eq!(Keys::read("sha256:12").err(), Some(KeyError::Hash(1)));
        assert_eq!(Keys::read("\n#\n").err(), Some(KeyError::None));
        assert_eq!(format!("{keys:?}"), "2 keys");
    }
}
