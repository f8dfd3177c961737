//! A model that is open: text in, vectors out.

use std::sync::Arc;
use std::thread;

use rayon::prelude::*;
use sconce_core::card::{Dimensions, ModelCard, PoolingMode, Task};
use sconce_core::device::Device;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_planner::band::Band;
use sconce_planner::cases::CANARIES;
use sconce_planner::evidence::Goal;
use sconce_planner::plan::{Constraints, Downgrade, Plan, plan};

use crate::canary;
use crate::card::{CardError, Overrides};
use crate::contents::{Unchecked, concerns};
use crate::embeddings::{Embeddings, cut};
use crate::error::Error;
use crate::event::Event;
use crate::inspect;
use crate::low_level::Incident;
use crate::prompt::Prompt;
use crate::prove::Depth;
use crate::runtime::Runtime;
use crate::serving::Serving;
use crate::source::ModelSource;
use crate::tokens::{Tokenized, Tokens};
use crate::vocabulary::VocabularyError;

/// A model that is open. Cheap to clone and shared between threads.
///
/// Its methods block the thread that calls them; from async code call them where blocking is allowed, as in
/// `tokio::task::spawn_blocking`.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    tokens: Tokens,
    serving: Serving,
}

/// How a model is to be opened.
#[derive(Clone, Default)]
pub struct ModelBuilder {
    name: String,
    revision: Option<String>,
    runtime: Option<Runtime>,
    constraints: Constraints,
    overrides: Overrides,
    offline: bool,
}

/// What a model will take, or takes, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The placement.
    pub placement: Placement,
    /// What the weights are, to tell whether they changed.
    pub identity: String,
    /// Bytes of the weights in the numbers of the placement.
    pub bytes: u64,
}

impl Claim {
    pub(crate) fn of(card: &ModelCard, placement: &Placement) -> Option<Claim> {
        let weights = card.weights_named(&placement.weights)?;
        let (identity, bytes) = (weights.identity.clone(), weights.bytes_in(placement.dtype));
        Some(Claim { placement: placement.clone(), identity, bytes })
    }
}

/// How texts are to be embedded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbedOptions {
    /// The prompt that is put before every text.
    pub prompt: Prompt,
    /// Vectors cut to this length and made one long again.
    pub dimensions: Option<usize>,
    /// Cut them though the model does not say that it was trained for it.
    pub force_dimensions: bool,
}

