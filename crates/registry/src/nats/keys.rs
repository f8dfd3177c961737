//! Keys of a bucket. Ids may be any text; keys have letters, digits, `-`, `_` and `=`.

use std::fmt::Write;

/// A key of the bucket of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MemberKey {
    Registration(String),
    Heartbeat(String),
}

impl MemberKey {
    /// Parses a key.
    pub(super) fn parse(key: &str) -> Option<MemberKey> {
        let (kind, id) = key.split_once('.')?;
        match kind {
            "registration" => Some(MemberKey::Registration(decode(id)?)),
            "heartbeat" => Some(MemberKey::Heartbeat(decode(id)?)),
            _ => None,
        }
    }
}

/// The key of a worker's registration.
pub(super) fn registration(worker_id: &str) -> String {
    format!("registration.{}", encode(worker_id))
}

/// The key of a worker's heartbeat.
pub(super) fn heartbeat(worker_id: &str) -> String {
    format!("heartbeat.{}", encode(worker_id))
}

/// Writes bytes that a key can't have as `=XX`.
pub(super) fn encode(id: &str) -> String {
    let mut key = String::with_capacity(id.len());
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            key.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(key, "={byte:02X}");
        }
    }
    key
}

/// The id of a key.
pub(super) fn decode(key: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(key.len()), key);
    while let Some((plain, escaped)) = rest.split_once('=') {
        bytes.extend_from_slice(plain.as_bytes());
        bytes.push(u8::from_str_radix(escaped.get(..2)?, 16).ok()?);
        rest = &escaped[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_has_a_key_that_reads_back() {
        for id in ["seven", "a.b", "a=b", "Büro 7/links", "*", ">", "=", "日本"] {
            let key = registration(id);
            let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=.".contains(&byte);
            assert!(key.bytes().all(is_valid), "{key}");
            assert_eq!(MemberKey::parse(&key), Some(MemberKey::Registration(id.to_owned())));
            assert_eq!(MemberKey::parse(&heartbeat(id)), Some(MemberKey::Heartbeat(id.to_owned())));
        }
    }

    #[test]
    fn other_keys_are_ignored() {
        for key in
            ["", "seven", "other.seven", "heartbeat.=4", "heartbeat.=zz", "heartbeat.=FF", "heartbeat.=ü"]
        {
            assert_eq!(MemberKey::parse(key), None, "{key}");
        }
    }
}
