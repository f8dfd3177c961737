//! Fields of Ollama's requests that become options of a generation.

use sconce::{ChatOptions, GenerateOptions, StructuredOutput};
use sconce_http::refusal::Refusal;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::sampling::{Stop, seed};
use crate::errors::refusal;
use crate::operations::context::invalid;
use crate::state::slot::LoadedModel;

/// Defaults of Ollama's API. Its repetition penalty is off by default here.
const TEMPERATURE: f32 = 0.8;
const TOP_K: usize = 40;
const TOP_P: f32 = 0.9;

/// Options of a generation.
#[derive(Default, Deserialize, ToSchema)]
pub(crate) struct Options {
    /// Maximum number of tokens. Negative: no maximum.
    num_predict: Option<i64>,
    /// Size of the context. It is that of the model; larger ones are rejected.
    num_ctx: Option<usize>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<i64>,
    #[schema(value_type = Option<Object>)]
    stop: Option<Stop>,
    /// Only 0, which is off.
    mirostat: Option<i64>,
    /// Only 1, which is off.
    typical_p: Option<f32>,
}

impl Options {
    /// The options of a generation with a context of this many tokens.
    fn generation(self, context: usize) -> Result<GenerateOptions, Refusal> {
        if let Some(asked) = self.num_ctx.filter(|&asked| asked > context) {
            return Err(invalid(format!("`num_ctx` is {asked}, and the context of the model {context}")));
        }
        if self.mirostat.is_some_and(|mode| mode != 0) {
            return Err(invalid("`mirostat` is not supported"));
        }
        if self.typical_p.is_some_and(|share| share < 1.0) {
            return Err(invalid("`typical_p` is not supported"));
        }
        let default = GenerateOptions::default();
        let options = GenerateOptions {
            max_tokens: self.num_predict.and_then(|tokens| usize::try_from(tokens).ok()),
            temperature: self.temperature.unwrap_or(TEMPERATURE),
            top_k: self.top_k.map_or(TOP_K, |top_k| usize::try_from(top_k).unwrap_or(0)),
            top_p: self.top_p.unwrap_or(TOP_P),
            min_p: self.min_p.unwrap_or(default.min_p),
            repetition_penalty: self.repeat_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            seed: seed(self.seed),
            stop: self.stop.map(Stop::strings).unwrap_or_default(),
            ..default
        };
        options.validate().map_err(|error| invalid(error.to_string()))?;
        Ok(options)
    }
}

/// The options of a generation, with the format of the output.
pub(super) fn generation(
    options: Option<Options>,
    format: Option<Value>,
    loaded: &LoadedModel,
) -> Result<GenerateOptions, Refusal> {
    let context = loaded.model.card().max_length.value;
    let mut options = options.unwrap_or_default().generation(context)?;
    options.structured_output = structured(format)?;
    Ok(options)
}

fn structured(format: Option<Value>) -> Result<Option<StructuredOutput>, Refusal> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) if name.is_empty() => Ok(None),
        Some(Value::String(name)) if name == "json" => Ok(Some(StructuredOutput::JsonObject)),
        Some(schema @ Value::Object(_)) => Ok(Some(StructuredOutput::JsonSchema(schema))),
        Some(_) => Err(invalid("`format` must be `json` or a JSON schema")),
    }
}

/// Whether the model reasons before it answers.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Think {
    Switch(bool),
    /// `low`, `medium` or `high`.
    Level(String),
}

/// The options of a conversation.
pub(super) fn chat(think: Option<Think>, loaded: &LoadedModel) -> Result<ChatOptions, Refusal> {
    let mut options = ChatOptions::default();
    let Some(think) = think else { return Ok(options) };
    options.variables = variables(think);
    let thinks = options.variables["enable_thinking"] == true;
    if thinks && !loaded.model.chat_template(&options).map_err(refusal)?.contains("think") {
        return Err(invalid(format!("`{}` does not support thinking", loaded.name)));
    }
    Ok(options)
}

/// The variables of chat templates.
fn variables(think: Think) -> Map<String, Value> {
    let (enabled, level) = match think {
        Think::Switch(enabled) => (enabled, None),
        Think::Level(level) => (true, Some(level)),
    };
    let mut variables = Map::from_iter([("enable_thinking".to_owned(), enabled.into())]);
    variables.extend(level.map(|level| ("reasoning_effort".to_owned(), level.into())));
    variables
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(options: Value) -> Result<GenerateOptions, String> {
        let options: Options = serde_json::from_value(options).map_err(|error| error.to_string())?;
        options.generation(100).map_err(|refusal| refusal.message)
    }

    #[test]
    fn options_have_the_defaults_of_ollama() {
        let default = GenerateOptions {
            temperature: TEMPERATURE,
            top_k: TOP_K,
            top_p: TOP_P,
            ..GenerateOptions::default()
        };
        assert_eq!(parsed(json!({})), Ok(default.clone()));
        let unlimited = json!({"num_predict": -1, "num_ctx": 100, "mirostat": 0, "typical_p": 1.0});
        assert_eq!(parsed(unlimited), Ok(default));
        let set = json!({
            "num_predict": 3, "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0.5, "repeat_penalty": 2,
            "presence_penalty": 1, "frequency_penalty": -1, "seed": 7, "stop": ["a", "b"],
        });
        let expected = GenerateOptions {
            max_tokens: Some(3),
            temperature: 0.0,
            min_p: 0.5,
            repetition_penalty: 2.0,
            presence_penalty: 1.0,
            frequency_penalty: -1.0,
            seed: Some(7),
            stop: vec!["a".to_owned(), "b".to_owned()],
            ..GenerateOptions::default()
        };
        assert_eq!(parsed(set), Ok(expected));
        for wrong in [
            json!({"num_ctx": 101}),
            json!({"mirostat": 1}),
            json!({"typical_p": 0.5}),
            json!({"num_predict": 0}),
        ] {
            assert!(parsed(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_format_is_json_or_a_schema() {
        let schema = json!({"type": "object"});
        let structured = |format| structured(format).map_err(|refusal| refusal.message);
        assert_eq!(structured(None), Ok(None));
        assert_eq!(structured(Some(json!(""))), Ok(None));
        assert_eq!(structured(Some(json!("json"))), Ok(Some(StructuredOutput::JsonObject)));
        assert_eq!(structured(Some(schema.clone())), Ok(Some(StructuredOutput::JsonSchema(schema))));
        assert!(structured(Some(json!("yaml"))).is_err() && structured(Some(json!(1))).is_err());
    }

    #[test]
    fn thinking_is_a_variable_of_the_template() {
        let of = |think| variables(serde_json::from_value(think).expect("it is valid"));
        assert_eq!(Value::Object(of(json!(false))), json!({"enable_thinking": false}));
        let high = json!({"enable_thinking": true, "reasoning_effort": "high"});
        assert_eq!(Value::Object(of(json!("high"))), high);
    }
}
