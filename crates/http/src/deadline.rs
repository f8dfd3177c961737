//! The deadline that a client or a gateway sets for a request.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};

use crate::refusal::{Kind, Refusal};

/// The header with the milliseconds that remain for a request. A gateway sends what is left of its own time limit.
pub const DEADLINE_HEADER: HeaderName = HeaderName::from_static("x-sconce-deadline-ms");

/// The time that remains for a request, if it says so.
pub fn remaining(headers: &HeaderMap) -> Result<Option<Duration>, Refusal> {
    let Some(value) = headers.get(DEADLINE_HEADER) else { return Ok(None) };
    let milliseconds = value.to_str().ok().and_then(|value| value.trim().parse().ok());
    milliseconds.map(Duration::from_millis).map(Some).ok_or_else(|| {
        Refusal::new(Kind::Validation, "`x-sconce-deadline-ms` is a whole number of milliseconds")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_whole_milliseconds() {
        assert_eq!(remaining(&HeaderMap::new()), Ok(None));
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(DEADLINE_HEADER, value.parse().expect("a header"));
            remaining(&headers).map_err(|refusal| refusal.kind)
        };
        assert_eq!(of("1500"), Ok(Some(Duration::from_millis(1500))));
        assert_eq!(of(" 0 "), Ok(Some(Duration::ZERO)));
        for wrong in ["", "1.5", "-1", "soon", "99999999999999999999"] {
            assert_eq!(of(wrong), Err(Kind::Validation), "{wrong}");
        }
    }
}
