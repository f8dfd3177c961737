//! Text generation: prompts or a conversation to a stream of events, within the limits of the server.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use sconce::{
    ChatOptions, FinishReason, GenerateOptions, GeneratedToken, GenerationStream, Message, Model, Scheduling,
};
use sconce_http::event_stream::{EventFormat, EventStream};
use sconce_http::keys::Principal;
use sconce_http::memory_budget::Reservation;
use sconce_http::refusal::{Kind, Refusal};
use sconce_http::telemetry::DeferredRecord;

use crate::errors::refusal;
use crate::operations::context::{RequestContext, invalid};
use crate::operations::output_parser::{Delta, OutputParser};
use crate::operations::tools::Tools;
use crate::schedule::generation_quota::GenerationPermit;
use crate::schedule::next_batch::Priority;
use crate::state::app::App;
use crate::state::generation_metrics::FinishedGeneration;
use crate::state::slot::LoadedModel;
use crate::state::work::Work;

/// Maximum bytes of a prompt or of the texts of a conversation.
const MAX_PROMPT: usize = 4 << 20;
/// Bytes that a token takes while its request is in flight.
const TOKEN_BYTES: usize = 16;

/// What is continued.
pub(crate) enum PromptInput {
    Text(String),
    Ids(Vec<u32>),
    Conversation { messages: Vec<Message>, options: ChatOptions, tools: Tools },
}

/// What a generation reports.
#[derive(Debug, PartialEq)]
pub(crate) enum GenerationEvent {
    /// The next parts of an output, and the token that they come from, unless they were held back until the end.
    Deltas { choice: usize, deltas: Vec<Delta>, token: Option<GeneratedToken> },
    /// An output ended.
    Finished { choice: usize, reason: EndReason },
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// An end token.
    Stop,
    /// The stop string of this index.
    StopString(usize),
    /// The maximum number of tokens.
    Length,
    /// The model called tools.
    ToolCalls,
}

impl EndReason {
    /// The name that OpenAI's API uses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EndReason::Stop | EndReason::StopString(_) => FinishReason::Stop.name(),
            EndReason::Length => FinishReason::Length.name(),
            EndReason::ToolCalls => "tool_calls",
        }
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenUsage {
    pub(crate) prompt: usize,
    /// Tokens of the prompt that were in the prefix cache.
    pub(crate) cached: usize,
    pub(crate) generated: usize,
}

/// A running generation of one or more prompts. Dropping it cancels it.
pub(crate) struct Generating {
    prompts: Vec<RunningPrompt>,
    /// Number of outputs of each prompt.
    outputs: usize,
    events: VecDeque<GenerationEvent>,
    closing: Pin<Box<dyn Future<Output = ()> + Send>>,
    state: State,
    app: Arc<App>,
    pub(crate) loaded: Arc<LoadedModel>,
    principal: Principal,
    method: &'static str,
    arrived: Instant,
    tokenizing: Duration,
    first_token: Option<Instant>,
    /// Time of the last token of each output.
    last_token: Vec<Option<Instant>>,
    generated: usize,
    /// Why outputs ended.
    ends: Vec<&'static str>,
    record: DeferredRecord,
    _permit: GenerationPermit,
    _memory: Reservation,
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

impl PromptInput {
    fn bytes(&self) -> usize {
        match self {
            PromptInput::Text(text) => text.len(),
            PromptInput::Ids(ids) => 4 * ids.len(),
            PromptInput::Conversation { messages, tools, .. } => conversation_bytes(messages, tools),
        }
    }

    /// The token ids, the options with what the chat template adds to them, and the parser of the output.
    fn prepare(self, model: &Model, mut options: GenerateOptions) -> Result<Prepared, Refusal> {
        let (ids, parser) = match self {
            PromptInput::Text(text) => {
                let tokens = model.tokens(&text, true).map_err(refusal)?;
                (tokens.into_iter().map(|token| token.id).collect(), OutputParser::plain())
            }
            PromptInput::Ids(ids) => (ids, OutputParser::plain()),
            PromptInput::Conversation { messages, options: mut chat, tools } => {
                let callable = tools.are_callable();
                let template = model.chat_template(&chat).map_err(refusal)?;
                if let Some(calls) = tools.structured_output(template)?
                    && options.structured_output.replace(calls).is_some()
                {
                    return Err(invalid("a required tool call and `response_format` exclude each other"));
                }
                chat.tools = callable.then_some(tools.definitions);
                let prompt = model.chat_prompt(&messages, &chat).map_err(refusal)?;
                if !options.ignore_eos {
                    options.stop_tokens.extend(prompt.stop_tokens);
                }
                (prompt.ids, OutputParser::of(template, &prompt.text, callable))
            }
        };
        Ok(Prepared { ids, options, parser })
    }
}

/// A prompt that is ready to be continued.
struct Prepared {
    ids: Vec<u32>,
    options: GenerateOptions,
    parser: OutputParser,
}

/// Bytes of a conversation.
pub(super) fn conversation_bytes(messages: &[Message], tools: &Tools) -> usize {
    let messages = messages.iter().map(|message| json_bytes(&message.0)).sum::<usize>();
    messages + tools.definitions.iter().map(json_bytes).sum::<usize>()
}

/// Rejects prompts of too many bytes.
pub(super) fn check_bytes(bytes: usize) -> Result<(), Refusal> {
    if bytes > MAX_PROMPT {
        let message = format!("a prompt has at most {MAX_PROMPT} bytes, and this one {bytes}");
        return Err(Refusal::new(Kind::TooLarge, message));
    }
    Ok(())
}

/// Bytes of a value as JSON.
fn json_bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |bytes| bytes.len())
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
    let limit = app.settings().max_generations;
    let permit = loaded.generations.admit(principal.tenant, outputs * prompts.len(), limit);
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
        ends: Vec::new(),
        record: DeferredRecord::default(),
        _permit: permit,
        _memory: memory,
    };
    poll_fn(|context| generating.poll_first(context)).await?;
    Ok(generating)
}

