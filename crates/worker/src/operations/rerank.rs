//! Reranking, similarity and late interaction.

use std::sync::Arc;

use sconce::core::batch::OutputKind;
use sconce::{Model, RankedDocument, RerankOptions, Task, cosine, maxsim, ranking, sparse_dot};
use sconce_http::refusal::Refusal;

use crate::errors::refusal;
use crate::operations::context::{RequestContext, invalid};
use crate::operations::embed::{Vectors, embed, embed_sparse, lengths, matrices, one};
use crate::operations::enqueue::compute;
use crate::operations::inputs::Inputs;
use crate::operations::response::Deferred;
use crate::schedule::job::Collected;
use crate::state::slot::Host;

/// Documents, best first.
pub(crate) async fn rerank(
    context: &RequestContext,
    host: &Arc<Host>,
    query: Arc<str>,
    documents: Arc<[String]>,
    options: RerankOptions,
    truncates: bool,
) -> Result<Deferred<Vec<RankedDocument>>, Refusal> {
    context.refuse_chunks()?;
    let task = host.model.check_rerank(&options).map_err(refusal)?;
    let top = options.top;
    let scores = if task == Task::Tokens {
        if options.scoring.is_some() {
            return Err(invalid("scores of best matches are raw: no `raw_scores`"));
        }
        best_matches(context, host, query, documents, truncates).await?
    } else {
        let mut bytes = lengths(&documents);
        context.check_sizes(&bytes, query.len())?;
        for bytes in &mut bytes {
            *bytes += query.len();
        }
        let (asked, given) = (options.clone(), documents);
        let encode =
            move |model: &Model, at: usize| one(model.encode_ranking(&query, &given[at..=at], &asked));
        let answered = compute(context, host, &bytes, OutputKind::Pooled, truncates, encode).await?;
        let host = Arc::clone(host);
        let score = move |kept: &Collected| match kept {
            Collected::Rows(row, _) => host.model.relevance(row, &options),
            Collected::Nothing | Collected::Words(_) => f32::NAN,
        };
        answered.defer(move |kept, _| kept.iter().map(score).collect::<Vec<f32>>())
    };
    Ok(scores.map(move |scores| ranking(&scores, top)))
}

/// How well the tokens of each document match those of the query.
async fn best_matches(
    context: &RequestContext,
    host: &Arc<Host>,
    query: Arc<str>,
    documents: Arc<[String]>,
    truncates: bool,
) -> Result<Deferred<Vec<f32>>, Refusal> {
    let mut bytes = lengths(&documents);
    context.check_sizes(&bytes, 0)?;
    context.check_sizes(&[query.len()], 0)?;
    bytes.insert(0, query.len());
    let encode = move |model: &Model, at: usize| match at {
        0 => one(model.encode_queries(&[&*query])),
        at => one(model.encode_documents(&documents[at - 1..at])),
    };
    let answered = compute(context, host, &bytes, OutputKind::Projected, truncates, encode).await?;
    // Each token of the query meets each row.
    let meetings = answered.job.texts.first().map_or(0, |query| query.ids.len()) * answered.work.tokens;
    let (host, width) = (Arc::clone(host), host.model.card().width());
    let deferred = answered.defer(move |kept, job| {
        let mut matrices = matrices(&host, &kept, job, true);
        let query = matrices.next().unwrap_or_default();
        matrices.map(|document| maxsim(&query, &document)).collect()
    });
    Ok(deferred.and_bytes(meetings * width))
}

/// How alike `text` is to each of `others`.
pub(crate) async fn similarity(
    context: &RequestContext,
    host: &Arc<Host>,
    text: String,
    others: Vec<String>,
    named: Option<String>,
    truncates: bool,
) -> Result<Deferred<Vec<f32>>, Refusal> {
    let task =
        host.model.expect_task("similarity", &[Task::Embed, Task::Sparse, Task::Tokens]).map_err(refusal)?;
    context.check_sizes(&lengths(&others), 0)?;
    if task == Task::Tokens {
        return best_matches(context, host, text.into(), others.into(), truncates).await;
    }
    let inputs = Inputs::Texts(std::iter::once(text).chain(others).collect());
    if task == Task::Sparse {
        let words = embed_sparse(context, host, inputs, named, truncates).await?;
        return Ok(words.map(|texts| texts[1..].iter().map(|other| sparse_dot(&texts[0], other)).collect()));
    }
    let asked = Vectors { truncates, prompt: named, dimensions: None, normalize: None };
    let vectors = embed(context, host, Arc::new(inputs), asked).await?;
    Ok(vectors.map(|vectors| vectors[1..].iter().map(|other| cosine(&vectors[0], other)).collect()))
}
