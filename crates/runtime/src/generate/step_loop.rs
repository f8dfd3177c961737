//! The step loop of a model: one thread that computes the next tokens of all its generations in one running batch.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use sconce_core::batch::{Batch, CachedSequence, OutputKind};
use sconce_core::generator::CacheLayout;

use tracing::trace;

use super::blocks::{BlockCopy, BlockPool};
use super::cache_budget::CacheBudget;
use super::constraint::{Constraint, ConstraintCompiler};
use super::events::{self, EventSender};
use super::generation::{Event, Generation};
use super::load::{GenerationLoad, PublishedLoad};
use super::options::GenerateOptions;
use super::prefill_budget::PrefillBudget;
use super::schedule::{Limits, NewSequence, Scheduler, Scheduling, SequenceId, Step};
use super::sequence::{Next, OutputSequence};
use super::structured_output::StructuredOutput;
use crate::device::panic_message;
use crate::error::Error;
use crate::execute::{Decoder, Serving, StepError};
use crate::tokenize::ModelTokenizer;

/// Limits of a step.
const LIMITS: Limits = Limits { step_tokens: 1024, prefill_tokens: 512, sequences: 256, watermark: 4 };
/// Handle of the step loop. The loop ends when it is dropped.
pub(crate) struct StepLoop {
    requests: Sender<Request>,
    serving: Arc<Serving>,
    tokenizer: Arc<ModelTokenizer>,
    /// Made for the first request with structured output.
    constraints: OnceLock<Result<ConstraintCompiler, String>>,
    load: PublishedLoad,
}

/// A request to the step loop.
struct Request {
    prompt: Vec<u32>,
    options: GenerateOptions,
    constraint: Option<Constraint>,
    seed: u64,
    scheduling: Scheduling,
    events: EventSender<Event>,
    cancelled: Arc<AtomicBool>,
}

impl StepLoop {
    /// Starts the thread of the step loop.
    pub(crate) fn start(
        serving: &Arc<Serving>,
        tokenizer: &Arc<ModelTokenizer>,
        budget: CacheBudget,
    ) -> std::io::Result<StepLoop> {
        let (requests, received) = mpsc::channel();
        let (serving, tokenizer) = (Arc::clone(serving), Arc::clone(tokenizer));
        let load = PublishedLoad::default();
        let mut running = Running::new(Arc::clone(&serving), Arc::clone(&tokenizer), budget);
        running.published = load.clone();
        let body = move || running.run(&received);
        thread::Builder::new().name("sconce-steps".to_owned()).spawn(body)?;
        Ok(StepLoop { requests, serving, tokenizer, constraints: OnceLock::new(), load })
    }

    /// The load after the last step.
    pub(crate) fn load(&self) -> GenerationLoad {
        self.load.get()
    }

    /// Starts a generation that keeps `model` until it ends.
    pub(crate) fn generate(
        &self,
        prompt: Vec<u32>,
        options: &GenerateOptions,
        scheduling: Scheduling,
        model: Box<dyn Send>,
    ) -> Result<Generation, Error> {
        let constraint = options.structured_output.as_ref().map(|output| self.compile(output)).transpose()?;
        let (events, received) = events::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let generation =
            Generation::new(received, Arc::clone(&cancelled), (prompt.len(), options.n.max(1)), model);
        let seed = options.seed.unwrap_or_else(random_seed);
        let options = options.clone();
        let request = Request { prompt, options, constraint, seed, scheduling, events, cancelled };
        let ended = || Error::Machine("the thread of the step loop ended".to_owned());
        self.requests.send(request).map_err(|_| ended())?;
        Ok(generation)
    }

    /// Compiles the structured output of a request.
    fn compile(&self, output: &StructuredOutput) -> Result<Constraint, Error> {
        let compiler = self.constraints.get_or_init(|| {
            let tokens = self.tokenizer.token_bytes();
            let tokens = tokens.ok_or("the tokens of this tokenizer have no bytes of their own")?;
            ConstraintCompiler::new(tokens, end_tokens(&self.serving))
        });
        let unsupported = |why| Error::Request(format!("structured output is not available: {why}"));
        let compiler = compiler.as_ref().map_err(unsupported)?;
        let refused = |why| Error::Request(format!("{} can't be used: {why}", output.name()));
        compiler.compile(output).map_err(refused)
    }
}

/// The end tokens of a model.
fn end_tokens(serving: &Serving) -> &[u32] {
    let tokens = serving.spec().card.generation.end_tokens.as_ref();
    tokens.map_or(&[][..], |tokens| &tokens.value)
}

/// A seed from the process's random hash keys.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// State of the step loop.
struct Running {
    serving: Arc<Serving>,
    tokenizer: Arc<ModelTokenizer>,
    budget: CacheBudget,
    /// The placement, from the first request on.
    decoder: Option<Decoder>,
    scheduler: Option<Scheduler>,
    outputs: HashMap<SequenceId, OutputSequence>,
    next_id: SequenceId,
    prefill_budget: PrefillBudget,
    load: GenerationLoad,
    published: PublishedLoad,
}

