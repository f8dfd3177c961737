//! The model that a request names: in its path, its body or the header `x-sconce-model`.
//!
//! A body is scanned at depth one. Values of other fields are checked but not built, escaped keys are unescaped, and a
//! duplicate `model` is rejected, as a worker does when it parses the body.

use axum::http::HeaderMap;
use sconce_http::path_name;
use sconce_http::refusal::{Kind, Refusal};
use serde::Deserialize;

use super::routes::BodyName;

/// Path prefix of `/models/NAME/…`.
pub(super) const PREFIX: &str = "/models/";

/// A body of most APIs.
#[derive(Deserialize)]
struct Named {
    model: Option<String>,
}

/// A body of Ollama's `/api/show`.
#[derive(Deserialize)]
struct NamedTwice {
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
}

/// The model that a body names. A body that is not a JSON object is rejected.
pub fn in_body(body: &[u8], field: BodyName) -> Result<Option<String>, Refusal> {
    let named = match field {
        BodyName::None => return Ok(None),
        // An array would be read as the fields of an object in order.
        _ if body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') => {
            return Err(Refusal::new(Kind::Validation, "invalid body: expected an object, not an array"));
        }
        BodyName::Model => serde_json::from_slice::<Named>(body).map(|named| named.model),
        BodyName::Ollama => serde_json::from_slice::<Named>(body).map(|named| non_empty(named.model)),
        BodyName::OllamaShow => {
            serde_json::from_slice::<NamedTwice>(body).map(|named| non_empty(named.model.or(named.name)))
        }
    };
    named.map_err(|error| {
        let kind = if error.is_data() { Kind::Validation } else { Kind::Syntax };
        // The error may quote the body.
        let message: String = error.to_string().chars().take(300).collect();
        Refusal::new(kind, format!("invalid body: {message}"))
    })
}

fn non_empty(name: Option<String>) -> Option<String> {
    name.filter(|name| !name.is_empty())
}

/// The model that `x-sconce-model` names.
pub(super) fn in_header(headers: &HeaderMap) -> Option<String> {
    Some(headers.get("x-sconce-model")?.to_str().ok()?.trim().to_owned())
}

/// Splits a path `/models/NAME/REST` at the longest of `names` that it begins with. The name may be percent-encoded.
pub(super) fn in_path<'a, 'n>(
    path: &'a str,
    names: impl Iterator<Item = &'n str>,
) -> Option<(&'n str, &'a str)> {
    let path = path.strip_prefix(PREFIX)?;
    let matching = names.filter_map(|name| Some((name, path_name::after(path, name)?)));
    matching
        .min_by_key(|(_, rest)| rest.len())
        .map(|(name, rest)| (name, if rest.is_empty() { "/" } else { rest }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(body: &str) -> Result<Option<String>, Kind> {
        in_body(body.as_bytes(), BodyName::Model).map_err(|refusal| refusal.kind)
    }

    #[test]
    fn the_model_is_a_field_at_depth_one() {
        for (body, model) in [
            (r#"{"model": "a", "input": "b"}"#, Some("a")),
            (r#"{"input": {"model": "b"}, "model": "a"}"#, Some("a")),
            (r#"{"input": ["\"model\": \"b\""], "mo\u0064el": "\u0061"}"#, Some("a")),
            (r#" {"input": {"model": "b"}} "#, None),
            (r#"{"model": null}"#, None),
            (r#"{"Model": "b"}"#, None),
            (r#"{"model": ""}"#, Some("")),
        ] {
            assert_eq!(named(body), Ok(model.map(str::to_owned)), "{body}");
        }
    }

    #[test]
    fn bodies_that_a_worker_rejects_are_rejected() {
        for body in [
            r#"{"model": "a", "model": "a"}"#,
            r#"{"model": "a", "mod\u0065l": null}"#,
            r#"{"model": 1}"#,
            r#"{"model": {"name": "a"}}"#,
            r#"["a"]"#,
            r#"  ["a"]"#,
            r#""a""#,
        ] {
            assert_eq!(named(body), Err(Kind::Validation), "{body}");
        }
        for body in ["", "{", r#"{"model": "a"} b"#, r#"{"model": "a",}"#, r#"{"model": "a", "b": 01}"#] {
            assert_eq!(named(body), Err(Kind::Syntax), "{body}");
        }
        assert!(in_body(b"{\"model\": \"\xff\"}", BodyName::Model).is_err());
        assert_eq!(in_body(b"no JSON", BodyName::None), Ok(None));
    }

    #[test]
    fn ollama_has_an_older_name_and_empty_names() {
        let show = |body: &str| in_body(body.as_bytes(), BodyName::OllamaShow).expect("a body");
        assert_eq!(show(r#"{"name": "a"}"#).as_deref(), Some("a"));
        assert_eq!(show(r#"{"name": "a", "model": "b"}"#).as_deref(), Some("b"));
        assert_eq!(show(r#"{"model": ""}"#), None);
        let ollama = |body: &str| in_body(body.as_bytes(), BodyName::Ollama).expect("a body");
        assert_eq!(ollama(r#"{"model": "", "name": 5}"#), None);
    }

    #[test]
    fn the_longest_name_of_a_path_wins() {
        let split = |path| in_path(path, ["org/name", "org", "a b"].into_iter());
        assert_eq!(split("/models/org/name/v1/embeddings"), Some(("org/name", "/v1/embeddings")));
        assert_eq!(split("/models/org%2Fname/embed"), Some(("org/name", "/embed")));
        assert_eq!(split("/models/org/embed"), Some(("org", "/embed")));
        assert_eq!(split("/models/a%20b"), Some(("a b", "/")));
        for path in ["/models/organ/embed", "/models/", "/v1/embeddings", "/models/%"] {
            assert_eq!(split(path), None, "{path}");
        }
    }
}
