//! A running generation: prompts within the limits of the server, and the events of their outputs.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;
use sconce::{FinishReason, GenerateOptions, GenerationStream, GenerationSummary, Scheduling};
use sconce_http::keys::Principal;
use sconce_http::memory_budget::Reservation;
use sconce_http::refusal::{Kind, Refusal};
use sconce_http::telemetry::DeferredRecord;

use super::event::{EndReason, GenerationEvent, TokenUsage};
use super::prompt::{Prepared, PromptInput, check_bytes};
use crate::errors::refusal;
use crate::operations::context::{RequestContext, invalid};
use crate::operations::output_parser::OutputParser;
use crate::schedule::generation_quota::GenerationPermit;
use crate::schedule::next_batch::Priority;
use crate::state::app::App;
use crate::state::generation_metrics::FinishedGeneration;
use crate::state::slot::LoadedModel;
use crate::state::work::{GenerationTimes, Work, extend_new};

/// Bytes that a token takes while its request is in flight.
const TOKEN_BYTES: usize = 16;

/// A running generation of one or more prompts. Dropping it cancels it.
pub(crate) struct Generating {
    prompts: Vec<RunningPrompt>,
    /// Number of outputs of each prompt.
    outputs: usize,
    events: VecDeque<GenerationEvent>,
    closing: Pin<Box<dyn Future<Output = ()> + Send>>,
    state: State,
    app: Arc<App>,
    loaded: Arc<LoadedModel>,
    principal: Principal,
    method: &'static str,
    arrived: Instant,
    tokenizing: Duration,
    first_token: Option<Instant>,
    /// Time of the last token of each output.
    last_token: Vec<Option<Instant>>,
    generated: usize,
    /// Generated tokens of a reasoning.
    reasoning: usize,
    /// Why outputs ended.
    ends: Vec<&'static str>,
    record: DeferredRecord,
    _permit: GenerationPermit,
    memory: Reservation,
}

/// One prompt and its outputs.
struct RunningPrompt {
    stream: GenerationStream,
    ended: bool,
    /// Whether the end of each output was reported.
    reported: Vec<bool>,
    /// The parser of each output.
    parsers: Vec<OutputParser>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Finished,
    Failed,
}

/// Starts to generate, and waits for the first event, so that what fails before it is an error response.
pub(crate) async fn start(
    context: &RequestContext,
    loaded: &Arc<LoadedModel>,
    method: &'static str,
    prompts: Vec<PromptInput>,
    options: GenerateOptions,
) -> Result<Generating, Refusal> {
    let arrived = Instant::now();
    let (app, principal) = (Arc::clone(&context.app), context.principal);
    // A key without tokens left costs no more work.
    app.edge.charge(principal, 0)?;
    let outputs = options.n.max(1);
    let (all, limit) = (outputs * prompts.len(), app.settings().max_generations);
    if all > limit {
        return Err(invalid(format!("a request has at most {limit} outputs, and this one {all}")));
    }
    let permit = loaded.generations.admit(principal.tenant, all, limit);
    let permit = permit.ok_or_else(|| {
        let message = format!("the model generates as many outputs as it may: {limit}");
        Refusal::new(Kind::Overloaded, message)
    })?;
    let bytes = prompts.iter().map(PromptInput::bytes).sum();
    check_bytes(bytes)?;
    let tenant = principal.tenant.0;
    let priority = match context.priority {
        Some(Priority::Bulk) => sconce::Priority::Bulk,
        Some(Priority::Interactive) | None => sconce::Priority::Interactive,
    };
    let scheduling = Scheduling { tenant, prefix_scope: tenant, priority };
    let (own, edge, memory) = (Arc::clone(loaded), Arc::clone(&app.edge), context.memory.clone());
    let begin = move || {
        let context = own.model.card().max_length.value;
        let mut prepared = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            let one = prompt.prepare(&own.model, options.clone())?;
            if one.ids.len() >= context {
                let message = format!(
                    "the prompt has {} tokens, and the context of the model {context}: no token is left to generate",
                    one.ids.len()
                );
                return Err(Refusal::new(Kind::TooLong, message));
            }
            prepared.push(one);
        }
        let tokens = prepared.iter().map(|one| one.ids.len()).sum::<usize>();
        let memory = memory.reserve(TOKEN_BYTES * tokens)?;
        edge.charge(principal, tokens)?;
        let started = prepared.into_iter().map(|Prepared { ids, options, parser }| {
            let generation = own.model.generate_scheduled(ids, &options, scheduling).map_err(refusal)?;
            let (reported, parsers) = (vec![false; outputs], vec![parser; outputs]);
            Ok(RunningPrompt { stream: generation.into_stream(), ended: false, reported, parsers })
        });
        Ok((started.collect::<Result<Vec<_>, Refusal>>()?, memory))
    };
    let (prompts, memory) = context.on_text_thread(bytes, begin).await??;
    let closing = Box::pin(app.edge.closing());
    let mut generating = Generating {
        last_token: vec![None; outputs * prompts.len()],
        prompts,
        outputs,
        events: VecDeque::new(),
        closing,
        state: State::Running,
        app,
        loaded: Arc::clone(loaded),
        principal,
        method,
        arrived,
        tokenizing: arrived.elapsed(),
        first_token: None,
        generated: 0,
        reasoning: 0,
        ends: Vec::new(),
        record: DeferredRecord::default(),
        _permit: permit,
        memory,
    };
    poll_fn(|context| generating.poll_first(context)).await?;
    Ok(generating)
}

