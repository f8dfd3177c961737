//! Classification of texts and pairs.

use std::sync::Arc;

use sconce::core::batch::OutputKind;
use sconce::{ClassifyOptions, LabelScore, Model, Prompt, Scoring, Task, TruncationStrategy};
use sconce_http::refusal::Refusal;

use crate::errors::refusal;
use crate::operations::context::RequestContext;
use crate::operations::embed::one;
use crate::operations::enqueue::compute;
use crate::operations::response::Deferred;
use crate::schedule::job::Collected;
use crate::state::slot::Host;

/// Bytes of a label as JSON, at least.
const LABEL: usize = 40;

/// The labels of each text or pair, the best first.
pub(crate) async fn classify(
    context: &RequestContext,
    host: &Arc<Host>,
    sequences: Vec<(String, Option<String>)>,
    scoring: Option<Scoring>,
    truncates: bool,
) -> Result<Deferred<Vec<Vec<LabelScore>>>, Refusal> {
    context.refuse_chunks()?;
    host.model.expect_task("predict", &[Task::Classify]).map_err(refusal)?;
    let bytes: Vec<usize> = sequences
        .iter()
        .map(|(first, second)| first.len() + second.as_ref().map_or(0, String::len))
        .collect();
    context.check_sizes(&bytes, 0)?;
    let options = ClassifyOptions { scoring, truncation: TruncationStrategy::LongestFirst };
    let encode = move |model: &Model, at: usize| match &sequences[at] {
        (first, None) => one(model.encode_texts(&Prompt::NONE, &[first])),
        (first, Some(second)) => {
            one(model.encode_pairs(&[(first, second)], TruncationStrategy::LongestFirst))
        }
    };
    let answered = compute(context, host, &bytes, OutputKind::Pooled, truncates, encode).await?;
    let (host, texts) = (Arc::clone(host), bytes.len());
    let written = LABEL * texts * host.model.card().width();
    let labels = move |kept: &Collected| match kept {
        Collected::Rows(row, _) => host.model.labels(row, &options),
        Collected::Nothing | Collected::Words(_) => Vec::new(),
    };
    Ok(answered.defer(move |kept, _| kept.iter().map(labels).collect()).and_bytes(written))
}
