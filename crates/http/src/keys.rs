//! API keys: stored as SHA-256 hashes, compared in constant time.

use std::fmt;

use axum::http::{HeaderMap, HeaderName, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The set of valid API keys. An empty set authorizes every request.
#[derive(Clone, Default)]
pub struct Keys {
    keys: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    hash: [u8; 32],
    name: Option<String>,
    rate: Option<f64>,
    operator: bool,
    pool: bool,
}

/// Why a request is not authorized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No key was sent.
    Missing,
    /// The key is not valid.
    Unknown,
}

/// The authenticated caller: the holder of a key, or the default principal where no keys are configured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Principal {
    /// Its tenant.
    pub tenant: TenantId,
    /// Rate limit in tokens per second.
    pub rate: Option<f64>,
    /// Whether it may use operator routes, such as `/v1/drain`, if these are restricted.
    pub operator: bool,
    /// Whether it is a gateway of a pool, which may name the tenant of a request.
    pub pool: bool,
}

/// The header by which a gateway names the tenant of a request.
pub const TENANT_HEADER: HeaderName = HeaderName::from_static("x-sconce-tenant");

/// Maximum bytes of a tenant's name.
const MAX_TENANT: usize = 256;

/// Why a request may not name its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TenantError {
    /// Its key is not marked ` pool`.
    #[error("only a key marked `pool` may send `x-sconce-tenant`")]
    Forbidden,
    /// The name is empty, too long, or not text.
    #[error("`x-sconce-tenant` is a text of 1 to {MAX_TENANT} bytes")]
    Invalid,
}

impl Principal {
    /// The principal of a request with these headers: the tenant that a gateway names has the limits of the gateway's key,
    /// and a share of its own.
    pub fn forwarding(self, headers: &HeaderMap) -> Result<Principal, TenantError> {
        let Some(name) = headers.get(TENANT_HEADER) else { return Ok(self) };
        if !self.pool {
            return Err(TenantError::Forbidden);
        }
        let name = name.to_str().ok().map(str::trim).filter(|name| (1..=MAX_TENANT).contains(&name.len()));
        let hash = Sha256::digest(name.ok_or(TenantError::Invalid)?);
        Ok(Principal { tenant: TenantId::of_hash(&hash.into()), ..self })
    }
}

/// The tenant of a key: an opaque id derived from the hash of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TenantId(pub u64);

impl TenantId {
    fn of_hash(hash: &[u8; 32]) -> TenantId {
        TenantId(hash.first_chunk().map_or(0, |start| u64::from_le_bytes(*start)))
    }
}

/// Why a line of a key file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The hash is not valid.
    #[error("`sha256:` must be followed by 64 hexadecimal digits: line {0}")]
    Hash(usize),
    /// The rate is not valid.
    #[error("` rate=` must be followed by a positive number of tokens per second: line {0}")]
    Rate(usize),
    /// The key or an attribute is malformed.
    #[error(
        "a line must be a key without spaces, optionally followed by ` name=NAME`, ` rate=N`, ` operator` and ` pool` in \
         this order: line {0}"
    )]
    Words(usize),
    /// The file contains no key.
    #[error("no key found: a line is a key, or `sha256:` and its hash")]
    None,
}

impl Keys {
    /// Parses one key per line, in plain text or as `sha256:HEX`. Optional attributes follow in this order: ` name=NAME` for
    /// the log, ` rate=N` for a rate limit in tokens per second, ` operator`, which restricts operator routes to these
    /// keys, and ` pool` for a gateway, which may name the tenant of a request. Empty lines and lines that begin with `#` are ignored.
    pub fn read(text: &str) -> Result<Keys, KeyError> {
        let mut keys = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let marked =
                |line: &'_ str, mark: &str| line.strip_suffix(mark).map(|line| line.trim_end().len());
            let pool = marked(line, " pool");
            let line = &line[..pool.unwrap_or(line.len())];
            let operator = marked(line, " operator");
            let line = &line[..operator.unwrap_or(line.len())];
            let (operator, pool) = (operator.is_some(), pool.is_some());
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
                Some(hex) => parse_hash(hex).ok_or(KeyError::Hash(number + 1))?,
                None => Sha256::digest(line).into(),
            };
            keys.push(Key { hash, name: name.map(str::to_owned), rate, operator, pool });
        }
        if keys.is_empty() { Err(KeyError::None) } else { Ok(Keys { keys }) }
    }

    /// Adds the keys of `other`.
    pub fn extend(&mut self, other: Keys) {
        self.keys.extend(other.keys);
    }

    /// Whether no keys are configured.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether operator routes are restricted to operator keys.
    pub fn has_operators(&self) -> bool {
        self.keys.iter().any(|key| key.operator)
    }

    /// Authenticates a request by `Authorization: Bearer` or `x-api-key`.
    pub fn admit(&self, headers: &HeaderMap) -> Result<Principal, Denied> {
        if self.keys.is_empty() {
            return Ok(Principal::default());
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let key = bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()));
        let key = key.filter(|key| !key.is_empty()).ok_or(Denied::Missing)?;
        self.find(key).ok_or(Denied::Unknown)
    }

    /// The name of a tenant in the log: the name of its key, or the start of the hash.
    pub fn name(&self, tenant: TenantId) -> String {
        let key = self.keys.iter().find(|key| key.tenant() == tenant);
        key.and_then(|key| key.name.clone()).unwrap_or_else(|| {
            let start = tenant.0.to_le_bytes();
            format!("sha256:{:02x}{:02x}{:02x}{:02x}", start[0], start[1], start[2], start[3])
        })
    }

    /// The principal of a key. Compares all hashes in constant time.
    fn find(&self, key: &str) -> Option<Principal> {
        let hash: [u8; 32] = Sha256::digest(key).into();
        let mut found: Option<Principal> = None;
        for key in &self.keys {
            if bool::from(key.hash.ct_eq(&hash)) {
                let operator = key.operator || found.is_some_and(|other| other.operator);
                let pool = key.pool || found.is_some_and(|other| other.pool);
                found = Some(Principal { tenant: key.tenant(), rate: key.rate, operator, pool });
            }
        }
        found
    }
}

