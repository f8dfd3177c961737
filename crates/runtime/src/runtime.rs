//! State shared by models: engines, hardware, evidence and device executors. None of it is global.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sconce_core::card::{ModelCard, Task};
use sconce_core::device::Device;
use sconce_core::engine::{Engine, ModelSpec};
use sconce_core::hardware::Hardware;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_engines::model_cost::ModelCost;
use sconce_planner::evidence::Canary;
use sconce_planner::grid::{self, Candidate};
use sconce_planner::plan::{Constraints, Plan, plan};

use crate::card::contents::{Contents, Unverified};
use crate::card::{self, Overrides};
use crate::device::DeviceExecutors;
use crate::error::Error;
use crate::event::Event;
use crate::hardware;
use crate::home::default_home;
use crate::inspect;
use crate::memory::{MemoryAccount, MemoryPurpose};
use crate::prove::store::Store;
use crate::prove::{
    self, CanaryTexts, GatheredEvidence, Gatherer, Launch, OpFindings, ProofDepth, Prover, numerics_class,
};
use crate::source::ModelSource;
use crate::tokenize::ModelTokenizer;

/// The command of this program, once it is initialized: it runs as a prover if [`prove::CHILD_ARGUMENT`] follows.
static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

/// Enables probes in child processes, which may crash or hang without harm. Call it first in `main`. In a child process
/// it runs the probes and exits; otherwise it returns at once.
pub fn init() {
    let program: Vec<OsString> = std::env::current_exe().into_iter().map(OsString::from).collect();
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    init_as(&program, &arguments);
}

/// Like [`init`], for a program without an executable of its own, such as a Python package: `program` is the command that
/// starts it, and `arguments` are what follows.
pub fn init_as(program: &[OsString], arguments: &[OsString]) {
    if arguments.first().is_some_and(|argument| argument == prove::CHILD_ARGUMENT) {
        prove::run_child(sconce_engines::all);
        std::process::exit(0);
    }
    if !program.is_empty() {
        let _ = PROGRAM.set(program.to_vec());
    }
}

/// The command that starts this program: that of [`init_as`], or this executable.
pub fn program() -> Option<Command> {
    let Some([program, arguments @ ..]) = PROGRAM.get().map(Vec::as_slice) else {
        return std::env::current_exe().ok().map(Command::new);
    };
    let mut command = Command::new(program);
    command.args(arguments);
    Some(command)
}

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// State shared by models: engines, hardware, evidence and device executors. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) engines: Vec<Arc<dyn Engine>>,
    pub(crate) hardware: Hardware,
    pub(crate) store: Store,
    pub(crate) prover: Prover,
    /// SHA-256 of the files of models.
    pub(crate) contents: Contents,
    pub(crate) threads: usize,
    /// Time limit of a probe case.
    pub(crate) probe_time_limit: Duration,
    /// Minimum time after which a batch counts as hung.
    pub(crate) min_timeout: Duration,
    pub(crate) offline: bool,
    /// Folder of unpacked bundles.
    pub(crate) bundles: PathBuf,
    /// Data folder.
    pub(crate) home: PathBuf,
    pub(crate) executors: DeviceExecutors,
    /// `None` if the system has no threads.
    pub(crate) tokenizer_pool: Option<rayon::ThreadPool>,
}

/// A model for a plan, by [`Runtime::plan_spec`].
#[derive(Clone, Debug)]
pub struct PlanSpec {
    /// Card and files. The files of a model that is not local are gone.
    pub spec: ModelSpec,
    /// Whether the weights are on this machine.
    pub is_local: bool,
    /// Bytes that a download takes, if the weights are not on this machine and the hub reports it.
    pub download: Option<u64>,
}

/// Builder of a [`Runtime`].
#[derive(Default)]
pub struct RuntimeBuilder {
    engines: Option<Vec<Arc<dyn Engine>>>,
    hardware: Option<Hardware>,
    home: Option<PathBuf>,
    prover: Option<Launch>,
    threads: Option<usize>,
    limit: Option<Duration>,
    timeout: Option<Duration>,
    offline: bool,
}

impl RuntimeBuilder {
    /// Replaces the built-in engines.
    #[must_use]
    pub fn engines(mut self, engines: Vec<Arc<dyn Engine>>) -> Self {
        self.engines = Some(engines);
        self
    }

    /// Replaces hardware detection.
    #[must_use]
    pub fn hardware(mut self, hardware: Hardware) -> Self {
        self.hardware = Some(hardware);
        self
    }

    /// Data folder; by default `SCONCE_HOME`, or `sconce` in the user's cache folder.
    #[must_use]
    pub fn home(mut self, folder: impl Into<PathBuf>) -> Self {
        self.home = Some(folder.into());
        self
    }

