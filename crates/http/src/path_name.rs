//! Names in paths, such as `/models/NAME/…`.

/// The rest of `path` after a leading `name`, which may be percent-encoded. The name must end at a segment boundary.
pub fn after<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let mut at = 0;
    for expected in name.bytes() {
        let (byte, length) = match *path.as_bytes().get(at)? {
            b'%' => (u8::from_str_radix(path.get(at + 1..at + 3)?, 16).ok()?, 3),
            byte => (byte, 1),
        };
        if byte != expected {
            return None;
        }
        at += length;
    }
    path.get(at..).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_at_a_segment_boundary_and_may_be_percent_encoded() {
        assert_eq!(after("small/embed", "small"), Some("/embed"));
        assert_eq!(after("small", "small"), Some(""));
        assert_eq!(after("org/name/v1/embeddings", "org/name"), Some("/v1/embeddings"));
        assert_eq!(after("org%2Fname/v1/embeddings", "org/name"), Some("/v1/embeddings"));
        assert_eq!(after("a%20b/embed", "a b"), Some("/embed"));
        assert_eq!(after("caf%C3%A9/embed", "café"), Some("/embed"));
        for (path, name) in
            [("smaller/embed", "small"), ("smal", "small"), ("%", "%"), ("a%2", "a/"), ("a%zz", "a/")]
        {
            assert_eq!(after(path, name), None, "{path} {name}");
        }
    }
}
