//! Routes of llama.cpp's server: `/apply-template`, and its form of `/tokenize`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use sconce::{ChatOptions, Message, Task};
use sconce_http::refusal::{Dialect, Refusal};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::api::handle::handle;
use crate::api::messages;
use crate::errors::refusal;
use crate::operations::chat_prompt::chat_prompt;
use crate::operations::context::RequestContext;
use crate::operations::response::{self, Answer, AnswerBody};
use crate::operations::tools::{ToolChoice, Tools};
use crate::state::app::App;
use crate::state::slot::LoadedModel;
use crate::state::work::Work;

/// Approximate maximum response bytes per byte of text.
const EXPANSION: usize = 16;

/// A conversation whose prompt is rendered.
#[derive(Deserialize, ToSchema)]
pub(crate) struct TemplateBody {
    model: Option<String>,
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Message>,
    /// Tools that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// Further variables of the chat template, such as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the prompt ends with the start of the model's turn. Default: true.
    add_generation_prompt: Option<bool>,
}

/// Renders the prompt of a conversation.
#[utoipa::path(post, path = "/apply-template", tag = "llama.cpp", request_body(content = TemplateBody, example = json!({"messages": [{"role": "user", "content": "What is a sconce?"}]})), responses((status = 200, body = Object), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn apply_template(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::OpenAi, "apply_template", request, |context, body: TemplateBody| async move {
        let loaded = context.loaded(body.model.as_deref(), &[Task::Generate]).await?;
        let options = ChatOptions {
            variables: body.chat_template_kwargs.unwrap_or_default(),
            add_generation_prompt: body.add_generation_prompt.unwrap_or(true),
            ..ChatOptions::default()
        };
        let messages = messages::of_openai(body.messages)?;
        let tools = Tools::new(body.tools.unwrap_or_default(), ToolChoice::Auto, true)?;
        let prompt = chat_prompt(&context, &loaded, messages, options, tools).await?;
        whole(&context, &json!({ "prompt": prompt.text }))
    })
    .await
}

/// The token ids of a text, with the texts of the tokens if `pieces`.
pub(super) async fn tokenize(
    context: &RequestContext,
    loaded: Arc<LoadedModel>,
    text: String,
    special: bool,
    pieces: bool,
) -> Result<Answer, Refusal> {
    let bytes = [text.len()];
    context.check_sizes(&bytes, 0)?;
    let _estimate = context.memory.reserve(EXPANSION * text.len())?;
    let each = move |_| loaded.model.tokens(&text, special).map_err(refusal);
    let tokens = context.on_text_threads(&bytes, each, |parts| Ok(parts.concat())).await?;
    context.app.edge.charge(context.principal, tokens.len())?;
    let token = |token: &sconce::tokenize::Token| {
        if pieces { json!({ "id": token.id, "piece": token.text }) } else { token.id.into() }
    };
    whole(context, &json!({ "tokens": tokens.iter().map(token).collect::<Vec<Value>>() }))
}

fn whole(context: &RequestContext, value: &Value) -> Result<Answer, Refusal> {
    Ok(Answer { body: AnswerBody::Whole(response::json(context, value)?), work: Work::default() })
}
