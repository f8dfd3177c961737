//! OpenAI's route `/v1/responses`. Nothing is stored.

mod input;
mod writer;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use sconce::{ChatOptions, GenerateOptions, StructuredOutput, Task};
use sconce_http::refusal::{Dialect, Refusal};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::api::completion::{answer, random_id, unix_seconds};
use crate::api::handle::handle;
use crate::api::responses::writer::Writer;
use crate::operations::context::invalid;
use crate::operations::generate::{self, FinishedOutput, PromptInput};
use crate::state::app::App;

/// What is answered.
#[derive(Deserialize, ToSchema)]
pub(crate) struct ResponsesBody {
    model: Option<String>,
    /// A text, or a list of items: messages, function calls and their outputs.
    #[schema(value_type = Object)]
    input: Value,
    /// System prompt.
    instructions: Option<String>,
    max_output_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    /// Functions that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or a function.
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// Whether the answer may have several calls. Default: true.
    parallel_tool_calls: Option<bool>,
    text: Option<TextConfig>,
    reasoning: Option<Reasoning>,
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
    #[serde(default, deserialize_with = "crate::api::sampling::nullable")]
    stream: bool,
    /// Not used: nothing is stored.
    #[serde(rename = "store")]
    _store: Option<bool>,
    /// Not supported.
    previous_response_id: Option<String>,
    /// Not supported.
    #[schema(value_type = Option<Object>)]
    conversation: Option<Value>,
    /// Not supported.
    #[serde(default, deserialize_with = "crate::api::sampling::nullable")]
    background: bool,
    /// Only `disabled`.
    truncation: Option<String>,
    /// Only 0.
    top_logprobs: Option<usize>,
}

/// The form of the output text.
#[derive(Deserialize, ToSchema)]
pub(crate) struct TextConfig {
    #[schema(value_type = Option<Object>)]
    format: Option<Value>,
}

/// Whether the model reasons before it answers.
#[derive(Deserialize, ToSchema)]
pub(crate) struct Reasoning {
    /// `none`, or an effort that the chat template knows.
    effort: Option<String>,
}

impl ResponsesBody {
    /// Rejects fields that need stored responses or are not supported.
    fn check(&self) -> Result<(), Refusal> {
        if self.previous_response_id.is_some() {
            return Err(invalid(
                "`previous_response_id` is not supported: responses are not stored; send the whole conversation as `input`",
            ));
        }
        for (name, is_set) in [
            ("conversation", self.conversation.is_some()),
            ("background", self.background),
            ("truncation", self.truncation.as_ref().is_some_and(|mode| mode != "disabled")),
            ("top_logprobs", self.top_logprobs.is_some_and(|count| count > 0)),
        ] {
            if is_set {
                return Err(invalid(format!("`{name}` is not supported")));
            }
        }
        Ok(())
    }

    fn options(&self) -> Result<GenerateOptions, Refusal> {
        let default = GenerateOptions::default();
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        let options = GenerateOptions {
            max_tokens: self.max_output_tokens,
            temperature: self.temperature.unwrap_or(default.temperature),
            top_p: self.top_p.unwrap_or(default.top_p),
            structured_output: format.map(structured).transpose()?.flatten(),
            ..default
        };
        options.validate().map_err(|error| invalid(error.to_string()))?;
        Ok(options)
    }

    fn chat_options(&self) -> ChatOptions {
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
        let mut variables = Map::new();
        if let Some(effort) = effort {
            variables.insert("enable_thinking".to_owned(), (effort != "none").into());
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        ChatOptions { variables, ..ChatOptions::default() }
    }

    /// The response without output, which repeats the settings.
    fn response(&self, model: &str, options: &GenerateOptions) -> Value {
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
        let format = self.text.as_ref().and_then(|text| text.format.clone());
        json!({
            "id": random_id("resp_"),
            "object": "response",
            "created_at": unix_seconds(),
            "model": model,
            "error": null,
            "incomplete_details": null,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "tools": self.tools.as_deref().unwrap_or_default(),
            "tool_choice": self.tool_choice(),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "text": { "format": format.unwrap_or_else(|| json!({ "type": "text" })) },
            "reasoning": { "effort": effort, "summary": null },
            "metadata": self.metadata.clone().unwrap_or_else(|| json!({})),
            "previous_response_id": null,
            "store": false,
            "background": false,
            "truncation": "disabled",
        })
    }

    fn tool_choice(&self) -> Value {
        self.tool_choice.clone().filter(|choice| !choice.is_null()).unwrap_or_else(|| "auto".into())
    }
}

fn structured(format: &Value) -> Result<Option<StructuredOutput>, Refusal> {
    match (format["type"].as_str(), format.get("schema")) {
        (Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(Some(StructuredOutput::JsonObject)),
        (Some("json_schema"), Some(schema)) => Ok(Some(StructuredOutput::JsonSchema(schema.clone()))),
        (Some("json_schema"), None) => Err(invalid("`text.format` has no `schema`")),
        _ => Err(invalid("the type of `text.format` must be `text`, `json_object` or `json_schema`")),
    }
}

/// Answers an input.
#[utoipa::path(post, path = "/v1/responses", tag = "OpenAI", request_body(content = ResponsesBody, example = json!({"input": "What is a sconce?", "max_output_tokens": 64})), responses((status = 200, body = Object), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn responses(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::OpenAi, METHOD, request, |context, mut body: ResponsesBody| async move {
        let loaded = context.loaded(body.model.as_deref(), &[Task::Generate]).await?;
        body.check()?;
        let options = body.options()?;
        let parallel = body.parallel_tool_calls.unwrap_or(true);
        let tools = input::tools(body.tools.as_deref().unwrap_or_default(), &body.tool_choice(), parallel)?;
        let messages = input::messages(body.instructions.clone(), body.input.take())?;
        let prompt = PromptInput::Conversation { messages, options: body.chat_options(), tools };
        let writer = Writer::new(body.response(&loaded.name, &options));
        let generating = generate::start(&context, &loaded, METHOD, vec![prompt], options).await?;
        let whole = |writer: Writer, outputs: Vec<FinishedOutput>, usage| writer.whole(outputs, usage);
        Ok(answer(context, generating, writer, body.stream, whole))
    })
    .await
}

const METHOD: &str = "responses";
