//! One request on its way: body to fields, texts to tokens, a place in the queue, rows to an answer with headers.

use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Extensions, HeaderMap};
use axum::response::Response;
use sconce::core::batch::OutputKind;
use sconce::tokens::Tokenized;
use sconce::{Error, Incident, Model, Placement, Task, Truncation};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::app::{App, Scope};
use crate::body;
use crate::fields::parse;
use crate::headers::write_headers;
use crate::keys::Principal;
use crate::memory_budget::{RequestMemory, Reservation};
use crate::output::{Chunks, OutputLimits};
use crate::queue::{BatchTiming, Collected, Full, Job, Outcome, Priority};
use crate::refusal::{Dialect, Kind, Refusal};
use crate::slot::Host;

/// Bodies above this are parsed on a thread of their own.
const LONG_BODY: usize = 64 << 10;
/// Answers of more bytes than this are built and written on a text thread.
const LONG_ANSWER: usize = 128 << 10;
/// Bytes of one text: more is not tokenized.
const LONGEST_TEXT: usize = 256 << 10;
/// Bytes of all texts of a request, a query counted once for each document.
const ALL_TEXTS: usize = 16 << 20;
/// Seconds of measured work above which a request of several texts is bulk.
const BULK: f64 = 0.1;
/// The share of the queue's seconds above which a request is bulk, whatever its header says.
const INTERACTIVE_SHARE: f64 = 0.25;

/// One request.
pub(crate) struct RequestContext {
    pub(crate) app: Arc<App>,
    /// Whether it came with the marks of Cohere's client.
    pub(crate) from_cohere: bool,
    priority: Option<Priority>,
    truncate: Option<bool>,
    /// Whether the vector of a long text is the mean of those of its pieces.
    pub(crate) chunks: bool,
    choice: ModelChoice,
    /// The name of the model that answers, once it is known.
    reached: Arc<OnceLock<String>>,
    principal: Principal,
    memory: RequestMemory,
    /// Held for the body, and for what was parsed of it.
    body: Option<Reservation>,
}

/// Tasks of a route that takes any model.
pub(crate) const ANY: [Task; 5] = [Task::Embed, Task::Rerank, Task::Classify, Task::Sparse, Task::Tokens];

/// Which model is asked, and how long the answer may wait for it.
pub(crate) struct ModelChoice {
    scope: Option<Scope>,
    model: Option<String>,
    wait: Option<Duration>,
}

impl ModelChoice {
    /// What the path and the headers say: `x-sconce-model`, and `prefer: wait=SECONDS`.
    pub(crate) fn of(headers: &HeaderMap, extensions: &Extensions) -> ModelChoice {
        let word = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        let mut preferences = word("prefer").into_iter().flat_map(|all| all.split([',', ';']));
        let wait = preferences.find_map(|one| one.trim().strip_prefix("wait=")?.parse().ok());
        let model = word("x-sconce-model").map(str::to_owned);
        ModelChoice { scope: extensions.get().copied(), model, wait: wait.map(Duration::from_secs) }
    }

    /// The open model of this name, or of the one that a header names, or the only one that can do one of `tasks`.
    pub(crate) async fn host(
        &self,
        app: &App,
        name: Option<&str>,
        tasks: &[Task],
    ) -> Result<Arc<Host>, Refusal> {
        let settings = app.settings();
        let wait = self.wait.unwrap_or(settings.load_wait).min(settings.time_limit);
        app.host(self.scope, name.or(self.model.as_deref()), tasks, wait).await
    }
}

/// What it took to answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) model: String,
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
    pub(crate) truncated: Vec<Truncation>,
    /// Pieces of texts whose vectors were averaged.
    pub(crate) chunks: Option<usize>,
    pub(crate) placements: Vec<Placement>,
    pub(crate) classes: Vec<String>,
    pub(crate) incidents: Vec<Incident>,
    pub(crate) tokenizing: Duration,
    pub(crate) queued: Duration,
    pub(crate) computing: Duration,
    pub(crate) steps: Option<Steps>,
}

