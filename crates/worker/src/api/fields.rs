//! A body as the fields that a route reads, and those that it does not.

use serde::de::DeserializeOwned;

use sconce_http::refusal::{Kind, Refusal};

/// Fields of some client or server that change numbers. Where a route does not read one it can't be passed over.
const MEANT: [&str; 27] = [
    "activation",
    "dim",
    "dimension",
    "dimensions",
    "dtype",
    "embedding_type",
    "embedding_types",
    "encoding_format",
    "input_type",
    "instruction",
    "late_chunking",
    "max_chunks_per_doc",
    "max_tokens_per_doc",
    "max_tokens_per_query",
    "normalize",
    "normalized",
    "output_dimension",
    "output_dtype",
    "pooling",
    "prompt",
    "prompt_name",
    "rank_fields",
    "raw_scores",
    "task",
    "truncate_dim",
    "truncate_prompt_tokens",
    "truncation_direction",
];

/// The most unread fields that are listed.
const LISTED: usize = 16;

/// The fields that `T` has, and the names of the others.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], strict: bool) -> Result<(T, Vec<String>), Refusal> {
    let (mut unread, mut meant) = (Vec::new(), None);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_ignored::deserialize(&mut reader, |path| {
        let path = path.to_string();
        let name = path.rsplit('.').next().unwrap_or_default();
        if meant.is_none() && MEANT.contains(&name) {
            meant = Some(name.to_owned());
        }
        if unread.len() < LISTED {
            unread.push(path.chars().filter(char::is_ascii_graphic).take(64).collect::<String>());
        }
    });
    let value = parsed.and_then(|value| reader.end().map(|()| value)).map_err(|error| refusal(&error))?;
    if let Some(name) = meant {
        let message = format!("`{name}` would change the numbers and is not known on this route");
        return Err(Refusal::new(Kind::Validation, message));
    }
    if strict && let Some(name) = unread.first() {
        return Err(Refusal::new(Kind::Validation, format!("no such field on this route: `{name}`")));
    }
    Ok((value, unread))
}

fn refusal(error: &serde_json::Error) -> Refusal {
    let kind = if error.is_data() { Kind::Validation } else { Kind::Syntax };
    // What stands in the body is not repeated at length.
    let words: String = error.to_string().chars().take(300).collect();
    Refusal::new(kind, format!("the body can't be read: {words}"))
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
        parsed.map(|(body, unread)| (body.input, unread)).map_err(|refusal| refusal.kind)
    }

    #[test]
    fn what_nobody_reads_is_listed_and_what_would_change_numbers_refused() {
        let user = r#"{"input": "a", "user": {"deep": [1]}}"#;
        assert_eq!(parsed(user, false), Ok(("a".to_owned(), vec!["user".to_owned()])));
        assert_eq!(parsed(user, true), Err(Kind::Validation));
        assert_eq!(parsed(r#"{"input": "a", "dimension": 3}"#, false), Err(Kind::Validation));
        let behind = r#""other": 1, "#.repeat(LISTED);
        let last = format!("{{{behind}\"input\": \"a\", \"dimension\": 3}}");
        assert_eq!(parsed(&last, false), Err(Kind::Validation), "however many others there are");
    }

    #[test]
    fn what_is_no_json_is_told_from_what_is_the_wrong_json() {
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
