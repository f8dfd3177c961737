//! A loaded model, and its operations.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use sconce_core::card::{ModelCard, Task};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_planner::plan::{Downgrade, Plan};

use crate::card::CardError;
use crate::card::contents::{Unverified, concerns};
use crate::chat::{self, ChatOptions, ChatPrompt, Message};
use crate::error::Error;
use crate::execute::{Incident, Readmission, Readmitted, Serving};
use crate::generate::{
    CacheBudget, GenerateOptions, Generation, GenerationLoad, InvalidOption, Scheduling, StepLoop,
};
use crate::memory::{Claim, MemoryAccount, prover_bytes};
use crate::operations::classify::{self, Classifications, ClassifyOptions};
use crate::operations::embed::{self, EmbedOptions};
use crate::operations::late_interaction::{self, Matrix, TokenEmbeddings, maxsim};
use crate::operations::rerank::{self, Ranking, RerankOptions};
use crate::operations::similarity::{self, Similarities, SimilarityOptions};
use crate::operations::sparse::{self, SparseEmbeddings};
use crate::operations::{
    Embeddings, ModelContext, OutputMetadata, Prompt, SequenceOutput, expect_task, missing_prompt, run,
    run_each, tokenize,
};
use crate::runtime::Runtime;
use crate::tokenize::{ModelTokenizer, TokenSequence};

/// Texts that are embedded at once from an iterator.
const TEXTS_PER_CALL: usize = 4096;

/// A loaded model. Cheap to clone and shared between threads.
///
/// Its methods block the calling thread. In async code, call them where blocking is allowed, such as
/// `tokio::task::spawn_blocking`.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    tokenizer: Arc<ModelTokenizer>,
    serving: Arc<Serving>,
    /// The step loop, from the first generation on.
    step_loop: OnceLock<StepLoop>,
    kv_cache_bytes: Option<u64>,
    /// Set once the warning about a missing prompt was taken.
    warned_of_prompt: AtomicBool,
}

/// Text generation.
impl Model {
    /// Continues `prompt`. The text arrives piece by piece; [`Generation::text`] waits for all of it. Generations of one
    /// model share its steps, also across threads.
    ///
    /// ```no_run
    /// use sconce::{GenerateOptions, Model};
    ///
    /// # fn main() -> Result<(), sconce::Error> {
    /// let model = Model::open("SmolLM2-135M-Instruct.Q4_1.gguf")?;
    /// let options =
    ///     GenerateOptions { max_tokens: Some(64), temperature: 0.7, seed: Some(1), ..GenerateOptions::default() };
    /// for piece in model.generate("Once upon a time", &options)? {
    ///     print!("{}", piece?.text);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation, Error> {
        let tokens = self.inner.tokenizer.tokens(prompt, true)?;
        self.generate_from_ids(tokens.into_iter().map(|token| token.id).collect(), options)
    }

    /// Answers a conversation, which the model's chat template turns into a prompt.
    ///
    /// Control tokens come from the template alone: text in a message that looks like one stays text.
    ///
    /// ```no_run
    /// use sconce::{GenerateOptions, Message, Model};
    ///
    /// # fn main() -> Result<(), sconce::Error> {
    /// let model = Model::open("SmolLM2-135M-Instruct.Q4_1.gguf")?;
    /// let messages = [Message::system("Answer briefly."), Message::user("What is the capital of France?")];
    /// println!("{}", model.chat(&messages, &GenerateOptions::default())?.text()?);
    /// # Ok(()) }
    /// ```
    pub fn chat(&self, messages: &[Message], options: &GenerateOptions) -> Result<Generation, Error> {
        self.chat_with(messages, &ChatOptions::default(), options)
    }

    /// Answers a conversation, with tools or other variables of the chat template.
    pub fn chat_with(
        &self,
        messages: &[Message],
        chat: &ChatOptions,
        options: &GenerateOptions,
    ) -> Result<Generation, Error> {
        let prompt = self.chat_prompt(messages, chat)?;
        let mut options = options.clone();
        if !options.ignore_eos {
            options.stop_tokens.extend(prompt.stop_tokens);
        }
        self.generate_from_ids(prompt.ids, &options)
    }

    /// The chat template that these options choose.
    pub fn chat_template(&self, options: &ChatOptions) -> Result<&str, Error> {
        expect_task(self.card(), "chat", &[Task::Generate])?;
        Ok(chat::template(self.card(), options)?)
    }

    /// The prompt of a conversation, as text and as token ids.
    pub fn chat_prompt(&self, messages: &[Message], options: &ChatOptions) -> Result<ChatPrompt, Error> {
        expect_task(self.card(), "chat", &[Task::Generate])?;
        chat::prompt(self.card(), &self.inner.tokenizer, messages, options)
    }

    /// Continues a prompt of token ids.
    pub fn generate_from_ids(
        &self,
        prompt: Vec<u32>,
        options: &GenerateOptions,
    ) -> Result<Generation, Error> {
        self.generate_scheduled(prompt, options, Scheduling::default())
    }

    /// Load of the generations; none before the first one.
    pub fn generation_load(&self) -> Option<GenerationLoad> {
        self.inner.step_loop.get().map(StepLoop::load)
    }

    /// Continues a prompt of token ids, for callers that serve several tenants.
    pub fn generate_scheduled(
        &self,
        prompt: Vec<u32>,
        options: &GenerateOptions,
        scheduling: Scheduling,
    ) -> Result<Generation, Error> {
        expect_task(self.card(), "generate", &[Task::Generate])?;
        let vocabulary = self.card().sizes.value.vocabulary;
        let invalid = |error: InvalidOption| Error::Request(error.to_string());
        options.validate().map_err(invalid)?;
        options.validate_tokens(vocabulary).map_err(invalid)?;
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocabulary) {
            return Err(Error::Request(format!("token id {id} of a vocabulary of {vocabulary}")));
        }
        if prompt.is_empty() {
            return Err(Error::Request(
                "the prompt is empty: generation needs at least one token".to_owned(),
            ));
        }
        if self.inner.step_loop.get().is_none() {
            let started = {
                let Inner { runtime, serving, tokenizer, kv_cache_bytes, .. } = &*self.inner;
                let budget = CacheBudget { hardware: runtime.hardware().clone(), bytes: *kv_cache_bytes };
                StepLoop::start(serving, tokenizer, budget)
            };
            let started = started.map_err(|error| Error::Machine(format!("no thread: {error}")))?;
            let _ = self.inner.step_loop.set(started);
        }
        let ended = || Error::Machine("there is no step loop".to_owned());
        let step_loop = self.inner.step_loop.get().ok_or_else(ended)?;
        step_loop.generate(prompt, options, scheduling, Box::new(self.clone()))
    }
}

