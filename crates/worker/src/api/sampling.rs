//! Fields of OpenAI's completion routes that become options of a generation, with vLLM's additions.

use std::collections::BTreeMap;

use sconce::{GenerateOptions, StructuredOutput};
use sconce_http::refusal::Refusal;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::operations::context::invalid;

/// Defines the body of a completion route: its own fields, and those of every completion.
macro_rules! completion_body {
    ($(#[$meta:meta])* struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(serde::Deserialize, utoipa::ToSchema)]
        pub(crate) struct $name {
            $($(#[$field_meta])* $field: $type,)*
            model: Option<String>,
            max_tokens: Option<usize>,
            /// Minimum number of tokens before the end.
            min_tokens: Option<usize>,
            temperature: Option<f32>,
            top_p: Option<f32>,
            top_k: Option<i64>,
            min_p: Option<f32>,
            repetition_penalty: Option<f32>,
            frequency_penalty: Option<f32>,
            presence_penalty: Option<f32>,
            #[schema(value_type = Option<Object>)]
            logit_bias: Option<std::collections::BTreeMap<String, f32>>,
            seed: Option<i64>,
            #[schema(value_type = Option<Object>)]
            stop: Option<crate::api::sampling::Stop>,
            stop_token_ids: Option<Vec<u32>>,
            n: Option<usize>,
            #[serde(default, deserialize_with = "crate::api::sampling::nullable")]
            ignore_eos: bool,
            #[serde(default, deserialize_with = "crate::api::sampling::nullable")]
            stream: bool,
            stream_options: Option<crate::api::sampling::StreamOptions>,
            response_format: Option<crate::api::sampling::ResponseFormat>,
            structured_outputs: Option<crate::api::sampling::StructuredOutputs>,
        }

        impl $name {
            /// The options of the generation, without log probabilities.
            fn options(&mut self) -> Result<sconce::GenerateOptions, sconce_http::refusal::Refusal> {
                crate::api::sampling::options(crate::api::sampling::Sampling {
                    max_tokens: self.max_tokens,
                    min_tokens: self.min_tokens,
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    repetition_penalty: self.repetition_penalty,
                    frequency_penalty: self.frequency_penalty,
                    presence_penalty: self.presence_penalty,
                    logit_bias: self.logit_bias.take().unwrap_or_default(),
                    seed: self.seed,
                    stop: self.stop.take(),
                    stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                    n: self.n,
                    ignore_eos: self.ignore_eos,
                    response_format: self.response_format.take(),
                    structured_outputs: self.structured_outputs.take(),
                })
            }

            /// Whether the last event has the usage.
            fn includes_usage(&self) -> bool {
                self.stream_options.as_ref().is_some_and(|options| options.include_usage)
            }
        }
    };
}
pub(crate) use completion_body;

/// The seed of a request. As in vLLM and Ollama, -1 is a random one.
pub(crate) fn seed(seed: Option<i64>) -> Option<u64> {
    seed.filter(|seed| *seed != -1).map(i64::cast_unsigned)
}

/// A value that may be `null`, which is the default.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// One stop string or several.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Stop {
    One(String),
    Many(Vec<String>),
}

impl Stop {
    pub(crate) fn strings(self) -> Vec<String> {
        match self {
            Stop::One(one) => vec![one],
            Stop::Many(many) => many,
        }
    }
}

/// Options of a stream.
#[derive(Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// Whether the last event has the usage.
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) include_usage: bool,
}

/// What the output must be.
#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: NamedSchema },
}

/// A JSON schema with a name.
#[derive(Deserialize, ToSchema)]
pub(crate) struct NamedSchema {
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
    #[expect(dead_code, reason = "clients send it; the output is the same without it")]
    name: Option<String>,
    #[expect(dead_code, reason = "every schema is enforced")]
    strict: Option<bool>,
    #[expect(dead_code, reason = "clients send it; the output is the same without it")]
    description: Option<String>,
}

/// vLLM's structured outputs: one of the fields.
#[derive(Deserialize, ToSchema)]
pub(crate) struct StructuredOutputs {
    #[schema(value_type = Option<Object>)]
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
}

/// The fields of every completion.
pub(crate) struct Sampling {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) min_tokens: Option<usize>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) logit_bias: BTreeMap<String, f32>,
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<Stop>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) n: Option<usize>,
    pub(crate) ignore_eos: bool,
    pub(crate) response_format: Option<ResponseFormat>,
    pub(crate) structured_outputs: Option<StructuredOutputs>,
}

