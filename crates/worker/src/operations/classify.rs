//! Classification of texts and pairs.

use std::sync::Arc;

use sconce::core::batch::OutputKind;
use sconce::operations::classify;
use sconce::{ClassifyOptions, LabelScore, Model, Scoring};
use sconce_http::refusal::Refusal;

use crate::errors::refusal;
use crate::operations::context::RequestContext;
use crate::operations::enqueue::compute;
use crate::operations::response::Deferred;
use crate::state::slot::LoadedModel;

/// The labels of each text or pair, in descending order of score.
pub(crate) async fn classify(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    sequences: Vec<(String, Option<String>)>,
    scoring: Option<Scoring>,
    truncates: bool,
) -> Result<Deferred<Vec<Vec<LabelScore>>>, Refusal> {
    context.refuse_chunks()?;
    classify::check(loaded.model.card()).map_err(refusal)?;
    let length =
        |(first, second): &(String, Option<String>)| first.len() + second.as_ref().map_or(0, String::len);
    let bytes: Vec<usize> = sequences.iter().map(length).collect();
    context.check_sizes(&bytes, 0)?;
    let options = ClassifyOptions { scoring, ..ClassifyOptions::default() };
    let truncation = options.truncation;
    let encode = move |model: &Model, at: usize| match &sequences[at] {
        (first, None) => classify::sequence(model.context(), first),
        (first, Some(second)) => classify::pair_sequence(model.context(), first, second, truncation),
    };
    let rows = compute(context, loaded, &bytes, OutputKind::Pooled, truncates, encode).await?;
    let (loaded, more) = (Arc::clone(loaded), classify::json_bytes(loaded.model.card(), bytes.len()));
    let labels =
        rows.defer(move |outputs, _| classify::classifications(loaded.model.card(), &outputs, &options));
    Ok(labels.and_bytes(more))
}
