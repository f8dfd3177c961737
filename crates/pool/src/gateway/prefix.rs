//! The start of a prompt, by which a generation prefers a worker that may have it in its prefix cache.

use super::job::BYTES_PER_TOKEN;
use crate::choose::Prefix;
use crate::random::stable_hash;

/// Fields that hold the prompt, in the order in which models read them.
const FIELDS: [&[u8]; 5] = [b"\"system\"", b"\"messages\"", b"\"instructions\"", b"\"input\"", b"\"prompt\""];
/// Bytes of the prompt that tell conversations apart. A conversation that grows keeps them.
const HASHED: usize = 512;

/// The start of the prompt of a body. `None` if it is short: then it costs little to compute again.
///
/// The search is approximate. A text that looks like one of the fields only makes for another preference.
pub(super) fn of(body: &[u8]) -> Option<Prefix> {
    let start =
        FIELDS.iter().find_map(|field| body.windows(field.len()).position(|window| window == *field))?;
    let prompt = &body[start..];
    let hashed = prompt.get(..HASHED)?;
    Some(Prefix { hash: stable_hash(hashed), tokens: prompt.len() as u64 / BYTES_PER_TOKEN })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_keeps_its_prefix_as_it_grows() {
        let body = |first: &str, more: &str| {
            let first = first.repeat(100);
            of(format!("{{\"model\": \"m\", \"messages\": [{{\"content\": \"{first}\"}}{more}]}}").as_bytes())
        };
        let (one, two) = (body("one text", ""), body("one text", ", {\"content\": \"later\"}"));
        let hash = |prefix: Option<Prefix>| prefix.expect("a prefix").hash;
        assert_eq!(hash(one), hash(two));
        assert!(two.expect("a prefix").tokens > one.expect("a prefix").tokens);
        assert_ne!(hash(one), hash(body("two texts", "")));
        assert_eq!(of(b"{\"messages\": []}"), None, "a short prompt has no preference");
        assert_eq!(of(&[b'a'; 4096]), None);
    }
}
