//! The context of one request: its principal, its model, its priority, its memory, and the limits on its texts.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{Extensions, HeaderMap};
use sconce::Task;
use sconce_http::keys::Principal;
use sconce_http::memory_budget::{RequestMemory, Reservation};
use sconce_http::refusal::{Kind, Refusal};

use crate::schedule::next_batch::Priority;
use crate::schedule::queue::QueueFull;
use crate::state::app::{App, Scope};
use crate::state::slot::LoadedModel;

/// Maximum bytes of one text.
const MAX_TEXT: usize = 256 << 10;
/// Maximum bytes of all texts of a request, a query counted once for each document.
const MAX_TEXTS: usize = 16 << 20;

/// A single text of at most this many bytes is processed on the thread of its connection. Waking another thread takes
/// longer than tokenizing it.
const INLINE_TEXT: usize = 1 << 10;

/// Tasks of a route that accepts any model.
pub(crate) const ANY: [Task; 6] = Task::ALL;

/// The context of one request.
pub(crate) struct RequestContext {
    pub(crate) app: Arc<App>,
    /// Whether the client identifies as Cohere's SDK.
    pub(crate) from_cohere: bool,
    pub(super) priority: Option<Priority>,
    truncate: Option<bool>,
    /// Whether a long text is embedded as the mean of its chunks.
    pub(crate) chunks: bool,
    choice: ModelChoice,
    /// The name of the model, once it is resolved.
    resolved: Arc<OnceLock<String>>,
    pub(crate) principal: Principal,
    pub(crate) memory: RequestMemory,
    /// Memory of the body and of what was parsed of it.
    body: Option<Reservation>,
}

/// The model that a request names, and how long it waits for that model to load.
pub(crate) struct ModelChoice {
    scope: Option<Scope>,
    model: Option<String>,
    wait: Option<Duration>,
}

impl ModelChoice {
    /// Reads the path and the headers `x-sconce-model` and `prefer: wait=SECONDS`.
    pub(crate) fn of(headers: &HeaderMap, extensions: &Extensions) -> ModelChoice {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        let mut preferences = header("prefer").into_iter().flat_map(|all| all.split([',', ';']));
        let wait = preferences.find_map(|one| one.trim().strip_prefix("wait=")?.parse().ok());
        let model = header("x-sconce-model").map(str::to_owned);
        ModelChoice { scope: extensions.get().cloned(), model, wait: wait.map(Duration::from_secs) }
    }

    /// How long the request waits for a model, if it says so.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait
    }

    /// The loaded model called `name`, or the one that the header names, or the only one with one of `tasks`.
    pub(crate) async fn loaded(
        &self,
        app: &App,
        name: Option<&str>,
        tasks: &[Task],
    ) -> Result<Arc<LoadedModel>, Refusal> {
        let settings = app.settings();
        let wait = self.wait.unwrap_or(settings.load_wait).min(settings.http.time_limit);
        app.loaded(self.scope.as_ref(), name.or(self.model.as_deref()), tasks, wait).await
    }
}

/// A refusal of a request that is invalid.
pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(Kind::Validation, message)
}

pub(super) fn processing_failed() -> Refusal {
    Refusal::new(Kind::Model, "the text could not be processed")
}

pub(super) fn overloaded(full: QueueFull) -> Refusal {
    Refusal::new(Kind::Overloaded, "the model is overloaded").retry_after(full.seconds)
}

fn busy() -> Refusal {
    Refusal::new(Kind::Overloaded, "too much text waits to be tokenized")
}