impl ModelBuilder {
    /// The revision to fetch: a branch, a tag or a commit.
    #[must_use]
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = Some(revision.into());
        self
    }

    /// The runtime to share with other models.
    #[must_use]
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runtime = Some(runtime.clone());
        self
    }

    /// Only this engine.
    #[must_use]
    pub fn engine(mut self, engine: EngineId) -> Self {
        self.constraints.engine = Some(engine);
        self
    }

    /// Only this device.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.constraints.device = Some(device);
        self
    }

    /// Only this dtype.
    #[must_use]
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.constraints.dtype = Some(dtype);
        self
    }

    /// Nothing farther from the f32 reference than this; by default [`Band::Half`].
    #[must_use]
    pub fn band(mut self, band: Band) -> Self {
        self.constraints.band = band;
        self
    }

    /// What the placement is to be good at.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.constraints.goal = goal;
        self
    }

    /// The whole constraints at once.
    #[must_use]
    pub fn constraints(mut self, constraints: Constraints) -> Self {
        self.constraints = constraints;
        self
    }

    /// What the model is for, where its files do not say so or another use of it is wanted.
    #[must_use]
    pub fn task(mut self, task: Task) -> Self {
        self.overrides.task = Some(task);
        self
    }

    /// How token vectors become one, where no file says so or another way is wanted.
    #[must_use]
    pub fn pooling(mut self, mode: PoolingMode) -> Self {
        self.overrides.pooling = Some(mode);
        self
    }

    /// Whether vectors are made one long.
    #[must_use]
    pub fn normalize(mut self, normalize: bool) -> Self {
        self.overrides.normalize = Some(normalize);
        self
    }

    /// The most tokens a text may have.
    #[must_use]
    pub fn max_length(mut self, tokens: usize) -> Self {
        self.overrides.max_length = Some(tokens);
        self
    }

    /// All that the user says beyond the model's files, at once.
    #[must_use]
    pub fn overrides(mut self, overrides: Overrides) -> Self {
        self.overrides = overrides;
        self
    }

    /// Opens no socket.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// The runtime that the model will use, made now if none was given.
    pub fn own_runtime(&mut self) -> Runtime {
        let offline = self.offline;
        self.runtime.get_or_insert_with(|| Runtime::builder().offline(offline).build()).clone()
    }

    /// What the model says of itself. Its weights are not fetched: of a model on the hub that is not in the cache,
    /// only its settings and the headers of its weights are read.
    pub fn card(&self) -> Result<ModelCard, Error> {
        let runtime = self.clone().own_runtime();
        let source = ModelSource::parse(&self.name, self.revision.as_deref()).wished(&self.constraints);
        inspect::card(&source, &self.overrides, runtime.inner.offline, &runtime.inner.bundles)
    }

    /// What the model will take by the plan of now, before its weights are loaded.
    pub fn claim(&self, events: &mut dyn FnMut(Event<'_>)) -> Result<Claim, Error> {
        let runtime = self.clone().own_runtime();
        let source = ModelSource::parse(&self.name, self.revision.as_deref());
        let subject = runtime.subject(&source, &self.overrides, events)?;
        check_weights(&subject.card, &self.constraints)?;
        let admits = |placement: &Placement| self.constraints.admits(placement);
        let survey = runtime.survey(&subject, Depth::Twin, &admits, events)?;
        let plan = plan(&subject.card, &survey.grid, &survey.evidence, &self.constraints);
        let chosen = plan.chosen.as_ref().and_then(|chosen| Claim::of(&subject.card, &chosen.placement));
        let constraints = Box::new(self.constraints.clone());
        chosen.ok_or_else(|| Error::NoPlacement { plan: Box::new(plan), constraints })
    }

    /// Bytes of main memory that a child takes at most to prove the model's weights where that is still to be done: an
    /// estimate, 0 where they are proved.
    pub fn prover_claim(&self, events: &mut dyn FnMut(Event<'_>)) -> Result<u64, Error> {
        let runtime = self.clone().own_runtime();
        let source = ModelSource::parse(&self.name, self.revision.as_deref()).wished(&self.constraints);
        let subject = runtime.subject(&source, &self.overrides, events)?;
        check_weights(&subject.card, &self.constraints)?;
        let unproved = runtime.unproved(&subject, &|placement| self.constraints.admits(placement))?;
        Ok(prover_bytes(&subject.card, unproved.iter()))
    }

    /// Opens the model.
    pub fn open(self) -> Result<Model, Error> {
        self.open_telling(&mut |_| {})
    }

    /// Opens the model and tells `events` what is going on.
    pub fn open_telling(self, events: &mut dyn FnMut(Event<'_>)) -> Result<Model, Error> {
        let runtime = self.runtime.unwrap_or_else(|| Runtime::builder().offline(self.offline).build());
        let source = ModelSource::parse(&self.name, self.revision.as_deref()).wished(&self.constraints);
        let (subject, unchecked) = runtime.identified(&source, &self.overrides, events)?;
        let subject = Arc::new(subject);
        check_weights(&subject.card, &self.constraints)?;
        // What no engine knows is refused as such, not for what its tokenizer or its sizes lack.
        if runtime.grid(&subject).iter().all(|(_, obstacle)| obstacle.is_some()) {
            let plan = runtime.plan(&subject, &self.constraints, Depth::Twin, events)?;
            return Err(Error::NoPlacement { plan: Box::new(plan), constraints: Box::new(self.constraints) });
        }
        let tokens = Tokens::open(&subject.files.folder, &subject.card)?;
        let control = canary::batch(&tokens, &subject.card, CANARIES)?.part(0..2);
        let serving = Serving::open(&runtime, subject, control, self.constraints, events)?;
        let model = Model { inner: Arc::new(Inner { runtime, tokens, serving }) };
        model.check_contents(unchecked);
        Ok(model)
    }
}

impl Model {
    /// Opens a model by its folder or its id on the hub, wherever it runs best.
    pub fn open(name: &str) -> Result<Model, Error> {
        Model::builder(name).open()
    }

    /// A model opened to order.
    pub fn builder(name: &str) -> ModelBuilder {
        ModelBuilder { name: name.to_owned(), ..ModelBuilder::default() }
    }

    /// What the model says of itself.
    pub fn card(&self) -> &ModelCard {
        &self.inner.serving.subject().card
    }

    /// The plan as it stands now: what was taken out of service meanwhile is refused in it.
    pub fn plan(&self) -> Plan {
        self.inner.serving.plan()
    }

    /// The placement that serves now.
    pub fn placement(&self) -> Option<Placement> {
        self.plan().chosen.map(|chosen| chosen.placement)
    }

    /// The numerics class of the vectors that it gives now.
    pub fn class(&self) -> Option<String> {
        self.inner.serving.class()
    }

    /// The placements that failed since this was last called, and what served instead: when the model was opened,
    /// or while it ran.
    pub fn drain_downgrades(&self) -> Vec<Downgrade> {
        self.inner.serving.drain_downgrades()
    }

    /// Compares the files that may serve with the hashes under which they are known, on a thread of its own. Where one
    /// differs, its placements are retired.
    fn check_contents(&self, mut unchecked: Unchecked) {
        let (plan, subject) = (self.plan(), self.inner.serving.subject());
        let serves =
            |file: &str| plan.viable().any(|viable| concerns(subject, file, &viable.placement.weights));
        unchecked.retain(|path, _| serves(&path.display().to_string()));
        if unchecked.is_empty() {
            return;
        }
        let (contents, model) = (self.inner.runtime.inner.contents.clone(), Arc::downgrade(&self.inner));
        let check = move || {
            if let Err(CardError::ContentChanged { file }) = contents.check(&unchecked, &mut |_| {})
                && let Some(model) = model.upgrade()
            {
                model.serving.refuse_content(&file);
            }
        };
        // Where no thread can be had, `sconce verify` still checks.
        let _ = thread::Builder::new().name("sconce-hash".to_owned()).spawn(check);
    }

    /// What was taken out of service while it ran.
    pub fn quarantined(&self) -> Vec<Placement> {
        self.inner.serving.quarantined()
    }

    /// What was taken out of service over batches since this was last asked, each once. Answers name the same in
    /// [`Computed::incidents`](crate::Computed::incidents); where there was no answer, only this does.
    pub fn take_incidents(&self) -> Vec<Incident> {
        self.inner.serving.take_incidents()
    }

    /// Why no placement serves it; none while one does.
    pub fn out_of_service(&self) -> Option<String> {
        self.inner.serving.out_of_service()
    }

    /// Bytes of main memory that a child takes at most to prove `placement` again: an estimate.
    pub fn prover_claim(&self, placement: &Placement) -> u64 {
        let reference = self.plan().reference;
        prover_bytes(self.card(), reference.iter().chain([placement]))
    }

    /// What the model takes, and where.
    pub fn claim(&self) -> Option<Claim> {
        Claim::of(self.card(), &self.placement()?)
    }

    /// One vector for each text.
    pub fn embed<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Embeddings, Error> {
        self.embed_with(texts, &EmbedOptions::default())
    }

    /// One vector for each text, to order.
    pub fn embed_with<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &EmbedOptions,
    ) -> Result<Embeddings, Error> {
        self.check_embed(options)?;
        let tokenized = self.encode_texts(&options.prompt, texts)?;
        let mut vectors = vec![Vec::new(); texts.len()];
        let account = self.answer(&tokenized, |index, row| vectors[index] = self.vector(row, options))?;
        Ok(Embeddings::new(vectors, account))
    }

    /// Whether the model turns texts into vectors as `options` ask.
    pub fn check_embed(&self, options: &EmbedOptions) -> Result<(), Error> {
        if let Some(dimensions) = options.dimensions {
            check_dimensions(self.card(), dimensions, options.force_dimensions)?;
        }
        self.expect("embed", &[Task::Embed]).map(|_| ())
    }

    /// A computed row as the vector that `options` ask for.
    pub fn vector(&self, row: &[f32], options: &EmbedOptions) -> Vec<f32> {
        match options.dimensions {
            Some(dimensions) if dimensions < row.len() => cut(&row[..dimensions], self.card().normalizes()),
            Some(_) | None => row.to_vec(),
        }
    }

    /// Every text by `encode`, on threads of their own.
    pub(crate) fn tokenize<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        encode: impl Fn(&Tokens, &str) -> Result<Tokenized, VocabularyError> + Sync,
    ) -> Result<Vec<Tokenized>, Error> {
        let one = |text: &T| Ok(encode(&self.inner.tokens, text.as_ref())?);
        match &self.inner.runtime.inner.tokenizing {
            Some(pool) if texts.len() > 1 => pool.install(|| texts.par_iter().map(one).collect()),
            Some(_) | None => texts.iter().map(one).collect(),
        }
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.inner.tokens
    }

    pub(crate) fn serving(&self) -> &Serving {
        &self.inner.serving
    }
}