    /// Command of a program that calls [`prove::run_child`].
    #[must_use]
    pub fn prover(mut self, command: &Command) -> Self {
        self.prover = Some(Launch::of(command));
        self
    }

    /// Number of CPU threads; by default all cores.
    #[must_use]
    pub fn threads(mut self, count: usize) -> Self {
        self.threads = Some(count);
        self
    }

    /// Time limit of a probe case; one minute by default. Canaries of large models may take longer.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Minimum time after which a batch counts as hung; five seconds by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Opens no socket: models come from folders, bundles and the hub's cache.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Creates the runtime.
    pub fn build(self) -> Runtime {
        let threads = self.threads.unwrap_or_else(available_threads);
        let home = self.home.unwrap_or_else(default_home);
        let this_program = || program().filter(|_| PROGRAM.get().is_some());
        let launch = self.prover.or_else(|| Some(Launch::of(this_program()?.arg(prove::CHILD_ARGUMENT))));
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|n| format!("sconce-tokens-{n}"));
        Runtime {
            inner: Arc::new(Inner {
                engines: self.engines.unwrap_or_else(|| sconce_engines::all(threads)),
                hardware: self.hardware.unwrap_or_else(hardware::detect),
                prover: launch.map_or_else(|| Prover::in_process(&home), Prover::Child),
                store: Store::new(home.join("evidence")),
                contents: Contents::new(home.join("contents")),
                bundles: home.join("bundles"),
                home,
                threads,
                probe_time_limit: self.limit.unwrap_or(Duration::from_mins(1)),
                min_timeout: self.timeout.unwrap_or(Duration::from_secs(5)),
                offline: self.offline,
                executors: DeviceExecutors::default(),
                tokenizer_pool: pool.build().ok(),
            }),
        }
    }
}

impl Default for Runtime {
    fn default() -> Runtime {
        Runtime::builder().build()
    }
}

/// Compares by identity.
impl PartialEq for Runtime {
    fn eq(&self, other: &Runtime) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Runtime {}

impl Runtime {
    /// A builder.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Hardware of this machine.
    pub fn hardware(&self) -> &Hardware {
        &self.inner.hardware
    }

    /// All engines, including those that this build lacks.
    pub fn engines(&self) -> &[Arc<dyn Engine>] {
        &self.inner.engines
    }

    /// Evidence folder and number of findings.
    pub fn evidence(&self) -> (&std::path::Path, usize) {
        (self.inner.store.folder(), self.inner.store.count())
    }

    /// Why evidence could not be stored, if so: every start proves its models again.
    pub fn evidence_error(&self) -> Option<&str> {
        self.inner.store.error()
    }

    /// Deletes all evidence. Placements are proved again.
    pub fn forget(&self) {
        self.inner.store.clear();
    }

    /// Every engine on every device, with obstacles that are known without a probe.
    pub fn candidates(&self) -> Vec<Candidate> {
        let hardware = &self.inner.hardware;
        let devices = grid::devices(hardware);
        let candidates = self.inner.engines.iter().flat_map(|engine| {
            devices.iter().map(move |&device| Candidate {
                engine: engine.id(),
                device,
                formats: engine.formats(),
                dtypes: engine.dtypes(device),
                obstacle: grid::obstacle(device, engine.supports(device), hardware),
            })
        });
        candidates.collect()
    }