impl RequestContext {
    /// The context of a request with these headers.
    pub(crate) fn new(
        app: &Arc<App>,
        headers: &HeaderMap,
        choice: ModelChoice,
        principal: Principal,
        resolved: &Arc<OnceLock<String>>,
    ) -> Result<RequestContext, Refusal> {
        let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim());
        let priority = match header("x-sconce-priority") {
            None => None,
            Some("interactive") => Some(Priority::Interactive),
            Some("bulk") => Some(Priority::Bulk),
            Some(_) => return Err(invalid("`x-sconce-priority` is `interactive` or `bulk`")),
        };
        let truncate = match header("x-sconce-truncate") {
            None | Some("chunk") => None,
            Some("truncate" | "true") => Some(true),
            Some("error" | "false") => Some(false),
            Some(_) => return Err(invalid("`x-sconce-truncate` is `error`, `truncate` or `chunk`")),
        };
        let chunks = header("x-sconce-truncate") == Some("chunk");
        let from_cohere = headers.contains_key("x-fern-sdk-name") || headers.contains_key("x-client-name");
        let memory = RequestMemory::new(&app.edge.memory, principal.tenant);
        let (app, resolved) = (Arc::clone(app), Arc::clone(resolved));
        Ok(RequestContext {
            app,
            from_cohere,
            priority,
            truncate,
            chunks,
            choice,
            resolved,
            principal,
            memory,
            body: None,
        })
    }

    /// Holds the memory of the body until the request is done.
    pub(crate) fn hold(&mut self, body: Reservation) {
        self.body = Some(body);
    }

    /// Rejects the request before its body is read if the worker is paused or the queue is full already.
    pub(crate) fn shed(&self) -> Result<(), Refusal> {
        if self.app.is_paused() {
            return Err(Refusal::new(Kind::Paused, "the worker is paused"));
        }
        if let [slot] = &*self.app.slots_in(self.choice.scope.as_ref())
            && let Some(loaded) = slot.loaded()
        {
            let priority = self.priority.unwrap_or(Priority::Interactive);
            let capacity = loaded.queue.capacity(priority, self.principal.tenant, 1);
            capacity.map_err(|error| overloaded(error).for_model(&slot.name))?;
        }
        Ok(())
    }

    /// The loaded model called `name`; without a name, the only one with one of `tasks`.
    pub(crate) async fn loaded(
        &self,
        name: Option<&str>,
        tasks: &[Task],
    ) -> Result<Arc<LoadedModel>, Refusal> {
        let loaded = self.choice.loaded(&self.app, name, tasks).await?;
        let _ = self.resolved.set(loaded.name.clone());
        Ok(loaded)
    }

    /// Rejects chunking on operations that have no mean.
    pub(crate) fn refuse_chunks(&self) -> Result<(), Refusal> {
        if self.chunks {
            return Err(invalid("`x-sconce-truncate: chunk` is for embeddings of texts"));
        }
        Ok(())
    }

    /// Runs `task`, which holds `bytes` of text, on a text thread.
    pub(crate) async fn on_text_thread<T: Send + 'static>(
        &self,
        bytes: usize,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let ran = self.app.text_pool.run(self.principal.tenant, bytes, task).await;
        ran.map_err(|_| busy())?.ok_or_else(processing_failed)
    }

    /// Runs `each` on ranges of texts whose lengths are `bytes`, on the text threads, and `then` on all results. A single
    /// short text stays on the calling thread.
    pub(crate) async fn on_text_threads<T: Send + 'static, R: Send + 'static>(
        &self,
        bytes: &[usize],
        each: impl Fn(Range<usize>) -> Result<T, Refusal> + Send + Sync + 'static,
        then: impl FnOnce(Vec<T>) -> Result<R, Refusal> + Send + 'static,
    ) -> Result<R, Refusal> {
        // A key without tokens left costs no more work.
        self.app.edge.charge(self.principal, 0)?;
        if let [0..=INLINE_TEXT] = bytes {
            let run = AssertUnwindSafe(|| each(0..1).and_then(|result| then(vec![result])));
            return catch_unwind(run).unwrap_or_else(|_| Err(processing_failed()));
        }
        let ran = self.app.text_pool.run_pieces(self.principal.tenant, bytes, each, then).await;
        ran.map_err(|_| busy())?.ok_or_else(processing_failed)?
    }

    /// Whether long texts are truncated: by the body, else by the header, else by the default of the route.
    pub(crate) fn truncates(&self, field: Option<bool>, default: bool) -> bool {
        field.or(self.truncate).unwrap_or(default)
    }

    /// Checks the number and the lengths in bytes of texts; `query` is added to each.
    pub(crate) fn check_sizes(&self, bytes: &[usize], query: usize) -> Result<usize, Refusal> {
        let most = self.app.settings().max_inputs;
        if bytes.is_empty() {
            return Err(Refusal::new(Kind::Empty, "`inputs` is empty"));
        }
        if bytes.len() > most {
            return Err(invalid(format!(
                "a request has at most {most} inputs; this one has {}",
                bytes.len()
            )));
        }
        let all = bytes.iter().sum::<usize>() + query * bytes.len();
        if query.max(bytes.iter().copied().max().unwrap_or(0)) > MAX_TEXT || all > MAX_TEXTS {
            return Err(Refusal::new(
                Kind::TooLarge,
                format!("a text has at most {MAX_TEXT} bytes, and all of a request {MAX_TEXTS}"),
            ));
        }
        Ok(all)
    }
}
