//! The `OpenAPI` description of all routes, generated from code.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa::openapi::{Server, ServerBuilder, ServerVariableBuilder};

use crate::api::{
    anthropic, catalog, chat, cohere, completions, console, llama_cpp, meta, ollama, openai, operator,
    rerank, responses, tei, text,
};
use crate::state::app::App;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "sconce",
        description = "Embedding, reranking, classification and text generation with the APIs of TEI, OpenAI, Anthropic, Ollama, Cohere and Jina"
    ),
    paths(
        tei::root,
        tei::embed,
        tei::embed_all,
        tei::embed_sparse,
        tei::rerank,
        tei::predict,
        tei::similarity,
        llama_cpp::apply_template,
        text::tokenize,
        text::decode,
        openai::embeddings,
        openai::embeddings_short,
        openai::models,
        openai::model,
        catalog::load,
        catalog::unload,
        catalog::fit,
        chat::completions,
        completions::completions,
        responses::responses,
        anthropic::messages,
        anthropic::count_tokens,
        ollama::generate::chat,
        ollama::generate::generate,
        ollama::embed::embed,
        ollama::embed::embeddings,
        ollama::models::tags,
        ollama::models::show,
        ollama::models::ps,
        ollama::models::version,
        rerank::first,
        rerank::second,
        cohere::embed,
        meta::info,
        meta::health,
        meta::livez,
        meta::readyz,
        meta::startupz,
        meta::metrics,
        meta::report,
        operator::drain,
        operator::pause,
        operator::resume,
        serve,
        console::page,
    )
)]
struct Description;

/// The `OpenAPI` description of all routes.
#[utoipa::path(get, path = "/openapi.json", tag = "operation", responses((status = 200)))]
pub(crate) async fn serve(State(app): State<Arc<App>>) -> Response {
    let mut description = Description::openapi();
    description.servers = Some(servers(&app));
    Json(description).into_response()
}

/// Base URLs: the root, and the prefix of each model.
fn servers(app: &App) -> Vec<Server> {
    let slots = app.slots();
    let names: Vec<&str> = slots.iter().map(|slot| slot.name.as_str()).collect();
    let first = names.first().copied().unwrap_or_default();
    let variable = ServerVariableBuilder::new().default_value(first).enum_values(Some(names.iter().copied()));
    let one = ServerBuilder::new()
        .url("/models/{model}")
        .description(Some("All routes for one model; requests need not name it"))
        .parameter("model", variable);
    vec![Server::new("/"), one.build()]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::router::routes;

    #[test]
    fn every_route_is_described_and_nothing_else() {
        // axum and OpenAPI write the rest of a path in different ways.
        let routes: BTreeSet<String> = routes().iter().map(|(path, _)| path.replace("{*", "{")).collect();
        let described: BTreeSet<String> = Description::openapi().paths.paths.into_keys().collect();
        assert_eq!(routes, described);
    }
}
