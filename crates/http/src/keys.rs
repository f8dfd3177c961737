//! Keys that open the door: kept as hashes, compared in constant time.

use std::fmt;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The hashes of the keys that are let in. None lets everybody in.
#[derive(Clone, Default)]
pub struct Keys {
    known: Vec<Known>,
}

#[derive(Clone)]
struct Known {
    hash: [u8; 32],
    name: Option<String>,
    rate: Option<f64>,
    operator: bool,
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It has no key.
    Missing,
    /// It has a key that is none of the known ones.
    Unknown,
}

/// Who asks: the holder of a key, or anybody where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Principal {
    /// Its tenant.
    pub tenant: TenantId,
    /// Tokens a second that the key is good for.
    pub rate: Option<f64>,
    /// Whether it may stop the worker where not all may.
    pub operator: bool,
}

/// A key's holder, told from others and no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TenantId(pub u64);

/// A line that is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A hash that is none.
    #[error("`sha256:` is followed by 64 hexadecimal digits; line {0} is not")]
    Hash(usize),
    /// A rate that is none.
    #[error("` rate=` is followed by tokens a second; line {0} is not")]
    Rate(usize),
    /// Words after a key that say nothing.
    #[error(
        "a key has no spaces in it; after it come ` name=NAME`, ` rate=N` and ` operator`, in this order: line {0} \
         is not so"
    )]
    Words(usize),
    /// No key at all.
    #[error("no key in it: a line is a key, or `sha256:` and its hash")]
    None,
}

impl Keys {
    /// One key a line, as it is or as `sha256:` and its hash. After it may come ` name=` and what the log calls it,
    /// ` rate=` and the tokens a second that it is good for, and ` operator` where it may stop the worker and others may
    /// not, in this order. Empty lines and those that begin with `#` are none.
    pub fn read(text: &str) -> Result<Keys, KeyError> {
        let mut known = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (line, operator) = match line.strip_suffix(" operator") {
                Some(line) => (line.trim_end(), true),
                None => (line, false),
            };
            let (line, rate) = match line.rsplit_once(" rate=") {
                None => (line, None),
                Some((line, rate)) => {
                    let rate = rate.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
                    (line.trim_end(), Some(rate.ok_or(KeyError::Rate(number + 1))?))
                }
            };
            let (line, name) = match line.rsplit_once(" name=") {
                Some((line, name)) => (line.trim_end(), Some(name)),
                None => (line, None),
            };
            let is_word = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
            if !is_word(line) || !name.is_none_or(is_word) {
                return Err(KeyError::Words(number + 1));
            }
            let hash = match line.strip_prefix("sha256:") {
                Some(hex) => digits(hex).ok_or(KeyError::Hash(number + 1))?,
                None => Sha256::digest(line).into(),
            };
            known.push(Known { hash, name: name.map(str::to_owned), rate, operator });
        }
        if known.is_empty() { Err(KeyError::None) } else { Ok(Keys { known }) }
    }

    /// These keys and those.
    pub fn extend(&mut self, other: Keys) {
        self.known.extend(other.known);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether some keys are those of operators, and the others are not.
    pub fn names_operators(&self) -> bool {
        self.known.iter().any(|known| known.operator)
    }

    /// Whose request it is that has these headers, if it is let in.
    pub fn admit(&self, headers: &HeaderMap) -> Result<Principal, Denied> {
        if self.known.is_empty() {
            return Ok(Principal::default());
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let key = bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()));
        let key = key.filter(|key| !key.is_empty()).ok_or(Denied::Missing)?;
        self.holder(key).ok_or(Denied::Unknown)
    }

    /// What the log calls a key: its name, or the start of its hash.
    pub fn name(&self, tenant: TenantId) -> String {
        let known = self.known.iter().find(|known| known.tenant() == tenant);
        known.and_then(|known| known.name.clone()).unwrap_or_else(|| {
            let start = tenant.0.to_le_bytes();
            format!("sha256:{:02x}{:02x}{:02x}{:02x}", start[0], start[1], start[2], start[3])
        })
    }

    /// Every hash is compared to its end, so that time tells nothing.
    fn holder(&self, key: &str) -> Option<Principal> {
        let hash: [u8; 32] = Sha256::digest(key).into();
        let mut holder: Option<Principal> = None;
        for known in &self.known {
            if bool::from(known.hash.ct_eq(&hash)) {
                let operator = known.operator || holder.is_some_and(|other| other.operator);
                holder = Some(Principal { tenant: known.tenant(), rate: known.rate, operator });
            }
        }
        holder
    }
}

impl Known {
    fn tenant(&self) -> TenantId {
        TenantId(self.hash.first_chunk().map_or(0, |start| u64::from_le_bytes(*start)))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.known.len())
    }
}