/// Bytes that a child takes for the largest of `placements`, one at a time: the weights, a part of them again while they
/// are read, and the process itself.
fn prover_bytes<'a>(card: &ModelCard, placements: impl Iterator<Item = &'a Placement>) -> u64 {
    const PROCESS: u64 = 48 << 20;
    let bytes = placements.filter_map(|placement| Claim::of(card, placement)).map(|claim| claim.bytes).max();
    bytes.map_or(0, |bytes| bytes + bytes / 4 + PROCESS)
}

fn check_weights(card: &ModelCard, constraints: &Constraints) -> Result<(), Error> {
    let Some(missing) = constraints.weights.as_ref().filter(|name| card.weights_named(name).is_none()) else {
        return Ok(());
    };
    let there: Vec<&str> = card.weights.iter().map(|weights| weights.name.as_str()).collect();
    Err(Error::Request(format!("no weights `{missing}` in this model; there are: {}", there.join(", "))))
}

fn check_dimensions(card: &ModelCard, dimensions: usize, forced: bool) -> Result<(), Error> {
    let width = card.width();
    if dimensions == 0 || dimensions > width {
        return Err(Error::Request(format!(
            "vectors of this model have 1 to {width} numbers; asked for: {dimensions}"
        )));
    }
    let declared = card.dimensions.as_ref().map(|said| &said.value);
    let allowed = match declared {
        Some(Dimensions::Any) => true,
        Some(Dimensions::Only(lengths)) => lengths.contains(&dimensions),
        None => false,
    };
    if allowed || forced || dimensions == width {
        return Ok(());
    }
    let says = match declared {
        Some(Dimensions::Only(lengths)) => {
            let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
            format!("the model says that its vectors may be cut to {}", lengths.join(", "))
        }
        Some(Dimensions::Any) | None => "the model does not say that its vectors may be cut".to_owned(),
    };
    Err(Error::Request(format!(
        "{says}; asked for `dimensions`: {dimensions}\n\
         hint: `--force-dimensions` cuts them all the same"
    )))
}