/// State and lifecycle.
impl Model {
    pub(crate) fn new(
        runtime: Runtime,
        tokenizer: ModelTokenizer,
        serving: Serving,
        unverified: Unverified,
        kv_cache_bytes: Option<u64>,
    ) -> Model {
        let model = {
            let (tokenizer, serving) = (Arc::new(tokenizer), Arc::new(serving));
            let step_loop = OnceLock::new();
            let warned_of_prompt = AtomicBool::new(false);
            let inner = Inner { runtime, tokenizer, serving, step_loop, kv_cache_bytes, warned_of_prompt };
            Model { inner: Arc::new(inner) }
        };
        model.verify_contents(unverified);
        model
    }

    /// The model card.
    pub fn card(&self) -> &ModelCard {
        &self.inner.serving.spec().card
    }

    /// The card and the tokenizer, for [`operations`](crate::operations).
    pub fn context(&self) -> ModelContext<'_> {
        ModelContext { card: self.card(), tokenizer: &self.inner.tokenizer }
    }

    /// The current plan. Retired placements are listed as refused.
    pub fn plan(&self) -> Plan {
        self.inner.serving.plan()
    }

    /// The active placement.
    pub fn placement(&self) -> Option<Placement> {
        self.plan().chosen.map(|chosen| chosen.placement)
    }

    /// Numerics class of the active placement.
    pub fn class(&self) -> Option<String> {
        self.inner.serving.class()
    }

    /// Downgrades since the last call: placements that failed at startup or at run time, and their replacements.
    pub fn drain_downgrades(&self) -> Vec<Downgrade> {
        self.inner.serving.drain_downgrades()
    }

    /// Incidents since the last call, each once. [`BatchOutput::incidents`](crate::BatchOutput::incidents) has the same,
    /// except for batches that failed.
    pub fn drain_incidents(&self) -> Vec<Incident> {
        self.inner.serving.drain_incidents()
    }

    /// Quarantined placements.
    pub fn quarantined(&self) -> Vec<Placement> {
        self.inner.serving.quarantined()
    }

    /// Why no placement is available. `None` while there is one.
    pub fn out_of_service(&self) -> Option<String> {
        self.inner.serving.out_of_service()
    }

    /// Memory of the model by device and purpose: the weights of all loaded placements.
    pub fn memory(&self) -> MemoryAccount {
        self.inner.serving.memory()
    }

    /// Memory of the model's weights on the active placement.
    pub fn claim(&self) -> Option<Claim> {
        Claim::of(self.card(), &self.placement()?)
    }

    /// Estimated main memory of a prover child for `placement`, in bytes.
    pub fn prover_claim(&self, placement: &Placement) -> u64 {
        let reference = self.plan().reference;
        prover_bytes(self.card(), reference.iter().chain([placement]))
    }

    /// Prepares the readmission of a quarantined placement. `None` if it is not quarantined.
    pub fn readmission(&self, placement: &Placement) -> Option<Readmission> {
        self.inner.serving.readmission(placement)
    }

    /// Returns a readmitted placement to its rank in the plan.
    pub fn admit(&self, readmitted: Readmitted) {
        self.inner.serving.admit(readmitted);
    }

    /// Proves a quarantined placement again, and returns it to the plan if it passes. This may take minutes, and does not
    /// block batches.
    pub fn readmit(&self, placement: &Placement) -> Result<(), Obstacle> {
        if let Some(readmission) = self.readmission(placement) {
            self.admit(readmission.prove()?);
        }
        Ok(())
    }

    /// Compares the files of viable placements with their recorded hashes, on a background thread. Retires the placements
    /// of a file that differs.
    fn verify_contents(&self, mut unverified: Unverified) {
        let (plan, spec) = (self.plan(), self.inner.serving.spec());
        let is_used =
            |file: &str| plan.viable().any(|viable| concerns(spec, file, &viable.placement.weights));
        unverified.retain(|path, _| is_used(&path.display().to_string()));
        if unverified.is_empty() {
            return;
        }
        let (contents, model) = (self.inner.runtime.inner.contents.clone(), Arc::downgrade(&self.inner));
        let verify = move || {
            if let Err(CardError::ContentChanged { file }) = contents.check(&unverified, &mut |_| {})
                && let Some(model) = model.upgrade()
            {
                model.serving.retire_changed_file(&file);
            }
        };
        // Without a thread, `sconce verify` still checks.
        let _ = thread::Builder::new().name("sconce-hash".to_owned()).spawn(verify);
    }

    /// The warning of [`missing_prompt`], once per model.
    pub fn take_prompt_warning<T: AsRef<str>>(&self, prompt: &Prompt, texts: &[T]) -> Option<String> {
        let was_warned = &self.inner.warned_of_prompt;
        if was_warned.load(Ordering::Relaxed) {
            return None;
        }
        let warning = missing_prompt(self.card(), prompt, texts.iter().map(AsRef::as_ref))?;
        (!was_warned.swap(true, Ordering::Relaxed)).then_some(warning)
    }

    pub(crate) fn serving(&self) -> &Serving {
        &self.inner.serving
    }

    /// Tokenizes all inputs with `sequence`, in parallel.
    pub(crate) fn tokenize<T: Sync>(
        &self,
        inputs: &[T],
        sequence: impl Fn(ModelContext<'_>, &T) -> Result<TokenSequence, Error> + Sync,
    ) -> Result<Vec<TokenSequence>, Error> {
        let pool = self.inner.runtime.inner.tokenizer_pool.as_ref();
        tokenize(pool, inputs, |input| sequence(self.context(), input))
    }

    fn run(&self, sequences: &[TokenSequence]) -> Result<(Vec<SequenceOutput>, OutputMetadata), Error> {
        let context = self.context();
        run(&self.inner.serving, context.output_kind(), context.is_sparse(), sequences)
    }
}

