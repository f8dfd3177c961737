//! Parses JSON bodies and reports unknown fields.

use serde::de::DeserializeOwned;
use serde_json::Value;

use sconce_http::refusal::{Kind, Refusal};

/// Fields that change the result in some API. A route rejects those that it does not support.
const RESULT_FIELDS: [&str; 50] = [
    "activation",
    "audio",
    "bad_words",
    "best_of",
    "dim",
    "dimension",
    "dimensions",
    "dtype",
    "echo",
    "embedding_type",
    "embedding_types",
    "encoding_format",
    "function_call",
    "functions",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "input_type",
    "instruction",
    "late_chunking",
    "length_penalty",
    "logits_processors",
    "max_chunks_per_doc",
    "max_tokens_per_doc",
    "max_tokens_per_query",
    "mcp_servers",
    "mirostat",
    "modalities",
    "normalize",
    "normalized",
    "output_dimension",
    "output_dtype",
    "pooling",
    "prediction",
    "prompt",
    "prompt_logprobs",
    "prompt_name",
    "rank_fields",
    "raw_scores",
    "reasoning_effort",
    "suffix",
    "task",
    "thinking",
    "truncate_dim",
    "truncate_prompt_tokens",
    "truncation_direction",
    "typical_p",
    "use_beam_search",
    "web_search_options",
];

/// Values with which a field changes nothing, besides null.
const WITHOUT_EFFECT: [(&str, &str); 3] = [("best_of", "1"), ("echo", "false"), ("use_beam_search", "false")];

/// Maximum number of unknown fields that are reported.
const MAX_LISTED: usize = 16;

/// Parses a body and returns it with the names of unknown fields. Unsupported fields that would change the result are
/// rejected; with `strict`, all unknown fields are.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], strict: bool) -> Result<(T, Vec<String>), Refusal> {
    let (mut ignored, mut unsupported) = (Vec::new(), Vec::new());
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_ignored::deserialize(&mut reader, |path| {
        let path = path.to_string();
        let name = path.rsplit('.').next().unwrap_or_default();
        if RESULT_FIELDS.contains(&name) {
            unsupported.push(path.clone());
        }
        if ignored.len() < MAX_LISTED {
            ignored.push(path.chars().filter(char::is_ascii_graphic).take(64).collect::<String>());
        }
    });
    let value = parsed.and_then(|value| reader.end().map(|()| value)).map_err(|error| refusal(&error))?;
    if let Some(name) = with_effect(bytes, &unsupported) {
        let message = format!("unsupported field that would change the result: `{name}`");
        return Err(Refusal::new(Kind::Validation, message));
    }
    if strict && let Some(name) = ignored.first() {
        return Err(Refusal::new(Kind::Validation, format!("unknown field: `{name}`")));
    }
    Ok((value, ignored))
}

/// The name of the first of these fields that has a value with an effect.
fn with_effect<'a>(bytes: &[u8], paths: &'a [String]) -> Option<&'a str> {
    if paths.is_empty() {
        return None;
    }
    let body: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let mut named = paths.iter().map(|path| (path, path.rsplit('.').next().unwrap_or_default()));
    let has_effect = |(path, name): &(&String, &str)| {
        let Some(value) = body.pointer(&format!("/{}", path.replace('.', "/"))) else { return true };
        let value = value.to_string();
        value != "null" && !WITHOUT_EFFECT.contains(&(name, &value))
    };
    named.find(has_effect).map(|(_, name)| name)
}

fn refusal(error: &serde_json::Error) -> Refusal {
    let kind = if error.is_data() { Kind::Validation } else { Kind::Syntax };
    // The error may quote the body.
    let message: String = error.to_string().chars().take(300).collect();
    Refusal::new(kind, format!("invalid body: {message}"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Body {
        input: String,
    }

    fn parsed(text: &str, strict: bool) -> Result<(String, Vec<String>), Kind> {
        let parsed = parse::<Body>(text.as_bytes(), strict);
        parsed.map(|(body, ignored)| (body.input, ignored)).map_err(|refusal| refusal.kind)
    }

    #[test]
    fn unknown_fields_are_listed_and_those_that_would_change_the_result_rejected() {
        let user = r#"{"input": "a", "user": {"deep": [1]}}"#;
        assert_eq!(parsed(user, false), Ok(("a".to_owned(), vec!["user".to_owned()])));
        assert_eq!(parsed(user, true), Err(Kind::Validation));
        assert_eq!(parsed(r#"{"input": "a", "dimension": 3}"#, false), Err(Kind::Validation));
        let behind = r#""other": 1, "#.repeat(MAX_LISTED);
        let last = format!("{{{behind}\"input\": \"a\", \"dimension\": 3}}");
        assert_eq!(parsed(&last, false), Err(Kind::Validation), "however many others there are");
    }

    #[test]
    fn unsupported_fields_without_effect_pass() {
        for field in
            ["\"suffix\": null", "\"echo\": false", "\"best_of\": 1", "\"dimensions\": null, \"echo\": false"]
        {
            let (_, ignored) =
                parsed(&format!("{{\"input\": \"a\", {field}}}"), false).expect("it changes nothing");
            assert!(!ignored.is_empty(), "{field}: it is still reported");
        }
        for field in [
            "\"suffix\": \"\"",
            "\"echo\": true",
            "\"best_of\": 2",
            "\"normalize\": false",
            "\"echo\": null, \"dim\": 3",
        ] {
            assert_eq!(
                parsed(&format!("{{\"input\": \"a\", {field}}}"), false),
                Err(Kind::Validation),
                "{field}"
            );
        }
    }

    #[test]
    fn invalid_json_is_distinguished_from_invalid_fields() {
        for text in ["", "{", r#"{"input": NaN}"#, r#"{"input": "a"} b"#, "{\"input\": \"\u{1}\"}"] {
            assert_eq!(parsed(text, false), Err(Kind::Syntax), "{text}");
        }
        for text in ["[]", "1", r#"{"input": 1}"#, "{}"] {
            assert_eq!(parsed(text, false), Err(Kind::Validation), "{text}");
        }
        let deep = format!("{{\"input\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parsed(&deep, false).is_err());
        assert!(parse::<Body>(b"{\"input\": \"\xff\"}", false).is_err());
    }
}
