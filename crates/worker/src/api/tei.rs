//! The routes of Text Embeddings Inference (TEI).

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use sconce::{RerankOptions, Scoring, Task};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::handle::handle;
use crate::operations::context::{ANY, ModelChoice, RequestContext, invalid};
use crate::operations::inputs::{BoundedVec, Inputs, InputsOr, Sequences};
use crate::operations::response::{self, Answer};
use crate::operations::{self, Vectors};
use crate::state::app::App;
use sconce_http::refusal::{Dialect, Refusal};

/// Texts to embed.
#[derive(Deserialize, ToSchema)]
pub(crate) struct EmbedBody<I> {
    #[schema(value_type = Object, example = "What is Deep Learning?")]
    pub(crate) inputs: I,
    /// Whether long texts are truncated. Default: true.
    pub(crate) truncate: Option<bool>,
    /// Only `right` is supported.
    pub(crate) truncation_direction: Option<String>,
    /// The name of one of the prompts of the model.
    pub(crate) prompt_name: Option<String>,
    /// Whether embeddings are L2-normalized. Default: true.
    pub(crate) normalize: Option<bool>,
    /// Truncated dimension, for models trained with Matryoshka representation learning.
    pub(crate) dimensions: Option<usize>,
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<Parameters>,
}

/// Options that some clients send in an object of their own.
#[derive(Deserialize, Default, ToSchema)]
pub(crate) struct Parameters {
    pub(crate) truncate: Option<bool>,
    pub(crate) truncation_direction: Option<String>,
    pub(crate) prompt_name: Option<String>,
}

/// A sentence and those that it is compared with.
#[derive(Deserialize, ToSchema)]
pub(crate) struct Sentences {
    pub(crate) source_sentence: String,
    #[schema(value_type = Vec<String>)]
    pub(crate) sentences: BoundedVec<String>,
}

/// Sentences to compare.
#[derive(Deserialize, ToSchema)]
pub(crate) struct SimilarityBody {
    pub(crate) inputs: Sentences,
    pub(crate) parameters: Option<Parameters>,
}

/// Texts to rank by relevance to a query.
#[derive(Deserialize, ToSchema)]
pub(crate) struct RerankBody {
    pub(crate) query: String,
    #[schema(value_type = Vec<String>)]
    pub(crate) texts: BoundedVec<String>,
    /// Whether scores are raw logits.
    #[serde(default)]
    pub(crate) raw_scores: bool,
    /// Whether results include the texts.
    #[serde(default)]
    pub(crate) return_text: bool,
    pub(crate) truncate: Option<bool>,
    pub(crate) truncation_direction: Option<String>,
}

/// Texts or pairs to classify.
#[derive(Deserialize, ToSchema)]
pub(crate) struct PredictBody {
    #[schema(value_type = Object, example = "What is Deep Learning?")]
    pub(crate) inputs: Sequences,
    #[serde(default)]
    pub(crate) raw_scores: bool,
    pub(crate) truncate: Option<bool>,
    pub(crate) truncation_direction: Option<String>,
}

/// A ranked text.
#[derive(Serialize, ToSchema)]
pub(crate) struct Rank {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    score: f32,
}

/// The score of a label.
#[derive(Serialize, ToSchema)]
pub(crate) struct Prediction {
    score: f32,
    label: String,
}

/// The weight of a vocabulary entry.
#[derive(Serialize, ToSchema)]
pub(crate) struct SparseValue {
    index: u32,
    value: f32,
}

/// Predictions of one input or of several.
#[derive(Serialize)]
#[serde(untagged)]
enum Predictions {
    One(Vec<Prediction>),
    Many(Vec<Vec<Prediction>>),
}

fn check_direction(direction: Option<&str>) -> Result<(), Refusal> {
    match direction {
        None => Ok(()),
        Some(direction) if direction.eq_ignore_ascii_case("right") => Ok(()),
        Some(_) => Err(invalid("`truncation_direction` must be `right`")),
    }
}

/// Dispatches by the task of the model, for Hugging Face clients.
///
/// Dispatches to `/embed` if several models are served and none is named.
#[utoipa::path(post, path = "/", tag = "TEI",
    request_body(content = Object, example = json!({ "inputs": "On a sconce." })), responses((status = 200), (status = 424), (status = 429)))]