/// What was done when.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// The texts were to be tokenized.
    pub(crate) arrived: Instant,
    pub(crate) tokenized: Instant,
    /// They came into the queue.
    pub(crate) queued: Instant,
    pub(crate) batches: Vec<BatchTiming>,
}

/// Rows of texts, and what they took.
pub(crate) struct Answered {
    pub(crate) job: Arc<Job>,
    pub(crate) kept: Vec<Collected>,
    pub(crate) work: Work,
}

/// An answer that is still to be built from computed rows.
pub(crate) struct Deferred<T> {
    pub(crate) work: Work,
    /// About how many bytes are read and written to build it.
    bytes: usize,
    build: Box<dyn FnOnce() -> T + Send>,
}

impl<T: 'static> Deferred<T> {
    pub(crate) fn new(work: Work, bytes: usize, build: impl FnOnce() -> T + Send + 'static) -> Deferred<T> {
        Deferred { work, bytes, build: Box::new(build) }
    }

    /// Builds on what this gives.
    pub(crate) fn map<U>(self, then: impl FnOnce(T) -> U + Send + 'static) -> Deferred<U> {
        let Deferred { work, bytes, build } = self;
        Deferred { work, bytes, build: Box::new(move || then(build())) }
    }

    /// The same, where `bytes` more are read and written.
    #[must_use]
    pub(crate) fn and_bytes(mut self, bytes: usize) -> Deferred<T> {
        self.bytes += bytes;
        self
    }
}

/// An answer that is written out.
pub(crate) struct Answer {
    body: Chunks,
    work: Work,
}

/// Reads a body of the shape `T`, has `work` answer it, and writes headers, metrics and refusals.
pub(crate) async fn handle<T, W>(
    app: Arc<App>,
    dialect: Dialect,
    method: &'static str,
    request: Request,
    work: impl FnOnce(RequestContext, T) -> W,
) -> Response
where
    T: DeserializeOwned + Send + 'static,
    W: Future<Output = Result<Answer, Refusal>>,
{
    let started = Instant::now();
    app.metrics.requests.with_label_values(&[method]).inc();
    let (parts, body) = request.into_parts();
    let limit = app.settings().time_limit;
    let reached: Arc<OnceLock<String>> = Arc::default();
    let answering = async {
        let principal = parts.extensions.get::<Principal>().copied().unwrap_or_default();
        let mut context = RequestContext::new(
            &app,
            &parts.headers,
            ModelChoice::of(&parts.headers, &parts.extensions),
            principal,
        )?;
        context.reached = Arc::clone(&reached);
        if let Err(refusal) = context.shed() {
            return Err(if body::drain(&parts.headers, body).await { refusal } else { refusal.closing() });
        }
        let (bytes, reservation) = body::read(&app, &context.memory, &parts.headers, body).await?;
        context.body = Some(reservation);
        let strict = app.settings().strict;
        let (parsed, unread) = if bytes.len() > LONG_BODY {
            let size = bytes.len();
            let parsing = app.threads.run(principal.tenant, size, move || parse::<T>(&bytes, strict)).await;
            parsing.map_err(|_| busy())?.ok_or_else(broken)??
        } else {
            parse::<T>(&bytes, strict)?
        };
        Ok((work(context, parsed).await?, unread))
    };
    let answered = tokio::time::timeout(limit, answering).await.unwrap_or_else(|_| {
        let message = format!("no answer within {} s", limit.as_secs_f64());
        Err(Refusal::new(Kind::TimedOut, message))
    });
    match answered {
        Ok((answer, unread)) => {
            let seconds = started.elapsed().as_secs_f64();
            app.metrics.answered(method, &answer.work.model, &answer.work, seconds);
            let mut response = Response::new(Body::new(answer.body));
            write_headers(response.headers_mut(), &answer.work, &unread, dialect, seconds);
            response.extensions_mut().insert(answer.work);
            response
        }
        Err(refusal) => {
            app.metrics.refused(refusal.code());
            let refusal = match reached.get() {
                Some(model) => refusal.of(model),
                None => refusal,
            };
            refusal.respond(dialect)
        }
    }
}

fn busy() -> Refusal {
    Refusal::new(Kind::Overloaded, "too much text waits to be read")
}