    /// Resolves a model and reads its card.
    pub fn model_spec(
        &self,
        source: &ModelSource,
        overrides: &Overrides,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<ModelSpec, Error> {
        Ok(self.model_spec_and_hashes(source, overrides, events)?.0)
    }

    /// Reads the card of a model for a plan with generated weights ([`ProofDepth::Twin`]). Of a model of the hub that is not
    /// cached, only config files, weight headers and the tokenizer are read, and nothing is stored. ONNX graphs are fetched,
    /// since they have no twin.
    pub fn plan_spec(
        &self,
        source: &ModelSource,
        overrides: &Overrides,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<PlanSpec, Error> {
        let name = source.to_string();
        let read = |folder: &Path| -> Result<ModelSpec, Error> {
            let spec = card::read(&name, folder, overrides)?;
            // An unsupported architecture is reported as such, before errors of its tokenizer.
            if self.grid(&spec).iter().any(|(_, obstacle)| obstacle.is_none()) {
                ModelTokenizer::open(&spec.files.folder, &spec.card)?;
            }
            Ok(spec)
        };
        let peeked = inspect::peek_with_tokenizer(source, self.inner.offline, read)?;
        let has_twin = |spec: &ModelSpec| !spec.card.weights.iter().any(|weights| weights.format.is_graph());
        match peeked.filter(|peeked| has_twin(&peeked.value)) {
            Some(peeked) => Ok(PlanSpec { spec: peeked.value, is_local: false, download: peeked.bytes }),
            None => Ok(PlanSpec {
                spec: self.model_spec(source, overrides, events)?,
                is_local: true,
                download: None,
            }),
        }
    }

    /// Like [`model_spec`](Runtime::model_spec), with the recorded hashes that were used without reading the files.
    pub(crate) fn model_spec_and_hashes(
        &self,
        source: &ModelSource,
        overrides: &Overrides,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<(ModelSpec, Unverified), Error> {
        let folder = source.fetch(self.inner.offline, &self.inner.bundles, &mut |progress| {
            events(Event::Hub(progress));
        })?;
        let mut spec = card::read(&source.to_string(), &folder, overrides)?;
        let unverified = self.inner.contents.identify(&mut spec, events)?;
        Ok((spec, unverified))
    }

    /// Hashes all files of a model and compares with the recorded hashes. The error names the first file that differs.
    pub fn check_contents(&self, spec: &ModelSpec, events: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        let unverified = self.inner.contents.identify(&mut spec.clone(), &mut |_| {})?;
        Ok(self.inner.contents.check(&unverified, events)?)
    }

    /// Gathers the missing evidence about the placements that `admits` accepts.
    pub fn gather_evidence(
        &self,
        spec: &ModelSpec,
        depth: ProofDepth,
        admits: &dyn Fn(&Placement) -> bool,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<GatheredEvidence, Error> {
        let grid = self.grid(spec);
        let is_graph =
            |weights: &str| spec.card.weights_named(weights).is_some_and(|weights| weights.format.is_graph());
        let mut open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
        let graphs =
            !spec.files.weights.is_empty() && open.any(|open| is_graph(&open.weights) && admits(open));
        let texts = if depth == ProofDepth::Canary || graphs {
            let tokenizer = ModelTokenizer::open(&spec.files.folder, &spec.card)?;
            Some(CanaryTexts::new(&tokenizer, &spec.card)?)
        } else {
            None
        };
        Ok(self.gatherer(spec, texts.as_ref(), events).gather(grid, depth, admits))
    }

    /// The placements that `admits` accepts whose real weights are not proved yet, and the reference.
    pub(crate) fn unproved(
        &self,
        spec: &ModelSpec,
        admits: &dyn Fn(&Placement) -> bool,
    ) -> Result<Vec<Placement>, Error> {
        let grid = self.grid(spec);
        if grid.iter().all(|(_, obstacle)| obstacle.is_some()) {
            return Ok(Vec::new());
        }
        let tokenizer = ModelTokenizer::open(&spec.files.folder, &spec.card)?;
        let texts = CanaryTexts::new(&tokenizer, &spec.card)?;
        Ok(self.gatherer(spec, None, &mut |_| {}).unproved(&grid, admits, &texts))
    }

    /// Probes every op on every engine and device.
    pub fn ops(&self, events: &mut dyn FnMut(Event<'_>)) -> Vec<OpFindings> {
        let sample = card::sample();
        self.gatherer(&sample, None, events).ops(&self.grid(&sample))
    }

    /// All placements of a model, with obstacles that are known without a probe.
    pub(crate) fn grid(&self, spec: &ModelSpec) -> Vec<(Placement, Option<Obstacle>)> {
        let card = &spec.card;
        let mut grid = grid::grid(card, &self.candidates());
        for (placement, obstacle) in &mut grid {
            let described = || self.engine(placement).and_then(|engine| engine.describe(card)).err();
            let fits =
                || grid::does_not_fit(card, placement, &self.inner.hardware, least_cache(card, placement));
            *obstacle = obstacle.take().or_else(described).or_else(fits);
        }
        grid
    }

    fn gatherer<'a>(
        &'a self,
        spec: &'a ModelSpec,
        texts: Option<&'a CanaryTexts>,
        events: &'a mut dyn FnMut(Event<'_>),
    ) -> Gatherer<'a> {
        let inner = &*self.inner;
        Gatherer {
            engines: &inner.engines,
            hardware: &inner.hardware,
            store: &inner.store,
            prover: &inner.prover,
            time_limit: inner.probe_time_limit,
            threads: inner.threads,
            spec,
            texts,
            bypass_store: false,
            stored_only: false,
            missing: false,
            events,
        }
    }

    /// Probes real weights on a placement again, without stored evidence.
    pub(crate) fn prove_again(&self, spec: &ModelSpec, placement: &Placement) -> Result<Canary, Obstacle> {
        let texts = ModelTokenizer::open(&spec.files.folder, &spec.card)
            .and_then(|tokenizer| CanaryTexts::new(&tokenizer, &spec.card))
            .map_err(|error| Obstacle::LoadFailed { reason: error.to_string() })?;
        let mut ignore = |_: Event<'_>| {};
        let gatherer = self.gatherer(spec, None, &mut ignore);
        Gatherer { bypass_store: true, ..gatherer }.probe_real_weights(&self.grid(spec), placement, &texts)
    }

    /// Plans the placement of a model under `constraints`. What they exclude is not proved.
    pub fn plan(
        &self,
        spec: &ModelSpec,
        constraints: &Constraints,
        depth: ProofDepth,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Plan, Error> {
        let admits = |placement: &Placement| constraints.admits(placement);
        let GatheredEvidence { grid, evidence, .. } = self.gather_evidence(spec, depth, &admits, events)?;
        Ok(plan(&spec.card, &grid, &evidence, constraints))
    }

    /// Plans the placement of a model from stored evidence: nothing is proved, and placements without evidence are refused
    /// as not tried.
    pub(crate) fn plan_from_store(&self, spec: &ModelSpec, constraints: &Constraints) -> Plan {
        let mut ignore = |_: Event<'_>| {};
        let mut gatherer = Gatherer { stored_only: true, ..self.gatherer(spec, None, &mut ignore) };
        let admits = |placement: &Placement| constraints.admits(placement);
        let GatheredEvidence { grid, evidence, .. } =
            gatherer.gather(self.grid(spec), ProofDepth::Twin, &admits);
        plan(&spec.card, &grid, &evidence, constraints)
    }

    /// The numerics class of a placement by stored evidence; none if its real weights are not proved.
    pub(crate) fn stored_class(
        &self,
        spec: &ModelSpec,
        placement: &Placement,
        reference: Option<&Placement>,
    ) -> Option<String> {
        let tokenizer = ModelTokenizer::open(&spec.files.folder, &spec.card).ok()?;
        let texts = CanaryTexts::new(&tokenizer, &spec.card).ok()?;
        let mut ignore = |_: Event<'_>| {};
        let mut gatherer = Gatherer { stored_only: true, ..self.gatherer(spec, Some(&texts), &mut ignore) };
        let only = |candidate: &Placement| candidate == placement;
        let GatheredEvidence { evidence, .. } = gatherer.gather(self.grid(spec), ProofDepth::Canary, &only);
        let canary = evidence.get(placement)?.canary.clone()?.ok()?;
        Some(numerics_class(spec, &placement.weights, canary.band(placement.dtype, reference)?))
    }

    /// Reads the card of a model without fetching its weights. The weights have an identity if their hashes are recorded.
    pub(crate) fn peek_spec(&self, source: &ModelSource, overrides: &Overrides) -> Result<ModelSpec, Error> {
        let mut spec = inspect::spec(source, overrides, self.inner.offline, &self.inner.bundles)?;
        self.inner.contents.identify_recorded(&mut spec);
        Ok(spec)
    }

    pub(crate) fn engine(&self, placement: &Placement) -> Result<&Arc<dyn Engine>, Obstacle> {
        let engine = self.inner.engines.iter().find(|engine| engine.id() == placement.engine);
        engine.ok_or_else(|| Obstacle::engine_not_in_this_version(placement.engine))
    }

    /// Resident memory of the running prover children in bytes.
    pub fn prover_resident(&self) -> u64 {
        self.inner.prover.resident()
    }

    /// Memory of the runtime by device and purpose: the prover children. [`Model::memory`](crate::Model::memory) has the
    /// memory of models.
    pub fn memory(&self) -> MemoryAccount {
        let mut account = MemoryAccount::default();
        account.add(Device::Cpu, MemoryPurpose::Prover, self.prover_resident());
        account
    }

    /// Waits for pending unloads, and returns free memory to the system.
    pub fn release_free_memory(&self) {
        self.inner.executors.drain();
        sconce_engines::release_free_memory();
    }
}

/// Tokens for which a KV cache must have room.
const LEAST_CONTEXT: usize = 512;

/// Bytes of the smallest KV cache that is useful on `placement`; 0 if the model does not generate.
fn least_cache(card: &ModelCard, placement: &Placement) -> u64 {
    if card.task.value != Task::Generate {
        return 0;
    }
    let per_token = ModelCost::of(card).map_or(0, |cost| cost.cache_bytes(placement));
    per_token * card.max_length.value.min(LEAST_CONTEXT) as u64
}
