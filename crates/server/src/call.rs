//! One request on its way: body to fields, texts to tokens, a place in the queue, rows to an answer with headers.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use sconce::core::batch::Want;
use sconce::tokens::Tokenized;
use sconce::{Error, Incident, Model, Placement, Task, Truncation};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::app::{App, Held, Scope};
use crate::body;
use crate::fields::parse;
use crate::keys::Guest;
use crate::queue::{Full, Job, Kept, Outcome, Priority, Stretch};
use crate::refusal::{Dialect, Kind, Refusal};
use crate::slot::Host;
use crate::worker::short;

/// Bodies above this are parsed on a thread of their own.
const LONG_BODY: usize = 64 << 10;
/// Answers of more numbers than this are written on a thread of their own.
const LONG_ANSWER: usize = 64 << 10;
/// Bytes of one text: more is not tokenized.
const LONGEST_TEXT: usize = 256 << 10;
/// Bytes of all texts of a request, a query counted once for each document.
const ALL_TEXTS: usize = 16 << 20;
/// Seconds of measured work above which a request of several texts is bulk.
const BULK: f64 = 0.1;
/// Truncated texts that a header lists.
const LISTED: usize = 8;

/// One request.
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    /// Whether it came with the marks of Cohere's client.
    pub(crate) from_cohere: bool,
    priority: Option<Priority>,
    truncate: Option<bool>,
    /// Whether the vector of a long text is the mean of those of its pieces.
    pub(crate) chunks: bool,
    asks: Asks,
    /// The name of the model that answers, once it is known.
    reached: Arc<OnceLock<String>>,
    guest: Guest,
    held: Option<Held>,
}

/// Tasks of a route that takes any model.
pub(crate) const ANY: [Task; 5] = [Task::Embed, Task::Rerank, Task::Classify, Task::Sparse, Task::Tokens];

/// Which model is asked, and how long the answer may wait for it.
pub(crate) struct Asks {
    scope: Option<Scope>,
    model: Option<String>,
    wait: Option<Duration>,
}

