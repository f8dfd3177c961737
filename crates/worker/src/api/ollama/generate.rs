//! Ollama's routes `/api/chat` and `/api/generate`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use sconce::{ChatOptions, GenerateOptions, Message, Task};
use sconce_http::refusal::{Dialect, Refusal};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::completion::answer;
use crate::api::handle::handle;
use crate::api::messages;
use crate::api::ollama::model_name;
use crate::api::ollama::options::{self, Options, Think};
use crate::api::ollama::writer::{Shape, Times, Writer};
use crate::operations::context::{RequestContext, invalid};
use crate::operations::generate::{self, FinishedOutput, PromptInput};
use crate::operations::response::{self, Answer, AnswerBody};
use crate::operations::tools::{ToolChoice, Tools};
use crate::state::app::App;
use crate::state::slot::LoadedModel;
use crate::state::work::Work;

/// A conversation to continue.
#[derive(Deserialize, ToSchema)]
#[schema(as = OllamaChatBody)]
pub(crate) struct ChatBody {
    model: Option<String>,
    /// Without messages, the model is loaded.
    #[schema(value_type = Vec<Object>)]
    #[serde(default)]
    messages: Vec<Message>,
    /// Tools that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `json`, or a JSON schema.
    #[schema(value_type = Option<Object>)]
    format: Option<Value>,
    options: Option<Options>,
    /// Whether the response is a stream of lines. Default: true.
    stream: Option<bool>,
    /// Whether the model reasons before it answers.
    #[schema(value_type = Option<Object>)]
    think: Option<Think>,
    /// Not used: settings of the server determine how long models stay loaded.
    #[schema(value_type = Option<Object>)]
    #[serde(rename = "keep_alive")]
    _keep_alive: Option<Value>,
}

/// A prompt to continue.
#[derive(Deserialize, ToSchema)]
#[schema(as = OllamaGenerateBody)]
pub(crate) struct GenerateBody {
    model: Option<String>,
    /// Without a prompt, the model is loaded.
    #[serde(default)]
    prompt: String,
    /// System prompt.
    system: Option<String>,
    /// Whether the prompt is used without the chat template.
    #[serde(default, deserialize_with = "crate::api::sampling::nullable")]
    raw: bool,
    /// Not supported.
    #[serde(default)]
    suffix: String,
    /// Not supported.
    #[serde(default)]
    template: String,
    /// Not supported.
    context: Option<Vec<u32>>,
    /// Not supported.
    #[schema(value_type = Option<Vec<Object>>)]
    images: Option<Vec<Value>>,
    /// `json`, or a JSON schema.
    #[schema(value_type = Option<Object>)]
    format: Option<Value>,
    options: Option<Options>,
    /// Whether the response is a stream of lines. Default: true.
    stream: Option<bool>,
    /// Whether the model reasons before it answers.
    #[schema(value_type = Option<Object>)]
    think: Option<Think>,
    /// Not used: settings of the server determine how long models stay loaded.
    #[schema(value_type = Option<Object>)]
    #[serde(rename = "keep_alive")]
    _keep_alive: Option<Value>,
}

/// Continues a conversation.
#[utoipa::path(post, path = "/api/chat", tag = "Ollama", request_body(content = ChatBody, example = json!({"messages": [{"role": "user", "content": "What is a sconce?"}], "stream": false})), responses((status = 200, body = Object), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Ollama, CHAT, request, |context, body: ChatBody| async move {
        let began = Instant::now();
        let loaded = load(&context, body.model.as_deref()).await?;
        let streams = body.stream.unwrap_or(true);
        let generation = options::generation(body.options, body.format, &loaded)?;
        let options = options::chat(body.think, &loaded)?;
        let tools = Tools::new(body.tools.unwrap_or_default(), ToolChoice::Auto, true)?;
        let messages = of_ollama(body.messages)?;
        let prompt = (!messages.is_empty()).then_some(PromptInput::Conversation { messages, options, tools });
        run(context, &loaded, CHAT, Shape::Chat, prompt, generation, (began, streams)).await
    })
    .await
}

