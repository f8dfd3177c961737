//! The rerank routes of Cohere and Jina, whose requests and responses are nearly identical.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use sconce::{RerankOptions, Task};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::api::handle::handle;
use crate::api::openai::Usage;
use crate::operations;
use crate::operations::context::{RequestContext, invalid};
use crate::operations::inputs::{BoundedVec, Document, Values};
use crate::operations::response::{self, Answer};
use crate::state::app::App;
use crate::state::slot::LoadedModel;
use sconce_http::refusal::{Dialect, Refusal};

/// Documents to rank by relevance to a query.
#[derive(Deserialize, ToSchema)]
pub(crate) struct RankBody {
    model: Option<String>,
    query: String,
    #[schema(value_type = Vec<String>)]
    documents: BoundedVec<Document>,
    /// Maximum number of results.
    top_n: Option<usize>,
    /// Whether results include the documents. Default: true for Jina's clients, false for Cohere's.
    return_documents: Option<bool>,
    /// Cohere's truncation limit. Only values of at least the maximum length of the model are supported.
    max_tokens_per_doc: Option<usize>,
    /// Cohere's chunking of long documents. Only 1 is supported.
    max_chunks_per_doc: Option<usize>,
    /// Cohere's document fields. Only `text` is supported.
    #[schema(value_type = Option<Vec<String>>)]
    rank_fields: Option<Values<String>>,
    /// The instruction, for models that take one.
    instruction: Option<String>,
    /// Whether long documents are truncated. Default: true.
    truncate: Option<bool>,
}

/// Ranked documents, best first, with the fields of both Cohere and Jina.
#[derive(Serialize, ToSchema)]
pub(crate) struct Ranking {
    id: String,
    model: String,
    results: Vec<RankResult>,
    meta: Meta,
    usage: Usage,
}

/// The score of a document.
#[derive(Serialize, ToSchema)]
pub(crate) struct RankResult {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RankDocument>,
}

/// A document.
#[derive(Serialize, ToSchema)]
pub(crate) struct RankDocument {
    text: String,
}

/// Cohere's response metadata.
#[derive(Serialize, ToSchema)]
pub(crate) struct Meta {
    api_version: Version,
    billed_units: Billed,
}

/// The version of Cohere's API.
#[derive(Serialize, ToSchema)]
pub(crate) struct Version {
    version: &'static str,
}

/// Cohere's billed units.
#[derive(Serialize, ToSchema)]
pub(crate) struct Billed {
    search_units: usize,
}

/// Ranks documents by relevance to a query (Cohere v1 and Jina).
#[utoipa::path(post, path = "/v1/rerank", tag = "Cohere and Jina", request_body = RankBody, responses((status = 200, body = Ranking), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn first(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Cohere, "rerank", request, |context, body: RankBody| async move {
        let cohere = context.from_cohere || body.rank_fields.is_some() || body.max_chunks_per_doc.is_some();
        let documents = body.return_documents.unwrap_or(!cohere);
        answer(context, body, documents, "1").await
    })
    .await
}

/// Ranks documents by relevance to a query (Cohere v2).
#[utoipa::path(post, path = "/v2/rerank", tag = "Cohere and Jina", request_body = RankBody, responses((status = 200, body = Ranking), (status = 400), (status = 404), (status = 429)))]
pub(crate) async fn second(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Cohere, "rerank", request, |context, body: RankBody| async move {
        let documents = body.return_documents.unwrap_or(false);
        answer(context, body, documents, "2").await
    })
    .await
}

async fn answer(
    context: RequestContext,
    body: RankBody,
    return_documents: bool,
    version: &'static str,
) -> Result<Answer, Refusal> {
    let loaded = context.loaded(body.model.as_deref(), &[Task::Rerank, Task::Tokens]).await?;
    check(&loaded, &body)?;
    let options =
        RerankOptions { top: body.top_n, instruction: body.instruction, ..RerankOptions::default() };
    let truncates = context.truncates(body.truncate, true);
    let documents: Arc<[String]> = body.documents.0.into_iter().map(|document| document.0).collect();
    let query: Arc<str> = body.query.into();
    let (own_query, own_documents) = (Arc::clone(&query), Arc::clone(&documents));
    let answer = operations::rerank(&context, &loaded, own_query, own_documents, options, truncates).await?;
    let (model, usage) = (loaded.name.clone(), Usage::of(answer.work.tokens));
    let bytes = documents.iter().map(String::len).sum();
    let answer = answer.and_bytes(bytes).map(move |ranked| {
        let results = ranked.into_iter().map(|ranked| RankResult {
            index: ranked.index,
            relevance_score: ranked.score,
            document: return_documents.then(|| RankDocument { text: documents[ranked.index].clone() }),
        });
        Ranking {
            id: id(&query, &documents),
            model,
            results: results.collect(),
            meta: Meta { api_version: Version { version }, billed_units: Billed { search_units: 1 } },
            usage,
        }
    });
    response::write(&context, answer).await
}

/// Rejects unsupported options that would change the scores.
fn check(loaded: &LoadedModel, body: &RankBody) -> Result<(), Refusal> {
    let length = loaded.model.card().max_length.value;
    if let Some(tokens) = body.max_tokens_per_doc.filter(|&tokens| tokens < length) {
        return Err(invalid(format!(
            "`max_tokens_per_doc` below the maximum length of the model, {length} tokens, is not supported: \
             {tokens}"
        )));
    }
    if let Some(chunks) = body.max_chunks_per_doc.filter(|&chunks| chunks != 1) {
        return Err(invalid(format!("`max_chunks_per_doc` must be 1: {chunks}")));
    }
    if body.rank_fields.as_ref().is_some_and(|fields| !fields.0.iter().eq(["text"])) {
        return Err(invalid("`rank_fields` must be [\"text\"]"));
    }
    Ok(())
}

/// A response id derived from the request: equal requests have equal ids.
pub(super) fn id(query: &str, documents: &[String]) -> String {
    let mut hash = Sha256::new();
    for text in std::iter::once(query).chain(documents.iter().map(String::as_str)) {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    let hash = hash.finalize();
    let digits = hash.iter().take(16).fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"));
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}
