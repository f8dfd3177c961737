//! Who may operate a server: holders of an operator key, and no page of another origin.

use axum::extract::Request;
use axum::http::HeaderMap;

use crate::keys::{Keys, Principal};
use crate::refusal::{Kind, Refusal};

/// Rejects requests that may not `action`, such as `drain this worker`. If `keys` has operator keys, only they may.
pub fn authorize(keys: &Keys, request: &Request, action: &str) -> Result<(), Refusal> {
    let principal = request.extensions().get::<Principal>().copied().unwrap_or_default();
    let message = if is_cross_origin(request.headers()) {
        format!("cross-origin requests may not {action}")
    } else if keys.has_operators() && !principal.operator {
        format!("only an operator key may {action}")
    } else {
        return Ok(());
    };
    Err(Refusal::new(Kind::Forbidden, message))
}

/// Whether a browser sent the request for a page of another origin.
fn is_cross_origin(headers: &HeaderMap) -> bool {
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    match (header("sec-fetch-site"), header("origin")) {
        (Some(site), _) => site != "same-origin" && site != "none",
        (None, Some(origin)) => origin.split_once("://").map(|(_, host)| host) != header("host"),
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(headers: &[(&str, &str)], operator: bool) -> Request {
        let mut request = Request::new(Body::empty());
        for (name, value) in headers {
            let name = name.parse::<axum::http::HeaderName>().expect("a name");
            request.headers_mut().insert(name, value.parse().expect("a value"));
        }
        request.extensions_mut().insert(Principal { operator, ..Principal::default() });
        request
    }

    #[test]
    fn operators_are_those_with_an_operator_key_and_no_page_of_another_origin() {
        let (none, some) = (Keys::default(), Keys::read("one\ntwo operator\n").expect("keys"));
        assert!(authorize(&none, &request(&[], false), "act").is_ok(), "without operator keys everybody may");
        assert!(authorize(&some, &request(&[], true), "act").is_ok());
        let refused = authorize(&some, &request(&[], false), "act").expect_err("no operator");
        assert_eq!(
            (refused.kind, refused.message.as_str()),
            (Kind::Forbidden, "only an operator key may act")
        );
        for headers in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site"), ("origin", "http://a"), ("host", "a")],
            &[("origin", "http://b"), ("host", "a")],
            &[("origin", "null"), ("host", "a")],
        ] {
            assert!(authorize(&none, &request(headers, true), "act").is_err(), "{headers:?}");
        }
        for headers in [
            &[("sec-fetch-site", "same-origin")][..],
            &[("sec-fetch-site", "none")],
            &[("origin", "http://a:1"), ("host", "a:1")],
        ] {
            assert!(authorize(&none, &request(headers, true), "act").is_ok(), "{headers:?}");
        }
    }
}