/// Continues a prompt.
#[utoipa::path(post, path = "/api/generate", tag = "Ollama", request_body(content = GenerateBody, example = json!({"prompt": "What is a sconce?", "stream": false})), responses((status = 200, body = Object), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn generate(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Ollama, GENERATE, request, |context, body: GenerateBody| async move {
        let began = Instant::now();
        let loaded = load(&context, body.model.as_deref()).await?;
        let streams = body.stream.unwrap_or(true);
        for (name, is_set) in [
            ("suffix", !body.suffix.is_empty()),
            ("template", !body.template.is_empty()),
            ("context", body.context.is_some_and(|ids| !ids.is_empty())),
            ("images", body.images.is_some_and(|images| !images.is_empty())),
        ] {
            if is_set {
                return Err(invalid(format!("`{name}` is not supported")));
            }
        }
        let generation = options::generation(body.options, body.format, &loaded)?;
        let has_template = loaded.model.card().generation.chat_templates.is_some();
        let prompt = if body.prompt.is_empty() {
            None
        } else if body.raw || (!has_template && body.system.is_none() && body.think.is_none()) {
            // A base model has no chat template.
            Some(PromptInput::Text(body.prompt))
        } else {
            let options: ChatOptions = options::chat(body.think, &loaded)?;
            let system = body.system.filter(|system| !system.is_empty()).map(Message::system);
            let messages = system.into_iter().chain([Message::user(body.prompt)]).collect();
            Some(PromptInput::Conversation { messages, options, tools: Tools::default() })
        };
        run(context, &loaded, GENERATE, Shape::Generate, prompt, generation, (began, streams)).await
    })
    .await
}

const CHAT: &str = "chat";
const GENERATE: &str = "generate";

async fn load(context: &RequestContext, name: Option<&str>) -> Result<Arc<LoadedModel>, Refusal> {
    context.loaded(model_name(&context.app, name), &[Task::Generate]).await
}

async fn run(
    context: RequestContext,
    loaded: &Arc<LoadedModel>,
    method: &'static str,
    shape: Shape,
    prompt: Option<PromptInput>,
    options: GenerateOptions,
    (began, streams): (Instant, bool),
) -> Result<Answer, Refusal> {
    let load = began.elapsed();
    let writer = |first_token| Writer::new(loaded.name.clone(), shape, Times { began, load, first_token });
    let Some(prompt) = prompt else {
        let body = response::json(&context, &writer(load).loaded())?;
        return Ok(Answer { body: AnswerBody::Whole(body), work: Work::default() });
    };
    let generating = generate::start(&context, loaded, method, vec![prompt], options).await?;
    let whole = |writer: Writer, outputs: Vec<FinishedOutput>, usage| writer.whole(&outputs, usage);
    Ok(answer(context, generating, writer(began.elapsed()), streams, whole))
}

/// Messages as chat templates read them.
fn of_ollama(mut messages: Vec<Message>) -> Result<Vec<Message>, Refusal> {
    for (at, Message(fields)) in messages.iter_mut().enumerate() {
        if let Some(Value::Array(images)) = fields.remove("images")
            && !images.is_empty()
        {
            return Err(invalid(format!("message {at} has images, and the model reads text only")));
        }
        fields.entry("content").or_insert_with(|| "".into());
        for (own, common) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
            if let Some(value) = fields.remove(own) {
                fields.insert(common.to_owned(), value);
            }
        }
        if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
            for call in calls.iter_mut().filter_map(Value::as_object_mut) {
                call.insert("type".to_owned(), json!("function"));
            }
        }
    }
    messages::of_openai(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(message: Value) -> Result<Value, String> {
        let message: Message = serde_json::from_value(message).map_err(|error| error.to_string())?;
        let messages = of_ollama(vec![message]).map_err(|refusal| refusal.message)?;
        serde_json::to_value(&messages[0]).map_err(|error| error.to_string())
    }

    #[test]
    fn messages_have_the_fields_of_chat_templates() {
        let call = json!({"function": {"name": "f", "arguments": {"a": 1}}});
        let typed = json!({"type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
        let assistant = json!({"role": "assistant", "thinking": "hm", "tool_calls": [call]});
        let expected =
            json!({"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [typed]});
        assert_eq!(converted(assistant), Ok(expected));
        let tool = json!({"role": "tool", "content": "3", "tool_name": "f"});
        assert_eq!(converted(tool), Ok(json!({"role": "tool", "content": "3", "name": "f"})));
        let plain = json!({"role": "user", "content": "a"});
        assert_eq!(converted(json!({"role": "user", "content": "a", "images": []})), Ok(plain));
        assert!(converted(json!({"role": "user", "content": "a", "images": ["iVBORw0KGgo="]})).is_err());
        assert!(converted(json!({"content": "a"})).is_err());
    }
}