impl Generating {
    /// Waits until an event is there.
    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        match std::task::ready!(self.poll_event(context)) {
            Some(Err(refusal)) => Poll::Ready(Err(refusal)),
            Some(Ok(event)) => {
                self.events.push_front(event);
                Poll::Ready(Ok(()))
            }
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<GenerationEvent, Refusal>>> {
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
                        if piece.token.is_some() {
                            self.count_token(choice);
                        }
                        let deltas = self.prompts[at].parsers[piece.choice].push(&piece.text);
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

    fn count_token(&mut self, choice: usize) {
        let now = Instant::now();
        self.generated += 1;
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
        let add = |usage: TokenUsage, summary: &sconce::GenerationSummary| TokenUsage {
            prompt: usage.prompt + summary.prompt_tokens,
            cached: usage.cached + summary.cached_tokens,
            ..usage
        };
        TokenUsage { generated: self.generated, ..summaries.fold(TokenUsage::default(), add) }
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
            ..Work::default()
        };
        for prompt in &self.prompts {
            let summary = prompt.stream.summary();
            let new =
                |known: &Vec<sconce::Placement>, placement: &sconce::Placement| !known.contains(placement);
            let placements = summary.placements.iter().filter(|placement| new(&work.placements, placement));
            let placements: Vec<sconce::Placement> = placements.cloned().collect();
            work.placements.extend(placements);
            let classes = summary.classes.iter().filter(|class| !work.classes.contains(class));
            let classes: Vec<String> = classes.cloned().collect();
            work.classes.extend(classes);
        }
        work
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
        // What is generated is charged even if it overdraws the limit: the next request waits for it.
        let _ = self.app.edge.charge(self.principal, usage.generated);
        self.record.set(self.work().record());
    }
}

/// Writes the events of a generation in the format of an API.
pub(crate) trait EventWriter: Send + Unpin + 'static {
    /// How events are written.
    const FORMAT: EventFormat;

    /// Writes what comes before the first event.
    fn start(&mut self, generating: &Generating, output: &mut Vec<u8>);

    /// Writes an event.
    fn event(&mut self, event: GenerationEvent, loaded: &LoadedModel, output: &mut Vec<u8>);

    /// Writes the end of all outputs.
    fn finish(&mut self, usage: TokenUsage, output: &mut Vec<u8>);

    /// Writes an error, which is the last event.
    fn fail(&mut self, refusal: &Refusal, output: &mut Vec<u8>);
}

/// The events of a generation as a response body.
pub(crate) fn event_stream<W: EventWriter>(generating: Generating, writer: W) -> EventStream {
    EventStream::new(W::FORMAT, WrittenEvents { generating, writer, started: false, ended: false })
}

struct WrittenEvents<W> {
    generating: Generating,
    writer: W,
    started: bool,
    ended: bool,
}

impl<W: EventWriter> Stream for WrittenEvents<W> {
    type Item = Vec<u8>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let WrittenEvents { generating, writer, started, ended } = &mut *self;
        if *ended {
            return Poll::Ready(None);
        }
        let mut output = Vec::new();
        if !std::mem::replace(started, true) {
            writer.start(generating, &mut output);
        }
        // Events that are there already are written together.
        loop {
            match generating.poll_event(context) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(event))) => writer.event(event, &generating.loaded, &mut output),
                Poll::Ready(Some(Err(refusal))) => {
                    generating.app.metrics.refused(refusal.code());
                    writer.fail(&refusal, &mut output);
                    *ended = true;
                    break;
                }
                Poll::Ready(None) => {
                    writer.finish(generating.usage(), &mut output);
                    *ended = true;
                    break;
                }
            }
        }
        if output.is_empty() { Poll::Pending } else { Poll::Ready(Some(output)) }
    }
}

/// One output of a finished generation.
#[derive(Debug, Default)]
pub(crate) struct FinishedOutput {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) reason: Option<EndReason>,
    /// Its tokens, each with the text that it added.
    pub(crate) tokens: Vec<(GeneratedToken, String)>,
}

/// A call of a tool.
#[derive(Debug, Default)]
pub(crate) struct ToolCall {
    pub(crate) name: String,
    /// JSON.
    pub(crate) arguments: String,
}

impl FinishedOutput {
    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Text(text) => self.text += &text,
            Delta::Reasoning(text) => self.reasoning += &text,
            Delta::Call { name, .. } => self.calls.push(ToolCall { name, arguments: String::new() }),
            Delta::Arguments { text, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments += &text;
                }
            }
        }
    }
}

/// Waits for all outputs.
pub(crate) async fn finish(generating: &mut Generating) -> Result<Vec<FinishedOutput>, Refusal> {
    let mut outputs: Vec<FinishedOutput> =
        (0..generating.choices()).map(|_| FinishedOutput::default()).collect();
    while let Some(event) = generating.next().await {
        match event? {
            GenerationEvent::Deltas { choice, deltas, token } => {
                let output = &mut outputs[choice];
                let before = output.text.len();
                for delta in deltas {
                    output.add(delta);
                }
                // Tokens are kept only where their log probabilities were requested.
                let text = output.text[before..].to_owned();
                output
                    .tokens
                    .extend(token.filter(|token| token.logprob.is_some()).map(|token| (token, text)));
            }
            GenerationEvent::Finished { choice, reason } => outputs[choice].reason = Some(reason),
        }
    }
    Ok(outputs)
}
