//! Reranking and similarity, by cross-encoders, vectors or late interaction.

use std::sync::Arc;

use sconce::core::batch::OutputKind;
use sconce::operations::{late_interaction, rerank, similarity};
use sconce::{Model, Prompt, RankedDocument, RerankOptions, SimilarityOptions, Task};
use sconce_http::refusal::Refusal;

use crate::errors::refusal;
use crate::operations::context::{RequestContext, invalid};
use crate::operations::embed::prompt;
use crate::operations::enqueue::compute;
use crate::operations::response::Deferred;
use crate::state::slot::LoadedModel;

/// Documents in descending order of relevance.
pub(crate) async fn rerank(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    query: Arc<str>,
    documents: Arc<[String]>,
    options: RerankOptions,
    truncates: bool,
) -> Result<Deferred<Vec<RankedDocument>>, Refusal> {
    context.refuse_chunks()?;
    let task = rerank::check(loaded.model.card(), &options).map_err(refusal)?;
    let top = options.top;
    let scores = if task == Task::Tokens {
        if options.scoring.is_some() {
            return Err(invalid("MaxSim scores are raw: no `raw_scores`"));
        }
        let options = SimilarityOptions::default();
        compare(context, loaded, query, documents, options, truncates).await?
    } else {
        let mut bytes = lengths(&documents);
        context.check_sizes(&bytes, query.len())?;
        for bytes in &mut bytes {
            *bytes += query.len();
        }
        let own = options.clone();
        let encode =
            move |model: &Model, at: usize| rerank::sequence(model.context(), &query, &documents[at], &own);
        let rows = compute(context, loaded, &bytes, OutputKind::Pooled, truncates, encode).await?;
        let loaded = Arc::clone(loaded);
        rows.defer(move |outputs, _| rerank::scores(loaded.model.card(), &outputs, &options))
    };
    Ok(scores.map(move |scores| rerank::ranking(&scores, top)))
}

/// The similarity of `text` to each of `others`.
pub(crate) async fn similarity(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    text: String,
    others: Vec<String>,
    name: Option<String>,
    truncates: bool,
) -> Result<Deferred<Vec<f32>>, Refusal> {
    let prompt: Prompt = prompt(loaded, name, false)?.into();
    let options = SimilarityOptions { prompt: prompt.clone(), other_prompt: prompt };
    context.refuse_chunks()?;
    compare(context, loaded, text.into(), others.into(), options, truncates).await
}

/// The similarity of a query to each document.
async fn compare(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    query: Arc<str>,
    documents: Arc<[String]>,
    options: SimilarityOptions,
    truncates: bool,
) -> Result<Deferred<Vec<f32>>, Refusal> {
    similarity::check(loaded.model.card(), &options).map_err(refusal)?;
    let mut bytes = lengths(&documents);
    context.check_sizes(&bytes, 0)?;
    context.check_sizes(&[query.len()], 0)?;
    bytes.insert(0, query.len());
    let encode = move |model: &Model, at: usize| {
        let text = if at == 0 { &*query } else { documents[at - 1].as_str() };
        similarity::sequence(model.context(), &options, text, at > 0)
    };
    let output_kind = loaded.model.context().output_kind();
    let rows = compute(context, loaded, &bytes, output_kind, truncates, encode).await?;
    let work = late_interaction::scoring_bytes(loaded.model.card(), &rows.job.texts);
    let more = if output_kind == OutputKind::Projected { work } else { 0 };
    let loaded = Arc::clone(loaded);
    let scores =
        rows.defer(move |outputs, sequences| similarity::scores(loaded.model.context(), sequences, outputs));
    Ok(scores.and_bytes(more))
}

fn lengths(texts: &[String]) -> Vec<usize> {
    texts.iter().map(String::len).collect()
}
