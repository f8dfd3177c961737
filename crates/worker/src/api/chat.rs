//! OpenAI's route `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use sconce::{ChatOptions, GeneratedToken, Message, Task};
use sconce_http::event_stream::EventFormat;
use sconce_http::refusal::{Dialect, Refusal};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::completion::{ChunkWriter, Completion, answer, random_id};
use crate::api::handle::handle;
use crate::api::logprobs;
use crate::api::messages;
use crate::api::sampling::completion_body;
use crate::operations::context::invalid;
use crate::operations::generate::{
    self, EndReason, EventWriter, FinishedOutput, Generating, PromptInput, TokenUsage, ToolCall,
};
use crate::operations::output_parser::Delta;
use crate::operations::tools::{ToolChoice, Tools};
use crate::state::app::App;
use crate::state::slot::LoadedModel;

completion_body! {
    /// A conversation to continue.
    struct ChatBody {
        #[schema(value_type = Vec<Object>)]
        messages: Vec<Message>,
        /// The newer name of `max_tokens`.
        max_completion_tokens: Option<usize>,
        /// Whether log probabilities are returned.
        #[serde(default, deserialize_with = "crate::api::sampling::nullable")]
        logprobs: bool,
        /// Number of most likely tokens at each position, at most 20.
        top_logprobs: Option<usize>,
        /// Further variables of the chat template, such as `enable_thinking`.
        #[schema(value_type = Option<Object>)]
        chat_template_kwargs: Option<Map<String, Value>>,
        /// Whether the prompt ends with the start of the model's turn.
        add_generation_prompt: Option<bool>,
        /// Tools that the model may call.
        #[schema(value_type = Option<Vec<Object>>)]
        tools: Option<Vec<Value>>,
        /// `auto`, `none`, `required`, or a tool.
        #[schema(value_type = Option<Object>)]
        tool_choice: Option<ToolChoiceField>,
        /// Whether the answer may have several calls. Default: true.
        parallel_tool_calls: Option<bool>,
    }
}

/// Whether the model calls tools.
#[derive(Deserialize)]
#[serde(untagged)]
enum ToolChoiceField {
    Mode(ToolMode),
    Tool { function: NamedTool },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToolMode {
    Auto,
    None,
    Required,
}

#[derive(Deserialize)]
struct NamedTool {
    name: String,
}

impl From<ToolChoiceField> for ToolChoice {
    fn from(field: ToolChoiceField) -> ToolChoice {
        match field {
            ToolChoiceField::Mode(ToolMode::Auto) => ToolChoice::Auto,
            ToolChoiceField::Mode(ToolMode::None) => ToolChoice::None,
            ToolChoiceField::Mode(ToolMode::Required) => ToolChoice::Required,
            ToolChoiceField::Tool { function } => ToolChoice::Named(function.name),
        }
    }
}

/// Continues a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "OpenAI", request_body(content = ChatBody, example = json!({"messages": [{"role": "user", "content": "What is a sconce?"}], "max_tokens": 64})), responses((status = 200, body = Object), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::OpenAi, METHOD, request, |context, mut body: ChatBody| async move {
        let loaded = context.loaded(body.model.as_deref(), &[Task::Generate]).await?;
        body.max_tokens = body.max_completion_tokens.or(body.max_tokens);
        let mut options = body.options()?;
        if body.top_logprobs.is_some() && !body.logprobs {
            return Err(invalid("`top_logprobs` needs `logprobs`"));
        }
        options.logprobs = body.logprobs.then(|| body.top_logprobs.unwrap_or(0));
        let chat = ChatOptions {
            variables: body.chat_template_kwargs.take().unwrap_or_default(),
            add_generation_prompt: body.add_generation_prompt.unwrap_or(true),
            ..ChatOptions::default()
        };
        let messages = messages::of_openai(std::mem::take(&mut body.messages))?;
        let tool_choice = body.tool_choice.take().map(ToolChoice::from).unwrap_or_default();
        let tools = Tools::new(
            body.tools.take().unwrap_or_default(),
            tool_choice,
            body.parallel_tool_calls.unwrap_or(true),
        )?;
        let prompts = vec![PromptInput::Conversation { messages, options: chat, tools }];
        let generating = generate::start(&context, &loaded, METHOD, prompts, options).await?;
        let (completion, includes_usage) = (Completion::new("chatcmpl-", &loaded), body.includes_usage());
        let chunks = ChunkWriter { completion, kind: "chat.completion.chunk", includes_usage };
        let writer = ChatWriter { chunks, loaded };
        let whole = |writer: ChatWriter, outputs: Vec<FinishedOutput>, usage| {
            let choices =
                outputs.iter().enumerate().map(|(index, output)| choice(&writer.loaded, index, output));
            writer.chunks.completion.object("chat.completion", &choices.collect::<Vec<_>>(), Some(usage))
        };
        Ok(answer(context, generating, writer, body.stream, whole))
    })
    .await
}

