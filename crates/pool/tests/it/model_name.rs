//! The model that a gateway finds in a body equals the one that a worker parses.

use sconce_pool::gateway::{BodyName, model_name};
use sconce_testkit::draws::{Draws, fuzz_inputs};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A body as a worker parses it: known fields, and others that are ignored.
#[derive(Deserialize)]
struct Body {
    model: Option<String>,
}

/// The model as a worker parses it. A body that is an array is refused by the gateway.
fn parsed<T: DeserializeOwned + Named>(bytes: &[u8]) -> Result<Option<String>, ()> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let body: T = serde_ignored::deserialize(&mut reader, |_| {}).map_err(drop)?;
    reader.end().map_err(drop)?;
    if bytes.trim_ascii_start().starts_with(b"[") { Err(()) } else { Ok(body.model()) }
}

/// A body that may name a model.
trait Named {
    fn model(self) -> Option<String>;
}

impl Named for Body {
    fn model(self) -> Option<String> {
        self.model
    }
}

impl Named for Embeddings {
    fn model(self) -> Option<String> {
        self.model
    }
}

/// A body with more fields, which a worker may refuse where the gateway does not look.
#[derive(Deserialize)]
struct Embeddings {
    model: Option<String>,
    #[serde(rename = "input")]
    _input: Option<serde_json::Value>,
    #[serde(rename = "dimensions")]
    _dimensions: Option<usize>,
    #[serde(rename = "truncate")]
    _truncate: Option<bool>,
}

const BODIES: [&str; 8] = [
    r#"{"model": "minilm", "input": ["a text", "another \"model\": \"x\""], "dimensions": 3}"#,
    r#"{"input": {"model": "inner"}, "mod\u0065l": "\u006dinilm", "truncate": true}"#,
    r#"{"model":null,"input":[1,2.5e-3,-0,[],{}],"user":"\ud83d\ude00","model ":"b"}"#,
    r#"{"messages": [{"role": "user", "content": "model"}], "model": "org/name", "stream": false}"#,
    r#"  {"a": "\\", "model": "\"", "b": [[["model"]]], "Model": "no"}  "#,
    r#"{"model": "a", "model": "b"}"#,
    r#"{"x": 1e400, "y": -1.5E+10, "z": [true, false, null], "model": "é\n\u00e9"}"#,
    r#"["minilm"]"#,
];

/// Texts that are likely to matter.
const PIECES: [&str; 16] = [
    "\"model\"",
    "\"mod\\u0065l\"",
    ":",
    ",",
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    "null",
    "\"a\"",
    "\\u0022",
    "\\ud800",
    "\u{1}",
    " ",
];

#[test]
fn fuzzed_bodies_name_the_model_that_a_worker_parses() {
    let (mut draws, count) = (Draws(16), fuzz_inputs(100_000));
    let (mut named, mut refused) = (0, 0);
    for number in 0..count {
        let mut body = BODIES[draws.below(BODIES.len())].as_bytes().to_vec();
        if number >= BODIES.len() {
            for _ in 0..draws.below(2) {
                let (at, piece) = (draws.below(body.len() + 1), PIECES[draws.below(PIECES.len())]);
                body.splice(at..at, piece.bytes());
            }
            if draws.chance(35) {
                draws.mutate(&mut body, BODIES[number % BODIES.len()].as_bytes());
            }
        }
        let found = model_name::in_body(&body, BodyName::Model).map_err(drop);
        assert_eq!(found, parsed::<Body>(&body), "{}", String::from_utf8_lossy(&body));
        if let Ok(accepted) = parsed::<Embeddings>(&body) {
            assert_eq!(found, Ok(accepted), "{}", String::from_utf8_lossy(&body));
        }
        match found {
            Ok(Some(_)) => named += 1,
            Ok(None) => {}
            Err(()) => refused += 1,
        }
    }
    println!("{count} bodies: {named} name a model, {refused} are refused");
    assert!(named * 10 > count && refused * 10 > count, "{named} {refused} of {count}");
}