fn broken() -> Refusal {
    Refusal::new(Kind::Model, "the text could not be worked on")
}

fn full(full: Full) -> Refusal {
    Refusal::new(Kind::Overloaded, "the model is overloaded").after(full.seconds)
}

impl RequestContext {
    fn new(
        app: &Arc<App>,
        headers: &HeaderMap,
        choice: ModelChoice,
        principal: Principal,
    ) -> Result<RequestContext, Refusal> {
        let word = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim());
        let priority = match word("x-sconce-priority") {
            None => None,
            Some("interactive") => Some(Priority::Interactive),
            Some("bulk") => Some(Priority::Bulk),
            Some(_) => return Err(wrong("`x-sconce-priority` is `interactive` or `bulk`")),
        };
        let truncate = match word("x-sconce-truncate") {
            None | Some("chunk") => None,
            Some("truncate" | "true") => Some(true),
            Some("error" | "false") => Some(false),
            Some(_) => return Err(wrong("`x-sconce-truncate` is `error`, `truncate` or `chunk`")),
        };
        let chunks = word("x-sconce-truncate") == Some("chunk");
        let from_cohere = headers.contains_key("x-fern-sdk-name") || headers.contains_key("x-client-name");
        let memory = RequestMemory::new(&app.memory, principal.tenant);
        let (app, reached) = (Arc::clone(app), Arc::default());
        Ok(RequestContext {
            app,
            from_cohere,
            priority,
            truncate,
            chunks,
            choice,
            reached,
            principal,
            memory,
            body: None,
        })
    }

    /// Refuses before anything is read where too much waits already.
    fn shed(&self) -> Result<(), Refusal> {
        if let [slot] = &self.app.slots[self.app.places(self.choice.scope)]
            && let Some(host) = slot.host()
        {
            let priority = self.priority.unwrap_or(Priority::Interactive);
            let room = host.queue.room(priority, self.principal.tenant, 1);
            room.map_err(|error| full(error).of(&slot.name))?;
        }
        Ok(())
    }

    /// The open model of this name; where none is named, the only one that can do one of `tasks`.
    pub(crate) async fn host(&self, name: Option<&str>, tasks: &[Task]) -> Result<Arc<Host>, Refusal> {
        let host = self.choice.host(&self.app, name, tasks).await?;
        let _ = self.reached.set(host.name.clone());
        Ok(host)
    }

    /// Whether texts of a request that no mean can be made of are to be cut into pieces.
    pub(crate) fn refuse_chunks(&self) -> Result<(), Refusal> {
        if self.chunks {
            return Err(wrong("`x-sconce-truncate: chunk` is for vectors of texts"));
        }
        Ok(())
    }

    /// Work on text, on the threads for it.
    pub(crate) async fn on_threads<T: Send + 'static>(
        &self,
        bytes: usize,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        self.app.threads.run(self.principal.tenant, bytes, task).await.map_err(|_| busy())?.ok_or_else(broken)
    }

    /// Work on texts of so many `bytes` each, in pieces on the text threads.
    pub(crate) async fn on_pieces<T: Send + 'static, R: Send + 'static>(
        &self,
        bytes: &[usize],
        each: impl Fn(Range<usize>) -> Result<T, Refusal> + Send + Sync + 'static,
        then: impl FnOnce(Vec<T>) -> Result<R, Refusal> + Send + 'static,
    ) -> Result<R, Refusal> {
        // A key that has used up its tokens costs no more work.
        self.charge(0)?;
        let ran = self.app.threads.run_pieces(self.principal.tenant, bytes, each, then).await;
        ran.map_err(|_| busy())?.ok_or_else(broken)?
    }

    /// Charges tokens to the rate of the key.
    pub(crate) fn charge(&self, tokens: usize) -> Result<(), Refusal> {
        charge(&self.app, self.principal, tokens)
    }

    /// Whether long texts are cut, by the body, the header, or the habit of the route.
    pub(crate) fn truncates(&self, asked: Option<bool>, habit: bool) -> bool {
        asked.or(self.truncate).unwrap_or(habit)
    }

    /// Whether texts of so many `bytes` each are within the limits.
    pub(crate) fn check_sizes(&self, bytes: &[usize], again: usize) -> Result<usize, Refusal> {
        let most = self.app.settings().max_inputs;
        if bytes.is_empty() {
            return Err(Refusal::new(Kind::Empty, "`inputs` is empty"));
        }
        if bytes.len() > most {
            return Err(wrong(format!("a request has at most {most} inputs; this one has {}", bytes.len())));
        }
        let all = bytes.iter().sum::<usize>() + again * bytes.len();
        if again.max(bytes.iter().copied().max().unwrap_or(0)) > LONGEST_TEXT || all > ALL_TEXTS {
            return Err(Refusal::new(
                Kind::TooLarge,
                format!("a text has at most {LONGEST_TEXT} bytes, and all of a request {ALL_TEXTS}"),
            ));
        }
        Ok(all)
    }

    /// Texts of so many `bytes` each to tokens, and tokens to rows; `encode` gives the tokens of the text at an index.
    /// The thread that made the last tokens puts all in the queue, so that nobody has to be woken in between.
    pub(crate) async fn rows(
        &self,
        host: &Arc<Host>,
        bytes: &[usize],
        output_kind: OutputKind,
        truncates: bool,
        encode: impl Fn(&Model, usize) -> Result<Tokenized, Error> + Send + Sync + 'static,
    ) -> Result<Answered, Refusal> {
        let began = Instant::now();
        let (app, memory, asker) =
            (Arc::clone(&self.app), self.memory.clone(), (self.principal, self.priority));
        // The host, not its model: a model is unloaded once nothing holds its host.
        let (host, own) = (Arc::clone(host), Arc::clone(host));
        let each = move |texts: Range<usize>| {
            Ok(texts.map(|at| encode(&own.model, at)).collect::<Result<Vec<_>, Error>>()?)
        };
        // Gone with this future, as soon as the client is.
        let here = Arc::new(());
        let waits = Arc::downgrade(&here);
        let then = move |texts: Vec<Vec<Tokenized>>| {
            if waits.strong_count() == 0 {
                app.metrics.cancelled.with_label_values(&[&host.name]).inc();
                return Err(broken());
            }
            queue(app, host, texts.concat(), output_kind, truncates, asker, &memory, began)
        };
        let (ticket, work) = self.on_pieces(bytes, each, then).await?;
        drop(here);
        let (job, outcome) = ticket.wait().await?;
        let Outcome { kept, placements, classes, incidents, queued, computing, batches } = outcome;
        let tokenized = began + work.tokenizing;
        let steps = Some(Steps { arrived: began, tokenized, queued: job.arrived, batches });
        let work = Work { placements, classes, incidents, queued, computing, steps, ..work };
        Ok(Answered { job, kept, work })
    }

    fn output_limits(&self) -> OutputLimits {
        OutputLimits::new(&self.memory, self.app.settings().max_answer)
    }

    /// Builds and writes an answer.
    pub(crate) async fn write<T: Serialize + 'static>(&self, answer: Deferred<T>) -> Result<Answer, Refusal> {
        let Deferred { work, bytes, build } = answer;
        let limits = self.output_limits();
        let write = move || {
            let mut output = limits.output();
            output.json(&build())?;
            output.finish()
        };
        let body = if bytes > LONG_ANSWER { self.on_threads(0, write).await?? } else { write()? };
        Ok(Answer { body, work })
    }

    /// Writes a list whose items come of texts of so many `bytes` each, piece by piece, with about `growth` bytes of
    /// answer for each byte of text. Memory for that is reserved until the answer is built, so that of several large
    /// requests the first succeed and the others are refused before any work.
    pub(crate) async fn write_list<T: Serialize>(
        &self,
        bytes: &[usize],
        growth: usize,
        item: impl Fn(usize) -> Result<T, Refusal> + Send + Sync + 'static,
    ) -> Result<Answer, Refusal> {
        let _estimate = self.memory.reserve(growth * bytes.iter().sum::<usize>())?;
        let (limits, count) = (self.output_limits(), bytes.len());
        let each = move |texts: Range<usize>| {
            let (mut output, end) = (limits.output(), texts.end);
            for at in texts {
                output.raw(if at == 0 { b"[" } else { b"," })?;
                output.json(&item(at)?)?;
            }
            if end == count {
                output.raw(b"]")?;
            }
            output.finish()
        };
        let join = |parts: Vec<Chunks>| {
            let mut body = Chunks::default();
            for part in parts {
                body.append(part);
            }
            Ok(body)
        };
        let body = self.on_pieces(bytes, each, join).await?;
        Ok(Answer { body, work: Work::default() })
    }
}

