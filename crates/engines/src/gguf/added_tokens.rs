//! Tokens of a vocabulary that are found in a text before it is split: control tokens, and those that users defined.

use super::metadata::{Metadata, NumberArray, StringArray, Value};

/// Token types in `tokenizer.ggml.token_type`.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// A token that is found in a text before it is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddedToken<'a> {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub text: &'a str,
    /// Whether it is a control token. The unknown token is one.
    pub is_control: bool,
}

/// The added tokens of a file.
pub fn added_tokens(metadata: &Metadata) -> impl Iterator<Item = AddedToken<'_>> {
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_strings);
    let types = metadata.get("tokenizer.ggml.token_type").and_then(Value::as_numbers);
    let tokens = tokens.into_iter().flat_map(StringArray::iter);
    let types = types.into_iter().flat_map(NumberArray::iter).map(|kind| kind.as_u64().unwrap_or(0));
    let added =
        (0..).zip(tokens).zip(types).filter(|(_, kind)| [UNKNOWN, CONTROL, USER_DEFINED].contains(kind));
    added.map(|((id, text), kind)| AddedToken { id, text, is_control: kind != USER_DEFINED })
}
