//! OpenAI's routes `/v1/embeddings` and `/v1/models`.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sconce::Task;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::handle::handle;
use crate::operations::context::invalid;
use crate::operations::input_type;
use crate::operations::inputs::Inputs;
use crate::operations::response;
use crate::operations::{self, Vectors};
use crate::state::app::{App, Scope};
use crate::state::slot::{Slot, TaskStatus};
use sconce_http::refusal::Dialect;

/// Texts or token ids to embed.
#[derive(Deserialize, ToSchema)]
pub(crate) struct EmbeddingsBody {
    #[schema(value_type = Object, example = "a text")]
    input: Inputs,
    model: Option<String>,
    /// `float` or `base64`.
    encoding_format: Option<String>,
    /// Truncated dimension, for models trained with Matryoshka representation learning.
    dimensions: Option<usize>,
    /// The name of one of the prompts of the model.
    prompt_name: Option<String>,
    /// What the texts are: `query` or `document`. Selects the prompt of the model.
    #[schema(example = "query")]
    input_type: Option<String>,
    /// Jina's name for `input_type`: `retrieval.query` or `retrieval.passage`.
    task: Option<String>,
    /// Whether long texts are truncated. Default: false, they are rejected.
    truncate: Option<bool>,
}

/// Embeddings.
#[derive(Serialize, ToSchema)]
pub(crate) struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

/// The embedding of one text.
#[derive(Serialize, ToSchema)]
pub(crate) struct Embedding {
    object: &'static str,
    index: usize,
    #[schema(value_type = Object)]
    #[serde(rename = "embedding")]
    values: EmbeddingValues,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EmbeddingValues {
    Floats(Vec<f32>),
    Base64(String),
}

/// Token usage.
#[derive(Serialize, ToSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) total_tokens: usize,
}

impl Usage {
    pub(crate) fn of(tokens: usize) -> Usage {
        Usage { prompt_tokens: tokens, total_tokens: tokens }
    }
}

/// Embeds texts.
#[utoipa::path(post, path = "/v1/embeddings", tag = "OpenAI", request_body = EmbeddingsBody, responses((status = 200, body = Embeddings), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::OpenAi, "embeddings", request, |context, body: EmbeddingsBody| async move {
        let loaded = context.loaded(body.model.as_deref(), &[Task::Embed]).await?;
        let base64 = match body.encoding_format.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(invalid("`encoding_format` must be `float` or `base64`")),
        };
        let (input_type, task) = (body.input_type.as_deref(), body.task.as_deref());
        let prompt = input_type::chosen(loaded.model.card(), body.prompt_name, input_type, task)?;
        let options = Vectors {
            truncates: context.truncates(body.truncate, false),
            prompt,
            dimensions: body.dimensions,
            normalize: None,
        };
        let answer = operations::embed(&context, &loaded, Arc::new(body.input), options).await?;
        let (model, usage) = (loaded.name.clone(), Usage::of(answer.work.tokens));
        let answer = answer.map(move |vectors| {
            let data = vectors.into_iter().enumerate().map(|(index, vector)| {
                let values = if base64 {
                    EmbeddingValues::Base64(to_base64(&vector))
                } else {
                    EmbeddingValues::Floats(vector)
                };
                Embedding { object: "embedding", index, values }
            });
            Embeddings { object: "list", data: data.collect(), model, usage }
        });
        response::write(&context, answer).await
    })
    .await
}

/// Embeds texts, for clients whose base URL has no version.
#[utoipa::path(post, path = "/embeddings", tag = "OpenAI", request_body = EmbeddingsBody, responses((status = 200, body = Embeddings), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn embeddings_short(app: State<Arc<App>>, request: Request) -> Response {
    embeddings(app, request).await
}

/// Little-endian f32 values in base64.
pub(super) fn to_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

/// The list of models.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelObject>,
}

/// A model.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelObject {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    width: Option<usize>,
    prompts: Vec<String>,
}

fn object(app: &App, slot: &Slot) -> ModelObject {
    let loaded = slot.loaded();
    let card = loaded.as_ref().map(|loaded| loaded.model.card());
    let started = std::time::SystemTime::now().checked_sub(app.started.elapsed());
    let created = started.and_then(|started| started.duration_since(std::time::UNIX_EPOCH).ok());
    ModelObject {
        id: slot.name.clone(),
        object: "model",
        created: created.map_or(0, |created| created.as_secs()),
        owned_by: "sconce",
        ready: card.is_some(),
        task: match slot.task() {
            TaskStatus::Known(task) => Some(task.to_string()),
            TaskStatus::Pending | TaskStatus::Unavailable => None,
        },
        max_length: card.map(|card| card.max_length.value),
        width: card.map(sconce::ModelCard::width),
        prompts: card.map_or(Vec::new(), |card| card.prompts.value.keys().cloned().collect()),
    }
}

/// Lists the models.
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses((status = 200, body = ModelList)))]
pub(crate) async fn models(State(app): State<Arc<App>>, scope: Option<Extension<Scope>>) -> Response {
    let slots = app.slots_in(scope.as_deref());
    let data = slots.iter().map(|slot| object(&app, slot)).collect();
    Json(ModelList { object: "list", data }).into_response()
}

/// One model.
#[utoipa::path(get, path = "/v1/models/{id}", tag = "OpenAI", responses((status = 200, body = ModelObject), (status = 404)))]
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    scope: Option<Extension<Scope>>,
    Path(id): Path<String>,
) -> Response {
    match app.slot(scope.as_deref(), &id) {
        Ok(slot) => Json(object(&app, &slot)).into_response(),
        Err(refusal) => refusal.respond(Dialect::OpenAi),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_holds_little_endian_floats() {
        // base64.b64encode(struct.pack("<3f", 1.0, -2.5, 1e-3))
        assert_eq!(to_base64(&[1.0, -2.5, 1e-3]), "AACAPwAAIMBvEoM6");
        assert_eq!(to_base64(&[]), "");
    }
}