impl Generating {
    /// Waits until an event is there.
    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        match ready!(self.poll_event(context)) {
            Some(Err(refusal)) => Poll::Ready(Err(refusal)),
            Some(Ok(event)) => {
                self.events.push_front(event);
                Poll::Ready(Ok(()))
            }
            None => Poll::Ready(Ok(())),
        }
    }

    /// The next event, if it is there; none after the last.
    pub(super) fn poll_event(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<GenerationEvent, Refusal>>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.state != State::Running {
                return Poll::Ready(None);
            }
            if self.closing.as_mut().poll(context).is_ready() {
                self.state = State::Failed;
                let message = "the server is shutting down";
                return Poll::Ready(Some(Err(Refusal::new(Kind::NotReady, message))));
            }
            let (mut is_pending, mut progressed) = (false, false);
            for at in 0..self.prompts.len() {
                if self.prompts[at].ended {
                    continue;
                }
                match Pin::new(&mut self.prompts[at].stream).poll_next(context) {
                    Poll::Pending => is_pending = true,
                    Poll::Ready(Some(Err(error))) => {
                        self.state = State::Failed;
                        return Poll::Ready(Some(Err(refusal(error))));
                    }
                    Poll::Ready(Some(Ok(piece))) => {
                        progressed = true;
                        self.report_ends(at);
                        let choice = at * self.outputs + piece.choice;
                        let parser = &mut self.prompts[at].parsers[piece.choice];
                        let is_reasoning = parser.is_reasoning();
                        let deltas = parser.push(&piece.text);
                        if piece.token.is_some() {
                            self.count_token(choice, is_reasoning);
                        }
                        let token = piece.token;
                        self.events.push_back(GenerationEvent::Deltas { choice, deltas, token });
                    }
                    Poll::Ready(None) => {
                        progressed = true;
                        self.prompts[at].ended = true;
                        self.report_ends(at);
                    }
                }
            }
            if self.prompts.iter().all(|prompt| prompt.ended) {
                self.state = State::Finished;
            } else if is_pending && !progressed {
                return Poll::Pending;
            }
        }
    }

    /// Adds the ends of outputs that were not reported yet.
    fn report_ends(&mut self, at: usize) {
        let RunningPrompt { stream, reported, parsers, .. } = &mut self.prompts[at];
        let summary = stream.summary();
        for (index, reason) in summary.finish_reasons.iter().enumerate() {
            if let (Some(reason), false) = (reason, reported[index]) {
                reported[index] = true;
                let (choice, parser) = (at * self.outputs + index, &mut parsers[index]);
                let deltas = parser.finish();
                if !deltas.is_empty() {
                    self.events.push_back(GenerationEvent::Deltas { choice, deltas, token: None });
                }
                let reason = match reason {
                    FinishReason::Length => EndReason::Length,
                    FinishReason::Stop if parser.has_calls() => EndReason::ToolCalls,
                    FinishReason::Stop => {
                        summary.stop_strings[index].map_or(EndReason::Stop, EndReason::StopString)
                    }
                };
                self.ends.push(reason.name());
                self.events.push_back(GenerationEvent::Finished { choice, reason });
            }
        }
    }

    fn count_token(&mut self, choice: usize, is_reasoning: bool) {
        let now = Instant::now();
        self.generated += 1;
        self.reasoning += usize::from(is_reasoning);
        self.first_token.get_or_insert(now);
        if let Some(last) = self.last_token[choice].replace(now) {
            self.app.metrics.generation.token(&self.loaded.name, now - last);
        }
    }

    /// Number of outputs.
    pub(crate) fn choices(&self) -> usize {
        self.outputs * self.prompts.len()
    }

    /// Tokens so far.
    pub(crate) fn usage(&self) -> TokenUsage {
        let summaries = self.prompts.iter().map(|prompt| prompt.stream.summary());
        let add = |usage: TokenUsage, summary: &GenerationSummary| TokenUsage {
            prompt: usage.prompt + summary.prompt_tokens,
            cached: usage.cached + summary.cached_tokens,
            ..usage
        };
        TokenUsage {
            generated: self.generated,
            reasoning: self.reasoning,
            ..summaries.fold(TokenUsage::default(), add)
        }
    }

    /// The work so far, for headers and the log.
    pub(crate) fn work(&self) -> Work {
        let usage = self.usage();
        let mut work = Work {
            model: self.loaded.name.clone(),
            texts: self.prompts.len(),
            tokens: usage.prompt,
            generated: Some(usage.generated),
            tokenizing: self.tokenizing,
            computing: self.arrived.elapsed().saturating_sub(self.tokenizing),
            first_token: self.first_token.map(|first| first - self.arrived),
            generation: self.first_token.map(|first_token| GenerationTimes {
                arrived: self.arrived,
                tokenized: self.arrived + self.tokenizing,
                first_token,
                ended: Instant::now(),
                cached: usage.cached,
            }),
            ..Work::default()
        };
        for prompt in &self.prompts {
            let summary = prompt.stream.summary();
            extend_new(&mut work.placements, &summary.placements);
            extend_new(&mut work.classes, &summary.classes);
        }
        work
    }

    /// Reserves `bytes` more until the generation ends.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.memory.grow(bytes)
    }

    /// Counts an error that ends the events.
    pub(super) fn refused(&self, refusal: &Refusal) {
        self.app.metrics.refused(refusal.code());
    }

    /// The record of the request, set at its end.
    pub(crate) fn record(&self) -> DeferredRecord {
        self.record.clone()
    }

    /// The next event; none after the last.
    pub(crate) async fn next(&mut self) -> Option<Result<GenerationEvent, Refusal>> {
        poll_fn(|context| self.poll_event(context)).await
    }
}

impl Drop for Generating {
    fn drop(&mut self) {
        let (metrics, name) = (&self.app.metrics, self.loaded.name.as_str());
        let usage = self.usage();
        let total = self.arrived.elapsed();
        match self.state {
            State::Running => metrics.cancelled.with_label_values(&[name]).inc(),
            State::Finished => metrics.generation_answered(self.method, name, total.as_secs_f64()),
            State::Failed => {}
        }
        metrics.generation.finished(&FinishedGeneration {
            model: name,
            prompt_tokens: usage.prompt,
            generated_tokens: usage.generated,
            reasons: &self.ends,
            first_token: self.first_token.map(|first| first - self.arrived),
            total,
        });
        // It may overdraw the rate limit: the next request waits for it.
        self.app.edge.debit(self.principal, usage.generated);
        self.record.set(self.work().record());
    }
}
