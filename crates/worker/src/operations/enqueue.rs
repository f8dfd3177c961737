//! From texts to output rows: tokenized on the text threads, admitted to the queue, awaited.

use std::ops::Range;
use std::sync::Arc;
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
use crate::operations::context::{RequestContext, broken, full};
use crate::operations::response::Deferred;
use crate::schedule::job::{Job, Outcome};
use crate::schedule::next_batch::Priority;
use crate::state::app::App;
use crate::state::slot::Host;
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

/// Counts a request whose client left before its texts were in the queue.
struct Cancellation {
    app: Arc<App>,
    model: String,
    armed: bool,
}

impl Drop for Cancellation {
    fn drop(&mut self) {
        if self.armed {
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
    host: &Arc<Host>,
    bytes: &[usize],
    output_kind: OutputKind,
    truncates: bool,
    encode: impl Fn(&Model, usize) -> Result<TokenSequence, Error> + Send + Sync + 'static,
) -> Result<Rows, Refusal> {
    let start = Instant::now();
    let (app, memory) = (Arc::clone(&context.app), context.memory.clone());
    let sender = (context.principal, context.priority);
    // The host, not its model: a model is unloaded once nothing holds its host.
    let (host, own) = (Arc::clone(host), Arc::clone(host));
    let each = move |texts: Range<usize>| {
        texts.map(|at| encode(&own.model, at)).collect::<Result<Vec<_>, Error>>().map_err(refusal)
    };
    // Dropped with this future when the client leaves.
    let mut cancellation = Cancellation { app: Arc::clone(&app), model: host.name.clone(), armed: true };
    let alive = Arc::new(());
    let client = Arc::downgrade(&alive);
    let then = move |texts: Vec<Vec<TokenSequence>>| {
        if client.strong_count() == 0 {
            return Err(broken());
        }
        admit(app, host, texts.concat(), output_kind, truncates, sender, &memory, start)
    };
    let admitted = context.on_text_threads(bytes, each, then).await;
    cancellation.armed = false;
    drop(alive);
    let (ticket, work) = admitted?;
    let (job, outcome) = ticket.wait().await?;
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
    host: Arc<Host>,
    texts: Vec<TokenSequence>,
    output_kind: OutputKind,
    truncates: bool,
    (principal, header): Sender,
    memory: &RequestMemory,
    start: Instant,
) -> Result<(Ticket, Work), Refusal> {
    let mut work = Work { model: host.name.clone(), texts: texts.len(), ..Work::default() };
    work.tokenizing = start.elapsed();
    work.tokens = texts.iter().map(|text| text.ids.len()).sum();
    work.truncated = truncated(&texts);
    if let (Some(cut), false) = (work.truncated.first(), truncates) {
        return Err(Refusal::new(
            Kind::TooLong,
            format!(
                "the model takes {} tokens, and input {} has {}; to have it cut, say `truncate`: true",
                cut.used, cut.index, cut.tokens
            ),
        ));
    }
    let (card, settings) = (host.model.card(), app.settings());
    let (most, hidden) = (settings.max_numbers, card.sizes.value.hidden);
    let sparse = card.task.value == Task::Sparse;
    let values = match output_kind {
        // The weights of a sparse vector are counted when they are known.
        OutputKind::Pooled if sparse => 0,
        OutputKind::Pooled => work.texts * card.width(),
        OutputKind::Tokens => work.tokens * hidden,
        OutputKind::Projected => work.tokens * card.width(),
    };
    if output_kind != OutputKind::Pooled && values > most {
        let message = format!("an answer has at most {most} numbers; this one would have {values}");
        return Err(Refusal::new(Kind::TooLarge, message));
    }
    // Rows, and the ids and types of tokens.
    let reservation = memory.reserve(4 * values + 8 * work.tokens)?;
    app.edge.charge(principal, work.tokens)?;
    let seconds = host.queue.rate().seconds(work.tokens);
    let priority = priority_of(header, work.texts, seconds, settings.queue_seconds);
    let (job, outcome) = Job::new(texts, output_kind, priority, sparse, principal.tenant);
    let job = Arc::new(job.with_reservation(reservation));
    host.queue.admit(&job).map_err(|error| {
        app.edge.refund(principal, work.tokens);
        full(error)
    })?;
    Ok((Ticket { app, host, job, outcome, done: false }, work))
}

fn truncated(texts: &[TokenSequence]) -> Vec<Truncation> {
    let cut = texts.iter().enumerate().filter(|(_, text)| text.is_truncated());
    cut.map(|(index, text)| Truncation { index, tokens: text.full_length, used: text.ids.len() }).collect()
}

/// A job in the queue, cancelled if this is dropped before the job is done.
struct Ticket {
    app: Arc<App>,
    host: Arc<Host>,
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
            let spared = self.host.queue.cancel(&self.job);
            let name = [self.host.name.as_str()];
            self.app.metrics.cancelled.with_label_values(&name).inc();
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