impl Running {
    fn new(serving: Arc<Serving>, tokenizer: Arc<ModelTokenizer>, budget: CacheBudget) -> Running {
        Running {
            serving,
            tokenizer,
            budget,
            decoder: None,
            scheduler: None,
            outputs: HashMap::new(),
            next_id: 0,
            prefill_budget: PrefillBudget::default(),
            load: GenerationLoad::default(),
            published: PublishedLoad::default(),
        }
    }

    fn run(mut self, requests: &Receiver<Request>) {
        loop {
            // Without work it waits for a request. The channel closes with the model.
            let first = if self.outputs.is_empty() {
                let Ok(request) = requests.recv() else { return };
                Some(request)
            } else {
                None
            };
            let arrived = first.into_iter().chain(requests.try_iter()).collect();
            let turn = catch_unwind(AssertUnwindSafe(|| self.turn(arrived)));
            if let Err(panic) = turn {
                self.fail_all(Error::Machine(format!("the step loop panicked: {}", panic_message(&*panic))));
                (self.decoder, self.scheduler) = (None, None);
            }
            self.publish_load();
        }
    }

    fn publish_load(&mut self) {
        if let Some(scheduler) = &self.scheduler {
            let pool = scheduler.pool();
            (self.load.running, self.load.waiting) = (scheduler.running(), scheduler.waiting());
            (self.load.blocks, self.load.used_blocks) = (pool.total(), pool.total() - pool.free());
        }
        self.published.set(self.load);
    }

    /// Admits requests, and computes a step of all that run.
    fn turn(&mut self, arrived: Vec<Request>) {
        for request in arrived {
            self.admit(request);
        }
        self.remove_cancelled();
        if let Err(error) = self.step() {
            self.fail_all(error);
        }
    }

    fn admit(&mut self, request: Request) {
        let Request { prompt, options, constraint, seed, scheduling, events, cancelled } = request;
        if let Err(error) = self.open() {
            events.send(Event::Failed(Box::new(error)));
            return;
        }
        let (Some(scheduler), Some(decoder)) = (&mut self.scheduler, &self.decoder) else { return };
        let card = &self.serving.spec().card;
        let end_tokens = end_tokens(&self.serving);
        let capacity = scheduler.pool().total() * scheduler.pool().block_size();
        let context = card.max_length.value;
        if prompt.len() >= context {
            let message = format!(
                "the prompt has {} tokens, and the context {context}: no token is left to generate",
                prompt.len()
            );
            events.send(Event::Failed(Box::new(Error::Request(message))));
            return;
        }
        let requested = options
            .max_tokens
            .map_or(capacity.max(prompt.len() + 1), |most| prompt.len().saturating_add(most));
        let max_length = requested.min(context);
        let first = self.next_id;
        let new = NewSequence { id: first, scheduling, ids: prompt.clone(), max_length };
        if let Err(error) = scheduler.submit(new) {
            events.send(Event::Failed(Box::new(Error::Request(error.to_string()))));
            return;
        }
        for choice in 0..options.n.max(1) {
            if choice > 0 {
                scheduler.fork(first, self.next_id);
            }
            let output = OutputSequence::new(
                &self.tokenizer,
                end_tokens,
                &prompt,
                options.clone(),
                (seed, choice),
                events.clone(),
                Arc::clone(&cancelled),
            );
            let output = output.constrained(constraint.clone());
            output.send(Event::Placed(decoder.placement().clone(), decoder.class().to_owned()));
            self.outputs.insert(self.next_id, output);
            self.next_id += 1;
        }
    }

    /// Reserves a KV cache on the active placement, unless there is one. After a change of placement every sequence is
    /// computed again.
    fn open(&mut self) -> Result<(), Error> {
        if self.decoder.as_ref().is_some_and(|decoder| self.serving.is_active(decoder)) {
            return Ok(());
        }
        self.decoder = None;
        let card = &self.serving.spec().card;
        let decoder =
            self.serving.decoder(|placement, layout| self.budget.blocks(card, placement, layout))?;
        let total = u32::try_from(decoder.blocks).unwrap_or(u32::MAX);
        let CacheLayout { block_size, separates_prompts, .. } = decoder.layout;
        let pool = BlockPool::new(total, block_size).separating_prompts(separates_prompts);
        match &mut self.scheduler {
            None => self.scheduler = Some(Scheduler::new(pool, LIMITS)),
            Some(scheduler) => {
                for (id, error) in scheduler.replace_pool(pool) {
                    if let Some(output) = self.outputs.remove(&id) {
                        output.send(Event::Failed(Box::new(Error::Request(error.to_string()))));
                    }
                }
            }
        }
        let (placement, class) = (decoder.placement().clone(), decoder.class().to_owned());
        for output in self.outputs.values() {
            output.send(Event::Placed(placement.clone(), class.clone()));
        }
        self.decoder = Some(decoder);
        Ok(())
    }

