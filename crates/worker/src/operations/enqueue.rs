//! From texts to output rows: tokenized on the text threads, admitted to the queue, awaited.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sconce::core::batch::OutputKind;
use sconce::operations::SequenceOutput;
use sconce::tokenize::TokenSequence;
use sconce::{Error, Model, Task, Truncation};
use sconce_http::keys::Principal;
use sconce_http::memory_budget::RequestMemory;
use sconce_http::refusal::{Kind, Refusal};
use tokio::sync::oneshot;

use crate::errors::refusal;
use crate::operations::context::{RequestContext, overloaded, processing_failed};
use crate::operations::response::Deferred;
use crate::schedule::job::{Job, Outcome};
use crate::schedule::next_batch::Priority;
use crate::state::app::App;
use crate::state::slot::LoadedModel;
use crate::state::work::{Steps, Work};

/// Seconds of measured work above which a request of several texts is bulk.
const BULK: f64 = 0.1;
/// Share of the queue's seconds above which a request is bulk, whatever its header says.
const INTERACTIVE_SHARE: f64 = 0.25;

/// The output rows of a request's texts, and what they took.
pub(crate) struct Rows {
    pub(crate) job: Arc<Job>,
    pub(crate) outputs: Vec<SequenceOutput>,
    pub(crate) work: Work,
}

impl Rows {
    /// A result that is built of the sequences and their outputs when it is written.
    pub(super) fn defer<T: 'static>(
        self,
        build: impl FnOnce(Vec<SequenceOutput>, &[TokenSequence]) -> T + Send + 'static,
    ) -> Deferred<T> {
        let Rows { job, outputs, work } = self;
        let bytes = outputs.iter().map(SequenceOutput::json_bytes).sum();
        Deferred::new(work, bytes, move || build(outputs, &job.texts))
    }
}

/// Counts a request as cancelled if its future is dropped before it has a result.
struct PendingRequest {
    app: Arc<App>,
    model: String,
    finished: AtomicBool,
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if !self.finished.load(Ordering::Relaxed) {
            self.app.metrics.cancelled.with_label_values(&[&self.model]).inc();
        }
    }
}

/// Who sent a request, and the priority that its header names.
type Sender = (Principal, Option<Priority>);

/// Tokenizes texts whose lengths are `bytes`, and computes their rows; `encode` tokenizes the text at an index. The
/// thread that tokenized the last text admits all to the queue, so that no other thread is woken in between.
pub(crate) async fn compute(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    bytes: &[usize],
    output_kind: OutputKind,
    truncates: bool,
    encode: impl Fn(&Model, usize) -> Result<TokenSequence, Error> + Send + Sync + 'static,
) -> Result<Rows, Refusal> {
    let start = Instant::now();
    let (app, memory) = (Arc::clone(&context.app), context.memory.clone());
    let sender = (context.principal, context.priority);
    // The loaded model is held, not its inner `Model`: it is unloaded once nothing holds it.
    let (loaded, own) = (Arc::clone(loaded), Arc::clone(loaded));
    let each = move |texts: Range<usize>| {
        texts.map(|at| encode(&own.model, at)).collect::<Result<Vec<_>, Error>>().map_err(refusal)
    };
    // Dropped with this future when the client leaves.
    let (model, finished) = (loaded.name.clone(), AtomicBool::new(false));
    let pending = Arc::new(PendingRequest { app: Arc::clone(&app), model, finished });
    let client = Arc::downgrade(&pending);
    let then = move |texts: Vec<Vec<TokenSequence>>| {
        if client.strong_count() == 0 {
            return Err(processing_failed());
        }
        admit(app, loaded, texts.concat(), output_kind, truncates, sender, &memory, start)
    };
    let computed = async {
        let (ticket, work) = context.on_text_threads(bytes, each, then).await?;
        Ok((work, ticket.wait().await?))
    };
    let computed = computed.await;
    pending.finished.store(true, Ordering::Relaxed);
    let (work, (job, outcome)) = computed?;
    let Outcome { outputs, placements, classes, incidents, queued, computing, batches } = outcome;
    let tokenized = start + work.tokenizing;
    let steps = Some(Steps { arrived: start, tokenized, queued: job.arrived, batches });
    let work = Work { placements, classes, incidents, queued, computing, steps, ..work };
    Ok(Rows { job, outputs, work })
}

/// The priority of a request of `texts` that take `seconds` of measured work, where `queued` seconds may wait.
fn priority_of(header: Option<Priority>, texts: usize, seconds: f64, queued: f64) -> Priority {
    let most = (INTERACTIVE_SHARE * queued).max(BULK);
    match header {
        Some(Priority::Bulk) => Priority::Bulk,
        // One request must not fill the interactive list.
        _ if seconds > most => Priority::Bulk,
        None if texts > 1 && seconds > BULK => Priority::Bulk,
        None | Some(Priority::Interactive) => Priority::Interactive,
    }
}

