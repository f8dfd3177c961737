//! Ollama's routes `/api/embed` and `/api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use sconce::{Prompt, Task};
use sconce_http::refusal::Dialect;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::handle::handle;
use crate::api::ollama::{model_name, nanoseconds};
use crate::operations::inputs::Inputs;
use crate::operations::response;
use crate::operations::{self, Vectors};
use crate::state::app::App;

/// Texts to embed.
#[derive(Deserialize, ToSchema)]
#[schema(as = OllamaEmbedBody)]
pub(crate) struct EmbedBody {
    model: Option<String>,
    #[schema(value_type = Object, example = "a text")]
    input: Inputs,
    /// Whether long texts are truncated. Default: true.
    truncate: Option<bool>,
    /// Truncated dimension, for models trained with Matryoshka representation learning.
    dimensions: Option<usize>,
    /// Not used: settings of the server determine how long models stay loaded.
    #[schema(value_type = Option<Object>)]
    #[serde(rename = "keep_alive")]
    _keep_alive: Option<Value>,
}

/// L2-normalized embeddings.
#[derive(Serialize, ToSchema)]
#[schema(as = OllamaEmbedResponse)]
pub(crate) struct EmbedResponse {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// Embeds texts.
#[utoipa::path(post, path = "/api/embed", tag = "Ollama", request_body = EmbedBody, responses((status = 200, body = EmbedResponse), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn embed(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Ollama, "embed", request, |context, body: EmbedBody| async move {
        let began = Instant::now();
        let name = model_name(&context.app, body.model.as_deref());
        let loaded = context.loaded(name, &[Task::Embed]).await?;
        let load_duration = nanoseconds(began.elapsed());
        let options = Vectors {
            truncates: context.truncates(body.truncate, true),
            prompt: Prompt::Default,
            dimensions: body.dimensions,
            normalize: Some(true),
        };
        let answer = operations::embed(&context, &loaded, Arc::new(body.input), options).await?;
        let (model, prompt_eval_count) = (loaded.name.clone(), answer.work.tokens);
        let answer = answer.map(move |embeddings| EmbedResponse {
            model,
            embeddings,
            total_duration: nanoseconds(began.elapsed()),
            load_duration,
            prompt_eval_count,
        });
        response::write(&context, answer).await
    })
    .await
}

/// A text to embed.
#[derive(Deserialize, ToSchema)]
#[schema(as = OllamaEmbeddingsBody)]
pub(crate) struct EmbeddingsBody {
    model: Option<String>,
    #[schema(example = "a text")]
    prompt: String,
    /// Not used: settings of the server determine how long models stay loaded.
    #[schema(value_type = Option<Object>)]
    #[serde(rename = "keep_alive")]
    _keep_alive: Option<Value>,
}

/// An embedding.
#[derive(Serialize, ToSchema)]
#[schema(as = OllamaEmbeddingsResponse)]
pub(crate) struct EmbeddingsResponse {
    embedding: Vec<f32>,
}

/// Embeds a text, for old clients.
#[utoipa::path(post, path = "/api/embeddings", tag = "Ollama", request_body = EmbeddingsBody, responses((status = 200, body = EmbeddingsResponse), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Ollama, "embed", request, |context, body: EmbeddingsBody| async move {
        let name = model_name(&context.app, body.model.as_deref());
        let loaded = context.loaded(name, &[Task::Embed]).await?;
        let options = Vectors {
            truncates: context.truncates(None, true),
            prompt: Prompt::Default,
            dimensions: None,
            normalize: None,
        };
        let text = Arc::new(Inputs::One(body.prompt));
        let answer = operations::embed(&context, &loaded, text, options).await?;
        let answer = answer.map(|embeddings| EmbeddingsResponse {
            embedding: embeddings.into_iter().next().unwrap_or_default(),
        });
        response::write(&context, answer).await
    })
    .await
}