const METHOD: &str = "chat";

fn choice(loaded: &LoadedModel, index: usize, output: &FinishedOutput) -> Value {
    let tokens = output.tokens.iter().filter_map(|(token, _)| logprobs::chat(&loaded.model, token));
    let tokens: Vec<Value> = tokens.collect();
    let mut message = json!({ "role": "assistant", "content": output.text, "refusal": null });
    if !output.reasoning.is_empty() {
        message["reasoning_content"] = json!(output.reasoning);
    }
    if !output.calls.is_empty() {
        let call = |call: &ToolCall| {
            json!({
                "id": random_id("call_"),
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            })
        };
        message["tool_calls"] = output.calls.iter().map(call).collect();
        if output.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    json!({
        "index": index,
        "message": message,
        "logprobs": (!tokens.is_empty()).then(|| json!({ "content": tokens, "refusal": null })),
        "finish_reason": output.reason.map(EndReason::name),
    })
}

/// The fields of a delta.
fn fields(delta: Delta) -> Value {
    match delta {
        Delta::Text(text) => json!({ "content": text }),
        Delta::Reasoning(text) => json!({ "reasoning_content": text }),
        Delta::Call { index, name } => {
            let function = json!({ "name": name, "arguments": "" });
            let call =
                json!({ "index": index, "id": random_id("call_"), "type": "function", "function": function });
            json!({ "tool_calls": [call] })
        }
        Delta::Arguments { index, text } => {
            json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] })
        }
    }
}

/// Writes chunks of a chat completion.
struct ChatWriter {
    chunks: ChunkWriter,
    loaded: Arc<LoadedModel>,
}

impl ChatWriter {
    fn delta(&self, choice: usize, delta: &Value, logprobs: Option<Value>, output: &mut Vec<u8>) {
        let logprobs = logprobs.map(|token| json!({ "content": [token], "refusal": null }));
        let choice = json!({ "index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": null });
        self.chunks.chunk(choice, output);
    }
}

impl EventWriter for ChatWriter {
    const FORMAT: EventFormat = EventFormat::Sse;

    fn start(&mut self, generating: &Generating, output: &mut Vec<u8>) {
        for choice in 0..generating.choices() {
            self.delta(choice, &json!({ "role": "assistant", "content": "" }), None, output);
        }
    }

    fn deltas(
        &mut self,
        choice: usize,
        deltas: Vec<Delta>,
        token: Option<GeneratedToken>,
        output: &mut Vec<u8>,
    ) {
        let mut logprobs = token.and_then(|token| logprobs::chat(&self.loaded.model, &token));
        if deltas.is_empty() && logprobs.is_some() {
            self.delta(choice, &json!({ "content": "" }), logprobs.take(), output);
        }
        for delta in deltas {
            self.delta(choice, &fields(delta), logprobs.take(), output);
        }
    }

    fn end(&mut self, choice: usize, reason: EndReason, output: &mut Vec<u8>) {
        let end = json!({ "index": choice, "delta": {}, "logprobs": null, "finish_reason": reason.name() });
        self.chunks.chunk(end, output);
    }

    fn finish(&mut self, tokens: TokenUsage, output: &mut Vec<u8>) {
        self.chunks.finish(tokens, output);
    }

    fn fail(&mut self, refusal: &Refusal, output: &mut Vec<u8>) {
        ChunkWriter::fail(refusal, output);
    }
}