/// Admits tokenized texts to the queue of their model. Tokenizing began at `start`.
#[expect(clippy::too_many_arguments, reason = "what a request is made of")]
fn admit(
    app: Arc<App>,
    loaded: Arc<LoadedModel>,
    texts: Vec<TokenSequence>,
    output_kind: OutputKind,
    truncates: bool,
    (principal, header): Sender,
    memory: &RequestMemory,
    start: Instant,
) -> Result<(Ticket, Work), Refusal> {
    let mut work = Work { model: loaded.name.clone(), texts: texts.len(), ..Work::default() };
    work.tokenizing = start.elapsed();
    work.tokens = texts.iter().map(|text| text.ids.len()).sum();
    work.truncated = truncated(&texts);
    if let (Some(cut), false) = (work.truncated.first(), truncates) {
        return Err(Refusal::new(
            Kind::TooLong,
            format!(
                "the model accepts {} tokens, and input {} has {}; set `truncate` to true to truncate it",
                cut.used, cut.index, cut.tokens
            ),
        ));
    }
    let (card, settings) = (loaded.model.card(), app.settings());
    let (most, hidden) = (settings.max_values, card.sizes.value.hidden);
    let sparse = card.task.value == Task::Sparse;
    let values = match output_kind {
        // The weights of a sparse vector are counted when they are known.
        OutputKind::Pooled if sparse => 0,
        OutputKind::Pooled => work.texts * card.width(),
        OutputKind::Tokens | OutputKind::Logits => work.tokens * hidden,
        OutputKind::Projected => work.tokens * card.width(),
    };
    if output_kind != OutputKind::Pooled && values > most {
        let message = format!("a response has at most {most} values; this one would have {values}");
        return Err(Refusal::new(Kind::TooLarge, message));
    }
    // Rows, and the ids and types of tokens.
    let reservation = memory.reserve(4 * values + 8 * work.tokens)?;
    app.edge.charge(principal, work.tokens)?;
    let seconds = loaded.queue.rate().seconds(work.tokens);
    let priority = priority_of(header, work.texts, seconds, settings.queue_seconds);
    let (job, outcome) = Job::new(texts, output_kind, priority, sparse, principal.tenant);
    let job = Arc::new(job.with_reservation(reservation));
    loaded.queue.admit(&job).map_err(|error| {
        app.edge.refund(principal, work.tokens);
        overloaded(error)
    })?;
    Ok((Ticket { app, loaded, job, outcome, done: false }, work))
}

fn truncated(texts: &[TokenSequence]) -> Vec<Truncation> {
    let cut = texts.iter().enumerate().filter(|(_, text)| text.is_truncated());
    cut.map(|(index, text)| Truncation { index, tokens: text.full_length, used: text.ids.len() }).collect()
}

/// A job in the queue, cancelled if this is dropped before the job is done.
struct Ticket {
    app: Arc<App>,
    loaded: Arc<LoadedModel>,
    job: Arc<Job>,
    outcome: oneshot::Receiver<Result<Outcome, Refusal>>,
    done: bool,
}

impl Ticket {
    /// Waits for the outcome of the job.
    async fn wait(mut self) -> Result<(Arc<Job>, Outcome), Refusal> {
        let outcome = (&mut self.outcome).await;
        self.done = true;
        let outcome = outcome.map_err(|_| Refusal::new(Kind::NotReady, "the server is stopping"))??;
        Ok((Arc::clone(&self.job), outcome))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.done {
            let spared = self.loaded.queue.cancel(&self.job);
            let name = [self.loaded.name.as_str()];
            self.app.metrics.cancelled_tokens.with_label_values(&name).inc_by(spared as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_the_cap_a_request_is_bulk_whatever_its_header_says() {
        use Priority::{Bulk, Interactive};
        // Two seconds may wait, so that half a second is the cap.
        for (asked, texts, seconds, expected) in [
            (None, 1, 0.01, Interactive),
            (None, 1, 0.5, Interactive),
            (None, 1, 0.51, Bulk),
            (None, 2, 0.1, Interactive),
            (None, 2, 0.11, Bulk),
            (Some(Interactive), 2, 0.11, Interactive),
            (Some(Interactive), 9, 0.5, Interactive),
            (Some(Interactive), 9, 0.51, Bulk),
            (Some(Interactive), 1, 0.51, Bulk),
            (Some(Bulk), 1, 0.01, Bulk),
        ] {
            assert_eq!(priority_of(asked, texts, seconds, 2.0), expected, "{asked:?} {texts} {seconds}");
        }
        assert_eq!(priority_of(Some(Interactive), 2, 0.1, 0.001), Interactive, "a short queue");
    }
}