pub(crate) async fn root(state: State<Arc<App>>, request: Request) -> Response {
    let loaded = ModelChoice::of(request.headers(), request.extensions()).loaded(&state, None, &ANY).await;
    let task = loaded.map(|loaded| loaded.model.card().task.value);
    match task {
        Ok(Task::Rerank) => rerank(state, request).await,
        Ok(Task::Classify) => predict(state, request).await,
        Ok(Task::Sparse) => embed_sparse(state, request).await,
        Ok(Task::Tokens) => embed_all(state, request).await,
        Ok(Task::Embed | Task::Generate) | Err(_) => {
            handle(
                state.0,
                Dialect::Tei,
                "embed",
                request,
                |context, body: EmbedBody<InputsOr<Sentences>>| async move {
                    let EmbedBody {
                        inputs,
                        truncate,
                        truncation_direction,
                        prompt_name,
                        normalize,
                        dimensions,
                        parameters,
                    } = body;
                    match inputs {
                        InputsOr::Inputs(inputs) => {
                            let body = EmbedBody {
                                inputs,
                                truncate,
                                truncation_direction,
                                prompt_name,
                                normalize,
                                dimensions,
                                parameters,
                            };
                            answer_embed(context, body).await
                        }
                        InputsOr::Other(inputs) => {
                            let own = Parameters { truncate, truncation_direction, prompt_name };
                            let body = SimilarityBody { inputs, parameters: Some(parameters.unwrap_or(own)) };
                            answer_similarity(context, body).await
                        }
                    }
                },
            )
            .await
        }
    }
}

/// Embeds texts.
#[utoipa::path(post, path = "/embed", tag = "TEI", request_body = EmbedBody<String>, responses((status = 200, body = Vec<Vec<f32>>), (status = 422), (status = 424), (status = 429)))]
pub(crate) async fn embed(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Tei, "embed", request, answer_embed).await
}

async fn answer_embed(context: RequestContext, body: EmbedBody<Inputs>) -> Result<Answer, Refusal> {
    let loaded = context.loaded(None, &[Task::Embed]).await?;
    // Some clients send these options in `parameters`.
    let parameters = body.parameters.unwrap_or_default();
    check_direction(body.truncation_direction.or(parameters.truncation_direction).as_deref())?;
    let options = Vectors {
        truncates: context.truncates(body.truncate.or(parameters.truncate), true),
        prompt: body.prompt_name.or(parameters.prompt_name).into(),
        dimensions: body.dimensions,
        normalize: Some(body.normalize.unwrap_or(true)),
    };
    response::write(&context, operations::embed(&context, &loaded, Arc::new(body.inputs), options).await?)
        .await
}

/// Embeds every token of texts.
#[utoipa::path(post, path = "/embed_all", tag = "TEI", request_body = EmbedBody<String>, responses((status = 200, body = Vec<Vec<Vec<f32>>>), (status = 422), (status = 424), (status = 429)))]
pub(crate) async fn embed_all(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Tei, "embed_all", request, |context, body: EmbedBody<Inputs>| async move {
        let loaded = context.loaded(None, &[Task::Embed, Task::Tokens]).await?;
        check_direction(body.truncation_direction.as_deref())?;
        if body.normalize.is_some() || body.dimensions.is_some() {
            return Err(invalid("token embeddings support neither `normalize` nor `dimensions`"));
        }
        let truncates = context.truncates(body.truncate, true);
        response::write(
            &context,
            operations::embed_all(&context, &loaded, body.inputs, body.prompt_name, truncates).await?,
        )
        .await
    })
    .await
}

