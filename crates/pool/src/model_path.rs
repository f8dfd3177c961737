//! The path of a model in the API of workers and gateways.

use std::fmt::Write as _;

/// `/v1/models/NAME`, percent-encoded; slashes stay.
pub fn model_path(name: &str) -> String {
    let mut path = "/v1/models/".to_owned();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded() {
        assert_eq!(model_path("org/mini-lm_1.0~a"), "/v1/models/org/mini-lm_1.0~a");
        assert_eq!(model_path("a b%ü?#"), "/v1/models/a%20b%25%C3%BC%3F%23");
    }
}
