//! The description of all routes, made from their code.

use axum::Json;
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;

use crate::routes::{cohere, meta, openai, rerank, tei, text};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "sconce",
        description = "Embedding, reranking and classifying, for the clients that people already have"
    ),
    paths(
        tei::root,
        tei::embed,
        tei::embed_all,
        tei::embed_sparse,
        tei::rerank,
        tei::predict,
        tei::similarity,
        text::tokenize,
        text::decode,
        openai::embeddings,
        openai::models,
        openai::model,
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
        meta::drain,
    )
)]
struct Description;

/// The description.
pub(crate) async fn serve() -> Response {
    Json(Description::openapi()).into_response()
}