/// Embeds texts as sparse vectors (SPLADE).
#[utoipa::path(post, path = "/embed_sparse", tag = "TEI", request_body = EmbedBody<String>, responses((status = 200, body = Vec<Vec<SparseValue>>), (status = 422), (status = 424), (status = 429)))]
pub(crate) async fn embed_sparse(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Tei, "embed_sparse", request, |context, body: EmbedBody<Inputs>| async move {
        let loaded = context.loaded(None, &[Task::Sparse]).await?;
        check_direction(body.truncation_direction.as_deref())?;
        if body.normalize.is_some() || body.dimensions.is_some() {
            return Err(invalid("sparse embeddings support neither `normalize` nor `dimensions`"));
        }
        let truncates = context.truncates(body.truncate, true);
        let answer =
            operations::embed_sparse(&context, &loaded, body.inputs, body.prompt_name, truncates).await?;
        let value = |weight: sconce::TokenWeight| SparseValue { index: weight.index, value: weight.value };
        let answer = answer.map(move |texts| -> Vec<Vec<SparseValue>> {
            texts.into_iter().map(|weights| weights.into_iter().map(value).collect()).collect()
        });
        response::write(&context, answer).await
    })
    .await
}

/// Ranks texts by relevance to a query.
#[utoipa::path(post, path = "/rerank", tag = "TEI", request_body = RerankBody, responses((status = 200, body = Vec<Rank>), (status = 422), (status = 424), (status = 429)))]
pub(crate) async fn rerank(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Tei, "rerank", request, |context, body: RerankBody| async move {
        let loaded = context.loaded(None, &[Task::Rerank, Task::Tokens]).await?;
        check_direction(body.truncation_direction.as_deref())?;
        let options =
            RerankOptions { scoring: body.raw_scores.then_some(Scoring::Raw), ..RerankOptions::default() };
        let truncates = context.truncates(body.truncate, true);
        let (texts, returned): (Arc<[String]>, bool) = (body.texts.0.into(), body.return_text);
        let answer =
            operations::rerank(&context, &loaded, body.query.into(), Arc::clone(&texts), options, truncates)
                .await?;
        let bytes = texts.iter().map(String::len).sum();
        let answer = answer.and_bytes(bytes).map(move |ranked| -> Vec<Rank> {
            let rank = |ranked: sconce::RankedDocument| Rank {
                index: ranked.index,
                text: returned.then(|| texts[ranked.index].clone()),
                score: ranked.score,
            };
            ranked.into_iter().map(rank).collect()
        });
        response::write(&context, answer).await
    })
    .await
}

/// Classifies texts or pairs.
#[utoipa::path(post, path = "/predict", tag = "TEI", request_body = PredictBody, responses((status = 200, body = Vec<Prediction>), (status = 422), (status = 424), (status = 429)))]
pub(crate) async fn predict(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Tei, "predict", request, |context, body: PredictBody| async move {
        let loaded = context.loaded(None, &[Task::Classify]).await?;
        check_direction(body.truncation_direction.as_deref())?;
        let many = body.inputs.many;
        let truncates = context.truncates(body.truncate, true);
        let scoring = body.raw_scores.then_some(Scoring::Raw);
        let answer =
            operations::classify(&context, &loaded, body.inputs.sequences, scoring, truncates).await?;
        let prediction =
            |labelled: sconce::LabelScore| Prediction { score: labelled.score, label: labelled.label };
        let answer = answer.map(move |texts| {
            let mut all: Vec<Vec<Prediction>> =
                texts.into_iter().map(|labels| labels.into_iter().map(prediction).collect()).collect();
            if many { Predictions::Many(all) } else { Predictions::One(all.remove(0)) }
        });
        response::write(&context, answer).await
    })
    .await
}

/// Similarity of a sentence to others.
#[utoipa::path(post, path = "/similarity", tag = "TEI", request_body = SimilarityBody, responses((status = 200, body = Vec<f32>), (status = 422), (status = 424), (status = 429)))]
pub(crate) async fn similarity(State(app): State<Arc<App>>, request: Request) -> Response {
    handle(app, Dialect::Tei, "similarity", request, answer_similarity).await
}

async fn answer_similarity(context: RequestContext, body: SimilarityBody) -> Result<Answer, Refusal> {
    let loaded = context.loaded(None, &[Task::Embed, Task::Sparse, Task::Tokens]).await?;
    let parameters = body.parameters.unwrap_or_default();
    check_direction(parameters.truncation_direction.as_deref())?;
    let truncates = context.truncates(parameters.truncate, true);
    let Sentences { source_sentence, sentences } = body.inputs;
    let answer = operations::similarity(
        &context,
        &loaded,
        source_sentence,
        sentences.0,
        parameters.prompt_name,
        truncates,
    )
    .await?;
    response::write(&context, answer).await
}
