//! Anthropic's routes `/v1/messages` and `/v1/messages/count_tokens`.

mod conversation;
mod writer;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use sconce::{GenerateOptions, StructuredOutput, Task};
use sconce_http::refusal::{Dialect, Refusal};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::anthropic::conversation::{Thinking, Tool, ToolChoiceField, Turn};
use crate::api::anthropic::writer::Writer;
use crate::api::completion::answer;
use crate::api::handle::handle;
use crate::operations::chat_prompt::chat_prompt;
use crate::operations::context::invalid;
use crate::operations::generate::{self, FinishedOutput, PromptInput};
use crate::operations::response::{self, Answer, AnswerBody};
use crate::state::app::App;
use crate::state::work::Work;

/// A conversation to continue.
#[derive(Deserialize, ToSchema)]
pub(crate) struct MessagesBody {
    model: Option<String>,
    messages: Vec<Turn>,
    /// A text, or a list of text blocks.
    #[schema(value_type = Option<Object>)]
    system: Option<Value>,
    max_tokens: usize,
    stop_sequences: Option<Vec<String>>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<ToolChoiceField>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    #[serde(default, deserialize_with = "crate::api::sampling::nullable")]
    stream: bool,
}

/// A conversation whose tokens are counted.
#[derive(Deserialize, ToSchema)]
pub(crate) struct CountBody {
    model: Option<String>,
    messages: Vec<Turn>,
    /// A text, or a list of text blocks.
    #[schema(value_type = Option<Object>)]
    system: Option<Value>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<ToolChoiceField>,
    thinking: Option<Thinking>,
}

/// What the output must be.
#[derive(Deserialize, ToSchema)]
pub(crate) struct OutputConfig {
    format: Option<OutputFormat>,
}

/// JSON of a schema.
#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputFormat {
    JsonSchema {
        #[schema(value_type = Object)]
        schema: Value,
    },
}

impl MessagesBody {
    fn options(&mut self) -> Result<GenerateOptions, Refusal> {
        let default = GenerateOptions::default();
        let format = self.output_config.take().and_then(|config| config.format);
        let options = GenerateOptions {
            max_tokens: Some(self.max_tokens),
            temperature: self.temperature.unwrap_or(default.temperature),
            top_p: self.top_p.unwrap_or(default.top_p),
            top_k: self.top_k.unwrap_or(default.top_k),
            stop: self.stop_sequences.take().unwrap_or_default(),
            structured_output: format
                .map(|OutputFormat::JsonSchema { schema }| StructuredOutput::JsonSchema(schema)),
            ..default
        };
        options.validate().map_err(|error| invalid(error.to_string()))?;
        Ok(options)
    }
}

/// Continues a conversation.
#[utoipa::path(post, path = "/v1/messages", tag = "Anthropic", request_body(content = MessagesBody, example = json!({"max_tokens": 64, "messages": [{"role": "user", "content": "What is a sconce?"}]})), responses((status = 200, body = Object), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn messages(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Anthropic, METHOD, request, |context, mut body: MessagesBody| async move {
        let loaded = context.loaded(body.model.as_deref(), &[Task::Generate]).await?;
        let options = body.options()?;
        let prompt = PromptInput::Conversation {
            messages: conversation::messages(body.system, body.messages)?,
            options: conversation::chat_options(body.thinking.as_ref()),
            tools: conversation::tools(body.tools.unwrap_or_default(), body.tool_choice)?,
        };
        let writer = Writer::new(loaded.name.clone(), options.stop.clone());
        let generating = generate::start(&context, &loaded, METHOD, vec![prompt], options).await?;
        let whole = |writer: Writer, outputs: Vec<FinishedOutput>, usage| writer.whole(&outputs, usage);
        Ok(answer(context, generating, writer, body.stream, whole))
    })
    .await
}

const METHOD: &str = "messages";

/// Counts the tokens of a conversation.
#[utoipa::path(post, path = "/v1/messages/count_tokens", tag = "Anthropic", request_body(content = CountBody, example = json!({"messages": [{"role": "user", "content": "What is a sconce?"}]})), responses((status = 200, body = Object), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Anthropic, "count_tokens", request, |context, body: CountBody| async move {
        let loaded = context.loaded(body.model.as_deref(), &[Task::Generate]).await?;
        let messages = conversation::messages(body.system, body.messages)?;
        let options = conversation::chat_options(body.thinking.as_ref());
        let tools = conversation::tools(body.tools.unwrap_or_default(), body.tool_choice)?;
        let prompt = chat_prompt(&context, &loaded, messages, options, tools).await?;
        let body = response::json(&context, &json!({ "input_tokens": prompt.ids.len() }))?;
        Ok(Answer { body: AnswerBody::Whole(body), work: Work::default() })
    })
    .await
}