impl Key {
    fn tenant(&self) -> TenantId {
        TenantId::of_hash(&self.hash)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.keys.len())
    }
}

/// Parses 64 hexadecimal digits.
fn parse_hash(hex: &str) -> Option<[u8; 32]> {
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
    fn any_of_several_keys_is_authorized_and_no_other() {
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
        assert_eq!(keys.admit(&headers("x-api-key", FOO)), Err(Denied::Unknown), "a hash is not a key");
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
    fn a_key_may_have_a_name_a_rate_and_operator_rights() {
        let keys = Keys::read("one rate=2.5\ntwo\n").expect("two keys");
        let principal = |key: &str| keys.admit(&headers("x-api-key", key)).expect("it is authorized");
        assert_eq!((principal("one").rate, principal("two").rate), (Some(2.5), None));
        assert_ne!(principal("one").tenant, principal("two").tenant);
        assert!(!keys.has_operators());
        for rate in ["fast", "", "0", "-1", "inf", "NaN"] {
            assert_eq!(Keys::read(&format!("one rate={rate}")).err(), Some(KeyError::Rate(1)), "{rate}");
        }
        for words in ["one operator rate=5", "one rate=5 name=a", "one two", "one name=a b", "one name="] {
            let refused = Keys::read(words).err();
            assert!(matches!(refused, Some(KeyError::Words(1) | KeyError::Rate(1))), "{words}: {refused:?}");
        }
        let keys = Keys::read("one name=web rate=2.5 operator\ntwo\nfoo name=jobs\n").expect("three keys");
        let principal = |key: &str| keys.admit(&headers("x-api-key", key)).expect("it is authorized");
        assert_eq!((principal("one").rate, principal("one").operator), (Some(2.5), true));
        assert_eq!((principal("two").rate, principal("two").operator), (None, false));
        assert!(keys.has_operators());
        assert_eq!(
            [principal("one"), principal("foo")].map(|principal| keys.name(principal.tenant)),
            ["web", "jobs"]
        );
        assert_eq!(Keys::default().name(principal("foo").tenant), format!("sha256:{}", &FOO[..8]));
    }

    #[test]
    fn only_a_pool_key_names_the_tenant_of_a_request() {
        let keys = Keys::read("one rate=5 operator pool\ntwo operator\nthree pool\n").expect("three keys");
        let principal = |key: &str| keys.admit(&headers("x-api-key", key)).expect("it is authorized");
        let marks = ["one", "two", "three"].map(|key| (principal(key).operator, principal(key).pool));
        assert_eq!(marks, [(true, true), (true, false), (false, true)]);
        assert_eq!(Keys::read("one pool operator").err(), Some(KeyError::Words(1)), "the order counts");
        let forwarded = |key: &str, name: &str| principal(key).forwarding(&headers("x-sconce-tenant", name));
        let (a, b) = (forwarded("one", "a").expect("a tenant"), forwarded("three", "b").expect("a tenant"));
        assert_ne!(a.tenant, b.tenant);
        assert_eq!(a.tenant, forwarded("three", "a").expect("a tenant").tenant, "whatever the gateway");
        assert_eq!(a, Principal { tenant: a.tenant, ..principal("one") }, "the limits are those of the key");
        assert_eq!(forwarded("two", "a"), Err(TenantError::Forbidden));
        assert_eq!(principal("two").forwarding(&HeaderMap::new()), Ok(principal("two")));
        for wrong in ["", "  ", &"a".repeat(257), "caf\u{e9}"] {
            assert_eq!(forwarded("one", wrong), Err(TenantError::Invalid), "{wrong}");
        }
    }

    #[test]
    fn a_duplicate_key_has_the_rights_of_both_lines() {
        for text in ["one operator\none\n", "one\none operator\n"] {
            let keys = Keys::read(text).expect("a key");
            assert!(keys.admit(&headers("x-api-key", "one")).expect("it is authorized").operator, "{text}");
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
    fn keys_of_several_files_are_all_valid_and_the_last_rate_counts() {
        let mut keys = Keys::default();
        assert!(keys.is_empty());
        keys.extend(Keys::read("one operator\none rate=5").expect("a key twice"));
        keys.extend(Keys::read("two").expect("a key"));
        assert!(!keys.is_empty());
        let principal = |key: &str| keys.admit(&headers("x-api-key", key)).expect("it is authorized");
        assert_eq!((principal("one").operator, principal("one").rate), (true, Some(5.0)));
        assert_eq!((principal("two").operator, principal("two").rate), (false, None));
    }
}