    fn remove_cancelled(&mut self) {
        let Some(scheduler) = &mut self.scheduler else { return };
        self.outputs.retain(|id, output| {
            let cancelled = output.is_cancelled();
            if cancelled {
                scheduler.remove(*id);
            }
            !cancelled
        });
    }

    /// Computes one step, and samples the next tokens.
    fn step(&mut self) -> Result<(), Error> {
        if self.outputs.is_empty() {
            return Ok(());
        }
        self.open()?;
        let (Some(scheduler), Some(decoder)) = (&mut self.scheduler, &self.decoder) else { return Ok(()) };
        let singles = scheduler.decodes();
        let prompts = scheduler.waiting() + scheduler.running() - singles;
        let prefill_tokens = self.prefill_budget.tokens(singles, prompts, LIMITS.prefill_tokens);
        let step = scheduler.next_step(prefill_tokens);
        let began = Instant::now();
        let copies = step.copies.iter().map(|BlockCopy { source, destination }| (*source, *destination));
        let batch = batch(scheduler, &step);
        if batch.sequences.is_empty() {
            return Err(Error::Machine("the schedule has no work for its sequences".to_owned()));
        }
        let copies = copies.collect();
        let sampled: HashSet<SequenceId> =
            step.work.iter().filter(|work| work.needs_logits).map(|work| work.id).collect();
        let outputs =
            self.outputs.iter_mut().filter(|(id, output)| sampled.contains(id) && output.needs_mask());
        let mut constrained: Vec<&mut OutputSequence> = outputs.map(|(_, output)| output).collect();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let share = constrained.len().div_ceil(threads).max(1);
        let stepped = thread::scope(|scope| {
            // Masks are computed beside the step.
            for outputs in constrained.chunks_mut(share) {
                scope.spawn(|| outputs.iter_mut().for_each(|output| output.prepare_mask()));
            }
            self.serving.step(decoder, copies, batch)
        });
        let mut logits = match stepped {
            Ok(logits) => logits,
            Err(StepError::Error(error)) => return Err(*error),
            Err(StepError::Placement) => {
                self.decoder = None;
                return Ok(());
            }
        };
        scheduler.advance(&step);
        let single = step.work.iter().filter(|work| work.range.len() == 1).count();
        let prefill = step.work.iter().map(|work| work.range.len()).sum::<usize>() - single;
        let took = began.elapsed();
        self.prefill_budget.observe(single, prefill, took.as_secs_f64());
        self.load.steps += 1;
        self.load.step_time += took;
        self.load.decode_tokens += single as u64;
        self.load.prefill_tokens += prefill as u64;
        self.load.preemptions += step.preempted.len() as u64;
        for (id, cached) in &step.admitted {
            let Some(output) = self.outputs.get_mut(id) else { continue };
            if output.admit(*cached) {
                self.load.prefix_queries += scheduler.ids(*id).map_or(0, <[u32]>::len) as u64;
                self.load.prefix_hits += *cached as u64;
            }
        }
        let (running, waiting) = (scheduler.running(), scheduler.waiting());
        let prefix_blocks = scheduler.pool().cached();
        trace!(running, waiting, prefix_blocks, preempted = step.preempted.len(), "step");
        let width = logits.width;
        let needed = step.work.iter().filter(|work| work.needs_logits);
        for (work, logits) in needed.zip(logits.values.chunks_exact_mut(width)) {
            let Some(output) = self.outputs.get_mut(&work.id) else { continue };
            let next = output.next(logits);
            let continues = match next {
                Ok(Next::Continue(token)) => {
                    let continues = scheduler.append(work.id, token);
                    if !continues {
                        output.finish_at_length();
                    }
                    continues
                }
                Ok(Next::Finished) => false,
                Err(error) => {
                    output.send(Event::Failed(Box::new(Error::Request(error.to_string()))));
                    false
                }
            };
            if !continues {
                scheduler.remove(work.id);
                self.outputs.remove(&work.id);
            }
        }
        Ok(())
    }

    fn fail_all(&mut self, error: Error) {
        let message = error.to_string();
        let mut error = Some(error);
        for (id, output) in self.outputs.drain() {
            // The first one gets the error itself.
            let error = error.take().unwrap_or_else(|| Error::Machine(message.clone()));
            output.send(Event::Failed(Box::new(error)));
            if let Some(scheduler) = &mut self.scheduler {
                scheduler.remove(id);
            }
        }
    }
}

/// The tokens of a step as a batch.
fn batch(scheduler: &Scheduler, step: &Step) -> Batch {
    let mut batch = Batch::new(OutputKind::Logits);
    for work in &step.work {
        let (Some(ids), Some(blocks)) = (scheduler.ids(work.id), scheduler.block_table(work.id)) else {
            continue;
        };
        let (length, logits, blocks) = (work.range.start, usize::from(work.needs_logits), blocks.to_vec());
        let cached = CachedSequence { length, blocks, logits, prompt: work.prompt };
        batch.push_cached(&ids[work.range.clone()], cached);
    }
    batch
}