/// Operations.
impl Model {
    /// Embeds each text.
    pub fn embed<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Embeddings, Error> {
        self.embed_with(texts, &EmbedOptions::default())
    }

    /// Embeds texts as they are taken from an iterator, some thousand at a time. After an error it ends.
    ///
    /// ```no_run
    /// use std::io::{self, BufRead};
    ///
    /// # fn main() -> Result<(), sconce::Error> {
    /// let model = sconce::Model::open("minilm")?;
    /// for vector in model.embed_iter(io::stdin().lock().lines().map_while(Result::ok)) {
    ///     println!("{:?}", vector?);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn embed_iter<T: AsRef<str> + Sync>(
        &self,
        texts: impl IntoIterator<Item = T>,
    ) -> impl Iterator<Item = Result<Vec<f32>, Error>> {
        let mut texts = texts.into_iter().fuse();
        let batches = std::iter::from_fn(move || {
            let batch: Vec<T> = texts.by_ref().take(TEXTS_PER_CALL).collect();
            (!batch.is_empty()).then(|| self.embed(&batch))
        });
        let mut failed = false;
        let batches = batches.take_while(move |batch| !std::mem::replace(&mut failed, batch.is_err()));
        batches.flat_map(|batch| match batch {
            Ok(embeddings) => embeddings.into_iter().map(Ok).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        })
    }

    /// Embeds a search query, with the model's prompt for queries.
    ///
    /// ```no_run
    /// use sconce::{Model, cosine};
    ///
    /// # fn main() -> Result<(), sconce::Error> {
    /// let model = Model::open("e5-small")?;
    /// let documents = model.embed_documents(&["list.sort() orders it in place", "the harbour at night"])?;
    /// let query = model.embed_query("how do I sort a list?")?;
    /// println!("{}", cosine(&query, &documents[0]));
    /// # Ok(()) }
    /// ```
    pub fn embed_query(&self, query: &str) -> Result<Vec<f32>, Error> {
        let options = EmbedOptions { prompt: Prompt::Query, ..EmbedOptions::default() };
        let embeddings = self.embed_with(&[query], &options)?;
        Ok(embeddings.into_iter().next().unwrap_or_default())
    }

    /// Embeds documents that are searched, with the model's prompt for documents.
    pub fn embed_documents<T: AsRef<str> + Sync>(&self, documents: &[T]) -> Result<Embeddings, Error> {
        self.embed_with(documents, &EmbedOptions { prompt: Prompt::Document, ..EmbedOptions::default() })
    }

    /// Embeds each text, with options.
    pub fn embed_with<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &EmbedOptions,
    ) -> Result<Embeddings, Error> {
        let mut vectors = vec![Vec::new(); texts.len()];
        let metadata = self.embed_each(texts, options, |index, vector| {
            vectors[index] = vector.to_vec();
            ControlFlow::Continue(())
        })?;
        Ok(Embeddings::new(vectors, metadata))
    }

    /// Embeds each text, and gives its index and vector to `store` once its batch is computed. If `store` breaks, the other
    /// batches are not computed. For callers with their own memory for vectors, and for progress.
    pub fn embed_each<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &EmbedOptions,
        mut store: impl FnMut(usize, &[f32]) -> ControlFlow<()>,
    ) -> Result<OutputMetadata, Error> {
        embed::check(self.card(), options)?;
        if let Some(warning) = self.take_prompt_warning(&options.prompt, texts) {
            tracing::warn!("{warning}\nhint: `embed_query` and `embed_documents` add them");
        }
        let sequences = self.encode_texts(&options.prompt, texts)?;
        let store = |index: usize, row: &[f32], norm: Option<f32>| {
            if embed::is_row(options) {
                store(index, row)
            } else {
                store(index, &embed::vector(self.card(), row, norm, options))
            }
        };
        run_each(&self.inner.serving, self.context().output_kind(), &sequences, store)
    }

    /// Embeds each text as sparse token weights.
    pub fn embed_sparse<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &EmbedOptions,
    ) -> Result<SparseEmbeddings, Error> {
        sparse::check(self.card(), options)?;
        let sequences = self.encode_texts(&options.prompt, texts)?;
        let (outputs, metadata) = self.run(&sequences)?;
        Ok(SparseEmbeddings { texts: sparse::weights(outputs), metadata })
    }

    /// Embeds each token of each document, with a late-interaction model.
    pub fn embed_tokens<T: AsRef<str> + Sync>(&self, documents: &[T]) -> Result<TokenEmbeddings, Error> {
        expect_task(self.card(), "embed_tokens", &[Task::Tokens])?;
        let sequence =
            |model: ModelContext<'_>, text: &T| late_interaction::document_sequence(model, text.as_ref());
        let sequences = self.tokenize(documents, sequence)?;
        let (outputs, metadata) = self.run(&sequences)?;
        let texts = late_interaction::document_matrices(self.context(), &sequences, &outputs);
        Ok(TokenEmbeddings { texts, metadata })
    }

    /// Embeds each token of each query, with a late-interaction model.
    pub fn embed_queries<T: AsRef<str> + Sync>(&self, queries: &[T]) -> Result<TokenEmbeddings, Error> {
        expect_task(self.card(), "embed_queries", &[Task::Tokens])?;
        let sequence =
            |model: ModelContext<'_>, text: &T| late_interaction::query_sequence(model, text.as_ref());
        let (outputs, metadata) = self.run(&self.tokenize(queries, sequence)?)?;
        let matrix = |output: &SequenceOutput| late_interaction::query_matrix(self.card(), output.values());
        Ok(TokenEmbeddings { texts: outputs.iter().map(matrix).collect(), metadata })
    }

    /// Sorts `documents` by relevance to `query`: by the score of a cross-encoder, a label of a pair classifier, or the
    /// MaxSim of a late-interaction model.
    pub fn rerank<T: AsRef<str> + Sync>(
        &self,
        query: &str,
        documents: &[T],
        options: &RerankOptions,
    ) -> Result<Ranking, Error> {
        let (scores, metadata) = if rerank::check(self.card(), options)? == Task::Tokens {
            self.maxsim_scores(query, documents)?
        } else {
            let sequence = |model: ModelContext<'_>, document: &T| {
                rerank::sequence(model, query, document.as_ref(), options)
            };
            let (outputs, metadata) = self.run(&self.tokenize(documents, sequence)?)?;
            (rerank::scores(self.card(), &outputs, options), metadata)
        };
        Ok(Ranking { ranked: rerank::ranking(&scores, options.top), metadata })
    }

    /// Classifies each text.
    pub fn classify<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &ClassifyOptions,
    ) -> Result<Classifications, Error> {
        classify::check(self.card())?;
        let sequences = self.tokenize(texts, |model, text| classify::sequence(model, text.as_ref()))?;
        self.classifications(&sequences, options)
    }

    /// Classifies each text pair.
    pub fn classify_pairs<T: AsRef<str> + Sync>(
        &self,
        pairs: &[(T, T)],
        options: &ClassifyOptions,
    ) -> Result<Classifications, Error> {
        classify::check(self.card())?;
        let sequences = self.tokenize(pairs, |model, (first, second)| {
            classify::pair_sequence(model, first.as_ref(), second.as_ref(), options.truncation)
        })?;
        self.classifications(&sequences, options)
    }

    fn classifications(
        &self,
        sequences: &[TokenSequence],
        options: &ClassifyOptions,
    ) -> Result<Classifications, Error> {
        let (outputs, metadata) = self.run(sequences)?;
        Ok(Classifications { texts: classify::classifications(self.card(), &outputs, options), metadata })
    }

    /// Similarity of `text` to each of `others`.
    pub fn similarity<T: AsRef<str> + Sync>(&self, text: &str, others: &[T]) -> Result<Similarities, Error> {
        self.similarity_with(text, others, &SimilarityOptions::default())
    }

    /// Similarity of `text` to each of `others`, with prompts.
    pub fn similarity_with<T: AsRef<str> + Sync>(
        &self,
        text: &str,
        others: &[T],
        options: &SimilarityOptions,
    ) -> Result<Similarities, Error> {
        if similarity::check(self.card(), options)? == Task::Tokens {
            let (scores, metadata) = self.maxsim_scores(text, others)?;
            return Ok(Similarities { scores, metadata });
        }
        let mut sequences = vec![similarity::sequence(self.context(), options, text, false)?];
        sequences.extend(
            self.tokenize(others, |model, other| similarity::sequence(model, options, other.as_ref(), true))?,
        );
        let (outputs, metadata) = self.run(&sequences)?;
        Ok(Similarities { scores: similarity::scores(self.context(), &sequences, outputs), metadata })
    }

    /// MaxSim of the query and each document. The query comes last in the metadata.
    fn maxsim_scores<T: AsRef<str> + Sync>(
        &self,
        query: &str,
        documents: &[T],
    ) -> Result<(Vec<f32>, OutputMetadata), Error> {
        let queries = self.embed_queries(&[query])?;
        let documents = self.embed_tokens(documents)?;
        let query = &queries.texts[0];
        let scores = documents.texts.iter().map(|document: &Matrix| maxsim(query, document)).collect();
        let mut metadata = documents.metadata;
        metadata.add(queries.metadata, documents.texts.len());
        Ok((scores, metadata))
    }
}
