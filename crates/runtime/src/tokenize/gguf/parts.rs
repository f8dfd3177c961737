//! Parts that all BPE and Unigram tokenizers of GGUF files have: added tokens, and begin and end tokens.

use sconce_engines::gguf::added_tokens::added_tokens;
use sconce_engines::gguf::metadata::{Metadata, StringArray, Value};
use serde::de::DeserializeOwned;
use serde_json::{Map, json};
use tokenizers::models::ModelWrapper;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer,
};

use crate::tokenize::error::TokenizerError;

/// The parts of a tokenizer around its model, in the notation of `tokenizer.json`.
pub(super) struct Parts {
    pub(super) normalizer: serde_json::Value,
    pub(super) pre_tokenizer: serde_json::Value,
    pub(super) decoder: serde_json::Value,
    /// Whether the begin token is added if no key decides it.
    pub(super) adds_begin: bool,
    /// Tokens that are found in a text before it is split.
    pub(super) added: Vec<AddedToken>,
}

/// The value of a key of the tokenizer.
pub(super) fn value<'a>(metadata: &'a Metadata, name: &str) -> Option<&'a Value> {
    metadata.get(&format!("tokenizer.ggml.{name}"))
}

/// The added tokens of a file. They are found in the text before it is normalized.
pub(super) fn added(metadata: &Metadata) -> Vec<AddedToken> {
    let token = |token: sconce_engines::gguf::added_tokens::AddedToken<'_>| {
        AddedToken::from(token.text, token.is_control).normalized(false)
    };
    added_tokens(metadata).map(token).collect()
}

/// A tokenizer of this model and these parts.
pub(super) fn assemble(
    model: impl Into<ModelWrapper>,
    parts: Parts,
    metadata: &Metadata,
    tokens: &StringArray,
) -> Result<Tokenizer, TokenizerError> {
    let mut tokenizer = Tokenizer::new(model);
    let normalizer: Option<NormalizerWrapper> = part(parts.normalizer)?;
    let pre_tokenizer: Option<PreTokenizerWrapper> = part(parts.pre_tokenizer)?;
    let decoder: Option<DecoderWrapper> = part(parts.decoder)?;
    let template = template(metadata, |id| tokens.get(id), parts.adds_begin);
    let post_processor: Option<PostProcessorWrapper> = part(template)?;
    tokenizer.with_normalizer(normalizer).map_err(TokenizerError::Tokenizer)?;
    tokenizer.with_pre_tokenizer(pre_tokenizer).with_decoder(decoder).with_post_processor(post_processor);
    tokenizer.add_tokens(parts.added).map_err(TokenizerError::Tokenizer)?;
    Ok(tokenizer)
}

fn part<T: DeserializeOwned>(json: serde_json::Value) -> Result<Option<T>, TokenizerError> {
    serde_json::from_value(json).map_err(|error| TokenizerError::Tokenizer(error.into()))
}

/// The post-processor that puts the begin token before a text, and the end token after it, as the metadata demands.
fn template<'a>(
    metadata: &Metadata,
    tokens: impl Fn(usize) -> Option<&'a str>,
    adds_begin: bool,
) -> serde_json::Value {
    let token = |name: &str, default: bool| {
        let demanded = value(metadata, &format!("add_{name}_token"));
        let id = value(metadata, &format!("{name}_token_id")).and_then(Value::as_u64);
        let id = id.and_then(|id| usize::try_from(id).ok())?;
        let demanded = demanded.and_then(Value::as_bool).unwrap_or(default);
        Some((id, tokens(id).filter(|_| demanded)?))
    };
    let (begin, end) = (token("bos", adds_begin), token("eos", false));
    if begin.is_none() && end.is_none() {
        return serde_json::Value::Null;
    }
    let special =
        |(_, token): (usize, &str), kind: u32| json!({ "SpecialToken": { "id": token, "type_id": kind } });
    let text = |name: &str, kind: u32| {
        let begin = begin.map(|token| special(token, kind));
        let end = end.map(|token| special(token, kind));
        let text = json!({ "Sequence": { "id": name, "type_id": kind } });
        begin.into_iter().chain([text]).chain(end).collect::<Vec<_>>()
    };
    let named = [begin, end]
        .into_iter()
        .flatten()
        .map(|(id, token)| (token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] })));
    let pair = [text("A", 0), text("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": pair,
        "special_tokens": named.collect::<Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_and_end_tokens_are_those_that_the_metadata_demand() {
        use Value::{Bool, Unsigned};
        let tokens = |id: usize| ["a", "<s>", "</s>"].get(id).copied();
        let added = |entries: &[(&str, Value)], adds_begin: bool| {
            let key = |name: &str| format!("tokenizer.ggml.{name}");
            let metadata = entries.iter().map(|(name, value)| (key(name), value.clone())).collect();
            let template = template(&metadata, tokens, adds_begin);
            let single = template["single"].as_array().cloned().unwrap_or_default();
            single
                .iter()
                .map(|part| part["SpecialToken"]["id"].as_str().unwrap_or("text").to_owned())
                .collect::<Vec<String>>()
        };
        let ids = [("bos_token_id", Unsigned(1)), ("eos_token_id", Unsigned(2))];
        let with = |more: &[(&'static str, Value)]| [&ids[..], more].concat();
        let none: Vec<String> = Vec::new();
        assert_eq!(added(&ids, false), none);
        assert_eq!(added(&ids, true), ["<s>", "text"]);
        assert_eq!(added(&with(&[("add_bos_token", Bool(false))]), true), none);
        assert_eq!(added(&with(&[("add_eos_token", Bool(true))]), true), ["<s>", "text", "</s>"]);
        assert_eq!(added(&with(&[("add_eos_token", Bool(true))]), false), ["text", "</s>"]);
    }
}
