//! Ollama's routes `/api/tags`, `/api/ps`, `/api/show` and `/api/version`.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sconce::{Device, ModelCard, Task};
use sconce_http::refusal::Dialect;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::api::handle::handle;
use crate::api::ollama::{model_name, timestamp};
use crate::operations::context::ANY;
use crate::operations::output_parser::ToolFormat;
use crate::operations::response::{self, Answer, AnswerBody};
use crate::state::app::{App, Scope};
use crate::state::slot::{LoadedModel, Slot};
use crate::state::work::Work;

/// A model to describe.
#[derive(Deserialize, ToSchema)]
pub(crate) struct ShowBody {
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
    /// Not used.
    #[serde(rename = "verbose")]
    _verbose: Option<bool>,
}

/// Lists the models.
#[utoipa::path(get, path = "/api/tags", tag = "Ollama", responses((status = 200, body = Object)))]
pub(crate) async fn tags(State(app): State<Arc<App>>, scope: Option<Extension<Scope>>) -> Response {
    let slots = app.slots_in(scope.as_deref());
    let models: Vec<Value> = slots.iter().map(|slot| entry(&app, slot, slot.loaded().as_deref())).collect();
    Json(json!({ "models": models })).into_response()
}

/// Lists the loaded models.
#[utoipa::path(get, path = "/api/ps", tag = "Ollama", responses((status = 200, body = Object)))]
pub(crate) async fn ps(State(app): State<Arc<App>>, scope: Option<Extension<Scope>>) -> Response {
    let slots = app.slots_in(scope.as_deref());
    let loaded = slots.iter().filter_map(|slot| Some((slot, slot.loaded()?)));
    let models: Vec<Value> = loaded
        .map(|(slot, loaded)| {
            let mut entry = entry(&app, slot, Some(&loaded));
            let on_cpu = loaded.model.placement().is_none_or(|placement| placement.device == Device::Cpu);
            entry["size_vram"] = if on_cpu { json!(0) } else { entry["size"].clone() };
            entry["context_length"] = loaded.model.card().max_length.value.into();
            entry
        })
        .collect();
    Json(json!({ "models": models })).into_response()
}

/// Describes a model.
#[utoipa::path(post, path = "/api/show", tag = "Ollama", request_body = ShowBody, responses((status = 200, body = Object), (status = 404)))]
pub(crate) async fn show(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Ollama, "show", request, |context, body: ShowBody| async move {
        let name = body.model.or(body.name);
        let loaded = context.loaded(model_name(&context.app, name.as_deref()), &ANY).await?;
        let card = loaded.model.card();
        let template = template(card);
        let description = json!({
            "modelfile": "",
            "parameters": "",
            "template": template,
            "details": details(card),
            "model_info": model_info(card),
            "capabilities": capabilities(card.task.value, template),
            "modified_at": started(&context.app),
        });
        let body = AnswerBody::Whole(response::json(&context, &description)?);
        Ok(Answer { body, work: Work::default() })
    })
    .await
}

/// The version of the server.
#[utoipa::path(get, path = "/api/version", tag = "Ollama", responses((status = 200, body = Object)))]
pub(crate) async fn version() -> Response {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") })).into_response()
}

/// When the server was started.
fn started(app: &App) -> String {
    timestamp(SystemTime::now().checked_sub(app.started.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH))
}

/// A model in a list.
fn entry(app: &App, slot: &Slot, loaded: Option<&LoadedModel>) -> Value {
    let card = loaded.map(|loaded| loaded.model.card());
    let weights = card.and_then(|card| card.weights.first());
    json!({
        "name": slot.name,
        "model": slot.name,
        "modified_at": started(app),
        "size": weights.map_or(0, |weights| weights.bytes),
        "digest": weights.map_or("", |weights| weights.identity.as_str()),
        "details": card.map_or_else(|| json!({}), details),
    })
}

fn details(card: &ModelCard) -> Value {
    let weights = card.weights.first();
    let parameters =
        weights.map(|weights| weights.values.unwrap_or(weights.bytes * 8 / weights.stored.bits()));
    json!({
        "parent_model": "",
        "format": weights.map(|weights| weights.format),
        "family": card.architecture.value,
        "families": [card.architecture.value],
        "parameter_size": parameters.map(parameter_size),
        "quantization_level": weights.map(|weights| weights.stored.to_string()),
    })
}

/// A number of parameters, such as `134.5M`.
fn parameter_size(parameters: u64) -> String {
    let (unit, name) = if parameters >= 1_000_000_000 { (1e9, "B") } else { (1e6, "M") };
    format!("{:.1}{name}", parameters as f64 / unit)
}

/// The default chat template.
fn template(card: &ModelCard) -> &str {
    let templates = card.generation.chat_templates.as_ref();
    templates.and_then(|templates| templates.value.get("default")).map_or("", String::as_str)
}

/// Sizes by the names of GGUF metadata.
fn model_info(card: &ModelCard) -> Map<String, Value> {
    let (family, sizes) = (&card.architecture.value, &card.sizes.value);
    let mut info = Map::from_iter([("general.architecture".to_owned(), json!(family))]);
    for (name, value) in [
        ("context_length", card.max_length.value),
        ("embedding_length", sizes.hidden),
        ("block_count", sizes.layers),
        ("attention.head_count", sizes.heads),
        ("feed_forward_length", sizes.intermediate),
        ("vocab_size", sizes.vocabulary),
    ] {
        info.insert(format!("{family}.{name}"), value.into());
    }
    info
}

fn capabilities(task: Task, template: &str) -> Vec<&'static str> {
    match task {
        Task::Generate => {
            let further =
                [("tools", ToolFormat::of(template).is_some()), ("thinking", template.contains("</think>"))];
            let further = further.into_iter().filter(|(_, is_supported)| *is_supported);
            [("completion", true)].into_iter().chain(further).map(|(name, _)| name).collect()
        }
        Task::Embed => vec!["embedding"],
        Task::Rerank | Task::Classify | Task::Sparse | Task::Tokens => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_those_of_task_and_template() {
        assert_eq!(capabilities(Task::Generate, ""), ["completion"]);
        let template = "<tool_call> </think>";
        assert_eq!(capabilities(Task::Generate, template), ["completion", "tools", "thinking"]);
        assert_eq!(capabilities(Task::Embed, ""), ["embedding"]);
        assert!(capabilities(Task::Rerank, "").is_empty());
    }

    #[test]
    fn parameters_are_counted_in_millions_or_billions() {
        assert_eq!(parameter_size(134_515_008), "134.5M");
        assert_eq!(parameter_size(7_615_616_512), "7.6B");
    }
}