fn digits(hex: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
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

    /// The SHA-256 of `foo`.
    const FOO: &str = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";

    #[test]
    fn any_of_several_keys_opens_the_door_and_nothing_else_does() {
        let keys = Keys::read(&format!("# ours\none\n\nsha256:{FOO}\n")).expect("two keys");
        for key in ["one", "foo"] {
            for scheme in ["Bearer", "bearer"] {
                assert!(keys.admit(&headers("authorization", &format!("{scheme} {key}"))).is_ok(), "{key}");
            }
            assert!(keys.admit(&headers("x-api-key", key)).is_ok(), "{key}");
        }
        for value in ["Bearer two", "Bearer on", "Bearer onee", "Bearer ONE", "Bearer # ours"] {
            assert_eq!(keys.admit(&headers("authorization", value)), Err(Denied::Unknown), "{value}");
        }
        for value in ["Bearer ", "one", "Basic one", "Bearer"] {
            assert_eq!(keys.admit(&headers("authorization", value)), Err(Denied::Missing), "{value}");
        }
        assert_eq!(keys.admit(&headers("x-api-key", FOO)), Err(Denied::Unknown), "a hash is no key");
        assert_eq!(keys.admit(&headers("x-api-key", "")), Err(Denied::Missing));
        assert_eq!(keys.admit(&HeaderMap::new()), Err(Denied::Missing));
        assert_eq!(Keys::default().admit(&HeaderMap::new()), Ok(Principal::default()));
        assert!(Keys::default().is_empty() && !keys.is_empty());
        assert_eq!(Keys::read("\n#\n").err(), Some(KeyError::None));
        assert_eq!(format!("{keys:?}"), "2 keys");
        let mut both = Keys::read("three").expect("a key");
        both.extend(keys);
        for key in ["one", "foo", "three"] {
            assert!(both.admit(&headers("x-api-key", key)).is_ok(), "{key}");
        }
    }

    #[test]
    fn every_byte_of_a_hash_counts() {
        for at in 0..32 {
            let mut digits = FOO.to_owned();
            let other = if &digits[2 * at..=2 * at] == "0" { "1" } else { "0" };
            digits.replace_range(2 * at..=2 * at, other);
            let keys = Keys::read(&format!("sha256:{digits}")).expect("a key");
            assert_eq!(keys.admit(&headers("x-api-key", "foo")), Err(Denied::Unknown), "byte {at}");
        }
        for wrong in ["12", &FOO[1..], &format!("{FOO}0"), &FOO.replace('2', "g"), &FOO.replace("2c", "é")] {
            assert_eq!(Keys::read(&format!("\nsha256:{wrong}")).err(), Some(KeyError::Hash(2)), "{wrong}");
        }
    }

    #[test]
    fn a_key_may_have_a_name_a_rate_and_the_right_to_stop_the_worker() {
        let keys = Keys::read("one rate=2.5\ntwo\n").expect("two keys");
        let principal = |key: &str| keys.admit(&headers("x-api-key", key)).expect("it is let in");
        assert_eq!((principal("one").rate, principal("two").rate), (Some(2.5), None));
        assert_ne!(principal("one").tenant, principal("two").tenant);
        assert!(!keys.names_operators());
        for rate in ["fast", "", "0", "-1", "inf", "NaN"] {
            assert_eq!(Keys::read(&format!("one rate={rate}")).err(), Some(KeyError::Rate(1)), "{rate}");
        }
        for words in ["one operator rate=5", "one rate=5 name=a", "one two", "one name=a b", "one name="] {
            let refused = Keys::read(words).err();
            assert!(matches!(refused, Some(KeyError::Words(1) | KeyError::Rate(1))), "{words}: {refused:?}");
        }
        let keys = Keys::read("one name=web rate=2.5 operator\ntwo\nfoo name=jobs\n").expect("three keys");
        let principal = |key: &str| keys.admit(&headers("x-api-key", key)).expect("it is let in");
        assert_eq!((principal("one").rate, principal("one").operator), (Some(2.5), true));
        assert_eq!((principal("two").rate, principal("two").operator), (None, false));
        assert!(keys.names_operators());
        assert_eq!(
            [principal("one"), principal("foo")].map(|principal| keys.name(principal.tenant)),
            ["web", "jobs"]
        );
        assert_eq!(Keys::default().name(principal("foo").tenant), format!("sha256:{}", &FOO[..8]));
    }

    #[test]
    fn a_key_that_stands_twice_may_do_what_either_may() {
        for text in ["one operator\none\n", "one\none operator\n"] {
            let keys = Keys::read(text).expect("a key");
            assert!(keys.admit(&headers("x-api-key", "one")).expect("it is let in").operator, "{text}");
        }
    }

    #[test]
    fn a_rate_is_a_finite_number_above_zero() {
        for rate in ["0", "-1", "inf", "NaN", "-inf", ""] {
            let read = Keys::read(&format!("one\ntwo rate={rate}"));
            assert_eq!(read.err(), Some(KeyError::Rate(2)), "{rate}");
        }
    }

    #[test]
    fn a_hash_is_64_hexadecimal_digits() {
        let hash = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
        let (short, long) = (&hash[1..], format!("{hash}0"));
        let (signed, wide) = (format!("+f{}", &hash[2..]), format!("\u{e9}{}", &hash[2..]));
        for hash in ["", short, &long, &signed, &wide] {
            let read = Keys::read(&format!("one\nsha256:{hash}"));
            assert_eq!(read.err(), Some(KeyError::Hash(2)), "{hash}");
        }
    }

    #[test]
    fn keys_of_several_files_are_all_known_and_the_last_rate_counts() {
        let mut keys = Keys::default();
        assert!(keys.is_empty());
        keys.extend(Keys::read("one operator\none rate=5").expect("a key twice"));
        keys.extend(Keys::read("two").expect("a key"));
        assert!(!keys.is_empty());
        let principal = |key: &str| keys.admit(&headers("x-api-key", key)).expect("it is let in");
        assert_eq!((principal("one").operator, principal("one").rate), (true, Some(5.0)));
        assert_eq!((principal("two").operator, principal("two").rate), (false, None));
    }
}