impl Asks {
    /// What the path and the headers say: `x-sconce-model`, and `prefer: wait=SECONDS`.
    pub(crate) fn of(headers: &HeaderMap, extensions: &Extensions) -> Asks {
        let word = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        let mut preferences = word("prefer").into_iter().flat_map(|all| all.split([',', ';']));
        let wait = preferences.find_map(|one| one.trim().strip_prefix("wait=")?.parse().ok());
        let model = word("x-sconce-model").map(str::to_owned);
        Asks { scope: extensions.get().copied(), model, wait: wait.map(Duration::from_secs) }
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
    pub(crate) batches: Vec<Stretch>,
}

/// Rows of texts, and what they took.
pub(crate) struct Answered {
    pub(crate) job: Arc<Job>,
    pub(crate) kept: Vec<Kept>,
    pub(crate) work: Work,
}

/// An answer that is written out.
pub(crate) struct Answer {
    body: Vec<u8>,
    work: Work,
}

/// Reads a body of the shape `T`, has `work` answer it, and writes headers, metrics and refusals.
pub(crate) async fn handle<T, W>(
    app: Arc<App>,
    dialect: Dialect,
    method: &'static str,
    request: Request,
    work: impl FnOnce(Call, T) -> W,
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
        let guest = parts.extensions.get::<Guest>().copied().unwrap_or_default();
        let mut call = Call::new(&app, &parts.headers, Asks::of(&parts.headers, &parts.extensions), guest)?;
        call.reached = Arc::clone(&reached);
        if let Err(refusal) = call.shed() {
            return Err(if body::drain(&parts.headers, body).await { refusal } else { refusal.closing() });
        }
        let (bytes, held) = body::read(&app, guest.owner, &parts.headers, body).await?;
        call.held = Some(held);
        let strict = app.settings().strict;
        let (parsed, unread) = if bytes.len() > LONG_BODY {
            let size = bytes.len();
            let parsing = app.threads.run(guest.owner, size, move || parse::<T>(&bytes, strict)).await;
            parsing.map_err(|_| busy())?.ok_or_else(broken)??
        } else {
            parse::<T>(&bytes, strict)?
        };
        Ok((work(call, parsed).await?, unread))
    };
    let answered = tokio::time::timeout(limit, answering).await.unwrap_or_else(|_| {
        let message = format!("no answer within {} s", limit.as_secs_f64());
        Err(Refusal::new(Kind::TimedOut, message))
    });
    match answered {
        Ok((answer, unread)) => {
            let seconds = started.elapsed().as_secs_f64();
            app.metrics.answered(method, &answer.work.model, &answer.work, seconds);
            let mut response = Response::new(Body::from(answer.body));
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

impl Call {
    fn new(app: &Arc<App>, headers: &HeaderMap, asks: Asks, guest: Guest) -> Result<Call, Refusal> {
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
        let (app, reached, held) = (Arc::clone(app), Arc::default(), None);
        Ok(Call { app, from_cohere, priority, truncate, chunks, asks, reached, guest, held })
    }

    /// Refuses before anything is read where too much waits already.
    fn shed(&self) -> Result<(), Refusal> {
        if let [slot] = &self.app.slots[self.app.places(self.asks.scope)]
            && let Some(host) = slot.host()
        {
            let priority = self.priority.unwrap_or(Priority::Interactive);
            let room = host.queue.room(priority, self.guest.owner, 1);
            room.map_err(|error| full(error).of(&slot.name))?;
        }
        Ok(())
    }

    /// The open model of this name; where none is named, the only one that can do one of `tasks`.
    pub(crate) async fn host(&self, name: Option<&str>, tasks: &[Task]) -> Result<Arc<Host>, Refusal> {
        let host = self.asks.host(&self.app, name, tasks).await?;
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
        self.app.threads.run(self.guest.owner, bytes, task).await.map_err(|_| busy())?.ok_or_else(broken)
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

    /// Texts to tokens, and tokens to rows. The thread that made the tokens puts them in the queue, so that nobody
    /// has to be woken in between.
    pub(crate) async fn rows(
        &self,
        host: &Arc<Host>,
        bytes: usize,
        want: Want,
        truncates: bool,
        encode: impl FnOnce(&Model) -> Result<Vec<Tokenized>, Error> + Send + 'static,
    ) -> Result<Answered, Refusal> {
        let began = Instant::now();
        let (app, host, asker) = (Arc::clone(&self.app), Arc::clone(host), (self.guest, self.priority));
        // Gone with this future, as soon as the client is.
        let here = Arc::new(());
        let waits = Arc::downgrade(&here);
        let queueing = self.on_threads(bytes, move || {
            let texts = encode(&host.model)?;
            if waits.strong_count() == 0 {
                app.metrics.cancelled.with_label_values(&[&host.name]).inc();
                return Err(broken());
            }
            queue(app, host, texts, want, truncates, asker, began)
        });
        let (ticket, work) = queueing.await??;
        drop(here);
        let (job, outcome) = ticket.wait().await?;
        let Outcome { kept, placements, classes, incidents, queued, computing, batches } = outcome;
        let tokenized = began + work.tokenizing;
        let steps = Some(Steps { arrived: began, tokenized, queued: job.arrived, batches });
        let work = Work { placements, classes, incidents, queued, computing, steps, ..work };
        Ok(Answered { job, kept, work })
    }

    /// Writes an answer of about so many numbers.
    pub(crate) async fn write<T: Serialize + Send + 'static>(
        &self,
        body: T,
        numbers: usize,
        work: Work,
    ) -> Result<Answer, Refusal> {
        let write = move || serde_json::to_vec(&body);
        let written = if numbers > LONG_ANSWER { self.on_threads(0, write).await? } else { write() };
        let body = written.map_err(|error| Refusal::new(Kind::Model, error.to_string()))?;
        Ok(Answer { body, work })
    }
}

/// A place in the queue for tokens that came of texts since `began`.
fn queue(
    app: Arc<App>,
    host: Arc<Host>,
    texts: Vec<Tokenized>,
    want: Want,
    truncates: bool,
    (guest, priority): (Guest, Option<Priority>),
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
    let numbers = work.tokens * host.model.card().sizes.value.hidden;
    let most = app.settings().max_numbers;
    if want != Want::Pooled && numbers > most {
        let message = format!("an answer has at most {most} numbers; this one would have {numbers}");
        return Err(Refusal::new(Kind::TooLarge, message));
    }
    app.purses.charge(guest, work.tokens).map_err(|seconds| {
        let message = "the key has used up the tokens that it is good for";
        Refusal::new(Kind::Overloaded, message).after(seconds)
    })?;
    // Who waits: as the header says, else by how long it takes.
    let large = work.texts > 1 && host.queue.rate().seconds(work.tokens) > BULK;
    let priority = priority.unwrap_or(if large { Priority::Bulk } else { Priority::Interactive });
    let sparse = host.model.card().task.value == Task::Sparse;
    let (job, outcome) = Job::new(texts, want, priority, sparse, guest.owner);
    let job = Arc::new(job);
    host.queue.admit(&job).map_err(|error| {
        app.purses.refund(guest, work.tokens);
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

fn write_headers(headers: &mut HeaderMap, work: &Work, unread: &[String], dialect: Dialect, seconds: f64) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut put = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    if !unread.is_empty() {
        put("x-sconce-ignored", unread.join(", "));
    }
    if work.texts == 0 {
        return;
    }
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    put("x-sconce-model", work.model.clone());
    put("x-sconce-placement", work.placements.iter().map(short).collect::<Vec<_>>().join(", "));
    put("x-sconce-class", work.classes.join(", "));
    put("x-sconce-tokens", work.tokens.to_string());
    put("x-sconce-truncated", listed(&work.truncated));
    if let Some(chunks) = work.chunks {
        put("x-sconce-chunks", chunks.to_string());
    }
    if !work.incidents.is_empty() {
        let told = work
            .incidents
            .iter()
            .map(|incident| format!("{} {}", short(&incident.placement), incident.kind.name()));
        put("x-sconce-incidents", told.collect::<Vec<_>>().join(", "));
    }
    let [tokenize, queue, compute] = [work.tokenizing, work.queued, work.computing].map(milliseconds);
    let total = seconds * 1e3;
    put(
        "server-timing",
        format!(
            "tokenize;dur={tokenize:.3}, queue;dur={queue:.3}, compute;dur={compute:.3}, total;dur={total:.3}"
        ),
    );
    if dialect == Dialect::Tei {
        let device = work.placements.first().map(|placement| placement.device.to_string());
        put("x-compute-type", device.unwrap_or_default());
        put("x-compute-tokens", work.tokens.to_string());
        for (name, milliseconds) in [
            ("x-compute-time", total),
            ("x-total-time", total),
            ("x-tokenization-time", tokenize),
            ("x-queue-time", queue),
            ("x-inference-time", compute),
        ] {
            put(name, format!("{milliseconds:.0}"));
        }
    }
}

/// `0`, or how many texts were cut and which: `2; 0:812>512, 3:600>512`.
fn listed(truncated: &[Truncation]) -> String {
    let mut text = truncated.len().to_string();
    for (at, cut) in truncated.iter().take(LISTED).enumerate() {
        let comma = if at == 0 { ";" } else { "," };
        let _ = write!(text, "{comma} {}:{}>{}", cut.index, cut.tokens, cut.used);
    }
    text
}