fn charge(app: &App, principal: Principal, tokens: usize) -> Result<(), Refusal> {
    app.rate_limiters.charge(principal, tokens).map_err(|seconds| {
        let message = "the key has used up the tokens that it is good for";
        Refusal::new(Kind::Overloaded, message).after(seconds)
    })
}

/// The priority of a request of `texts` that take `seconds` of measured work, where `queued` seconds may wait.
fn priority_of(asked: Option<Priority>, texts: usize, seconds: f64, queued: f64) -> Priority {
    let most = (INTERACTIVE_SHARE * queued).max(BULK);
    match asked {
        Some(Priority::Bulk) => Priority::Bulk,
        // One request must not fill the list of those who wait at a screen.
        _ if seconds > most => Priority::Bulk,
        None if texts > 1 && seconds > BULK => Priority::Bulk,
        None | Some(Priority::Interactive) => Priority::Interactive,
    }
}

/// A place in the queue for tokens that came of texts since `began`.
#[expect(clippy::too_many_arguments, reason = "what a request is made of")]
fn queue(
    app: Arc<App>,
    host: Arc<Host>,
    texts: Vec<Tokenized>,
    output_kind: OutputKind,
    truncates: bool,
    (principal, asked): (Principal, Option<Priority>),
    memory: &RequestMemory,
    began: Instant,
) -> Result<(Ticket, Work), Refusal> {
    let mut work = Work { model: host.name.clone(), texts: texts.len(), ..Work::default() };
    work.tokenizing = began.elapsed();
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
    let numbers = match output_kind {
        // The words of each text are counted when they are known.
        OutputKind::Pooled if sparse => 0,
        OutputKind::Pooled => work.texts * card.width(),
        OutputKind::Tokens | OutputKind::Projected => work.tokens * hidden,
    };
    if output_kind != OutputKind::Pooled && numbers > most {
        let message = format!("an answer has at most {most} numbers; this one would have {numbers}");
        return Err(Refusal::new(Kind::TooLarge, message));
    }
    // Rows, and the ids and types of tokens.
    let reservation = memory.reserve(4 * numbers + 8 * work.tokens)?;
    charge(&app, principal, work.tokens)?;
    let seconds = host.queue.rate().seconds(work.tokens);
    let priority = priority_of(asked, work.texts, seconds, settings.queue_seconds);
    let (job, outcome) = Job::new(texts, output_kind, priority, sparse, principal.tenant);
    let job = Arc::new(job.holding(reservation));
    host.queue.admit(&job).map_err(|error| {
        app.rate_limiters.refund(principal, work.tokens);
        full(error)
    })?;
    Ok((Ticket { app, host, job, outcome, done: false }, work))
}

pub(crate) fn wrong(message: impl Into<String>) -> Refusal {
    Refusal::new(Kind::Validation, message)
}

fn truncated(texts: &[Tokenized]) -> Vec<Truncation> {
    let cut = texts.iter().enumerate().filter(|(_, text)| text.is_truncated());
    cut.map(|(index, text)| Truncation { index, tokens: text.whole, used: text.ids.len() }).collect()
}

/// A place in the queue, given up when the request is dropped.
struct Ticket {
    app: Arc<App>,
    host: Arc<Host>,
    job: Arc<Job>,
    outcome: oneshot::Receiver<Result<Outcome, Refusal>>,
    done: bool,
}

impl Ticket {
    /// What became of the job.
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
            let spared = self.host.queue.leave(&self.job);
            let name = [self.host.name.as_str()];
            self.app.metrics.cancelled.with_label_values(&name).inc();
            self.app.metrics.spared.with_label_values(&name).inc_by(spared as u64);
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