/// The options of a generation.
pub(crate) fn options(sampling: Sampling) -> Result<GenerateOptions, Refusal> {
    let default = GenerateOptions::default();
    let mut logit_bias = BTreeMap::new();
    for (token, bias) in sampling.logit_bias {
        let id = token.parse().map_err(|_| invalid(format!("`logit_bias` has no token id: `{token}`")))?;
        logit_bias.insert(id, bias);
    }
    // vLLM and transformers write "all tokens" as -1 or 0.
    let top_k = sampling.top_k.map_or(default.top_k, |top_k| usize::try_from(top_k).unwrap_or(0));
    let structured = structured(sampling.response_format, sampling.structured_outputs)?;
    let options = GenerateOptions {
        max_tokens: sampling.max_tokens,
        min_tokens: sampling.min_tokens.unwrap_or(default.min_tokens),
        temperature: sampling.temperature.unwrap_or(default.temperature),
        top_k,
        top_p: sampling.top_p.unwrap_or(default.top_p),
        min_p: sampling.min_p.unwrap_or(default.min_p),
        repetition_penalty: sampling.repetition_penalty.unwrap_or(default.repetition_penalty),
        frequency_penalty: sampling.frequency_penalty.unwrap_or(default.frequency_penalty),
        presence_penalty: sampling.presence_penalty.unwrap_or(default.presence_penalty),
        logit_bias,
        seed: seed(sampling.seed),
        stop: sampling.stop.map(Stop::strings).unwrap_or_default(),
        stop_tokens: sampling.stop_token_ids,
        n: sampling.n.unwrap_or(1),
        ignore_eos: sampling.ignore_eos,
        structured_output: structured,
        ..default
    };
    options.validate().map_err(|error| invalid(error.to_string()))?;
    Ok(options)
}

fn structured(
    format: Option<ResponseFormat>,
    outputs: Option<StructuredOutputs>,
) -> Result<Option<StructuredOutput>, Refusal> {
    let mut all = Vec::new();
    match format {
        None | Some(ResponseFormat::Text) => {}
        Some(ResponseFormat::JsonObject) => all.push(StructuredOutput::JsonObject),
        Some(ResponseFormat::JsonSchema { json_schema }) => {
            let schema = json_schema.schema.ok_or_else(|| invalid("`json_schema` has no `schema`"))?;
            all.push(StructuredOutput::JsonSchema(schema));
        }
    }
    if let Some(StructuredOutputs { json, regex, choice, grammar, json_object }) = outputs {
        all.extend(json.map(StructuredOutput::JsonSchema));
        all.extend(regex.map(StructuredOutput::Regex));
        all.extend(choice.map(|choices| StructuredOutput::Grammar(alternatives(&choices))));
        all.extend(grammar.map(StructuredOutput::Grammar));
        all.extend(json_object.filter(|is_set| *is_set).map(|_| StructuredOutput::JsonObject));
    }
    if all.len() > 1 {
        return Err(invalid("`response_format` and `structured_outputs` name more than one structure"));
    }
    Ok(all.pop())
}

/// A grammar of one of the texts.
fn alternatives(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
    format!("start: {}", texts.join(" | "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    completion_body! {
        struct Body {}
    }

    fn parsed(body: Value) -> Result<GenerateOptions, String> {
        let mut body: Body = serde_json::from_value(body).map_err(|error| error.to_string())?;
        let _ = (body.includes_usage(), body.stream, &body.model);
        body.options().map_err(|refusal| refusal.message)
    }

    #[test]
    fn fields_become_options() {
        assert_eq!(parsed(json!({})), Ok(GenerateOptions::default()));
        let body = json!({
            "max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_k": -1, "top_p": 0.9, "min_p": 0.1,
            "repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": -0.5, "logit_bias": {"7": -3},
            "seed": -2, "stream": null, "stop": "a", "stop_token_ids": [3], "n": 2, "ignore_eos": true,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "string"}}},
        });
        let expected = GenerateOptions {
            max_tokens: Some(9),
            min_tokens: 2,
            temperature: 0.5,
            top_p: 0.9,
            min_p: 0.1,
            repetition_penalty: 1.5,
            frequency_penalty: 0.5,
            presence_penalty: -0.5,
            logit_bias: BTreeMap::from([(7, -3.0)]),
            seed: Some(u64::MAX - 1),
            stop: vec!["a".to_owned()],
            stop_tokens: vec![3],
            n: 2,
            ignore_eos: true,
            structured_output: Some(StructuredOutput::JsonSchema(json!({"type": "string"}))),
            ..GenerateOptions::default()
        };
        assert_eq!(parsed(body), Ok(expected));
    }

    #[test]
    fn one_structure_at_a_time() {
        let structure = |body| parsed(body).map(|options| options.structured_output);
        let object = Ok(Some(StructuredOutput::JsonObject));
        assert_eq!(structure(json!({"response_format": {"type": "json_object"}})), object);
        assert_eq!(structure(json!({"response_format": {"type": "text"}})), Ok(None));
        let choice = structure(json!({"structured_outputs": {"choice": ["a\"b", "c"]}}));
        assert_eq!(choice, Ok(Some(StructuredOutput::Grammar("start: \"a\\\"b\" | \"c\"".to_owned()))));
        for body in [
            json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "no schema"}}}),
            json!({"response_format": {"type": "other"}}),
            json!({"logit_bias": {"a": 1}}),
            json!({"temperature": -1}),
            json!({"max_tokens": 0}),
            json!({"n": 0}),
        ] {
            assert!(parsed(body.clone()).is_err(), "{body}");
        }
    }
}
