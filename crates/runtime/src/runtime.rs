//! All that models share: engines, what the machine has, evidence, executors. Nothing of it is global.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sconce_core::engine::{Engine, ModelSpec};
use sconce_core::hardware::Hardware;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_planner::evidence::Canary;
use sconce_planner::grid::{self, Candidate};
use sconce_planner::plan::{Constraints, Plan, plan};

use crate::card::{self, Overrides};
use crate::contents::{Contents, Unchecked};
use crate::error::Error;
use crate::event::Event;
use crate::executor::DeviceExecutors;
use crate::hardware;
use crate::home::default_home;
use crate::prove::{self, Depth, Gathering, Launch, OpFindings, Prover, Survey, Texts};
use crate::source::ModelSource;
use crate::store::Store;
use crate::tokens::Tokens;

/// Set once by a program that answers when it is started as a prover.
static ANSWERS: AtomicBool = AtomicBool::new(false);

/// Lets this program prove placements in child processes, which may crash or hang without harm: call it first in
/// `main`. In such a child it answers and ends the process; otherwise it returns at once.
pub fn init() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == prove::ARGUMENT) {
        prove::child(sconce_engines::all);
        std::process::exit(0);
    }
    ANSWERS.store(true, Ordering::Relaxed);
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// All that models share.
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
    pub(crate) limit: Duration,
    pub(crate) timeout: Duration,
    pub(crate) offline: bool,
    /// Where bundles are unpacked.
    pub(crate) bundles: PathBuf,
    pub(crate) executors: DeviceExecutors,
    pub(crate) tokenizing: Option<rayon::ThreadPool>,
}

/// What a runtime is made of, where it is not the default.
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
    /// Engines other than the built-in ones.
    #[must_use]
    pub fn engines(mut self, engines: Vec<Arc<dyn Engine>>) -> Self {
        self.engines = Some(engines);
        self
    }

    /// Hardware as told, instead of as seen.
    #[must_use]
    pub fn hardware(mut self, hardware: Hardware) -> Self {
        self.hardware = Some(hardware);
        self
    }

    /// The folder for evidence; by default `SCONCE_HOME`, or `sconce` in the user's cache.
    #[must_use]
    pub fn home(mut self, folder: impl Into<PathBuf>) -> Self {
        self.home = Some(folder.into());
        self
    }

    /// A program that answers [`prove::child`] when it is started so.
    #[must_use]
    pub fn prover(mut self, command: &Command) -> Self {
        self.prover = Some(Launch::of(command));
        self
    }

    /// Threads that compute on the CPU; by default all cores.
    #[must_use]
    pub fn threads(mut self, count: usize) -> Self {
        self.threads = Some(count);
        self
    }

    /// How long one probe case may take; by default a minute.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The least time after which a batch counts as hung; by default five seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Opens no socket: models come from folders and the hub's cache.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// The runtime.
    pub fn build(self) -> Runtime {
        let threads = self.threads.unwrap_or_else(threads);
        let home = self.home.unwrap_or_else(default_home);
        let launch =
            self.prover.or_else(|| Launch::this_program().filter(|_| ANSWERS.load(Ordering::Relaxed)));
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|n| format!("sconce-tokens-{n}"));
        Runtime {
            inner: Arc::new(Inner {
                engines: self.engines.unwrap_or_else(|| sconce_engines::all(threads)),
                hardware: self.hardware.unwrap_or_else(hardware::detect),
                prover: launch.map_or_else(|| Prover::on_a_thread(&home), Prover::Child),
                store: Store::new(home.join("evidence")),
                contents: Contents::new(home.join("contents")),
                bundles: home.join("bundles"),
                threads,
                limit: self.limit.unwrap_or(Duration::from_mins(1)),
                timeout: self.timeout.unwrap_or(Duration::from_secs(5)),
                offline: self.offline,
                executors: DeviceExecutors::default(),
                tokenizing: pool.build().ok(),
            }),
        }
    }
}

impl Default for Runtime {
    fn default() -> Runtime {
        Runtime::builder().build()
    }
}

/// Whether two handles are of one runtime.
impl PartialEq for Runtime {
    fn eq(&self, other: &Runtime) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Runtime {}

impl Runtime {
    /// A runtime made to order.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// What the machine has.
    pub fn hardware(&self) -> &Hardware {
        &self.inner.hardware
    }

    /// The engines, in this build or not.
    pub fn engines(&self) -> &[Arc<dyn Engine>] {
        &self.inner.engines
    }

    /// Where evidence is kept, and how many findings there are.
    pub fn evidence(&self) -> (&std::path::Path, usize) {
        (self.inner.store.folder(), self.inner.store.count())
    }

    /// Forgets all evidence, so that everything is proved again.
    pub fn forget(&self) {
        self.inner.store.clear();
    }

    /// Every engine on every device, with what stands against it before anything is tried.
    pub fn candidates(&self) -> Vec<Candidate> {
        let hardware = &self.inner.hardware;
        let devices = grid::devices(hardware);
        let candidates = self.inner.engines.iter().flat_map(|engine| {
            devices.iter().map(move |&device| Candidate {
                engine: engine.id(),
                device,
                format: engine.format(),
                dtypes: engine.dtypes(device),
                obstacle: grid::obstacle(device, engine.supports(device), hardware),
            })
        });
        candidates.collect()
    }

    /// Finds a model and reads what it says of itself.
    pub fn subject(
        &self,
        source: &ModelSource,
        overrides: &Overrides,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<ModelSpec, Error> {
        Ok(self.identified(source, overrides, events)?.0)
    }

    /// The same, and the hashes of its files that were known from before.
    pub(crate) fn identified(
        &self,
        source: &ModelSource,
        overrides: &Overrides,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<(ModelSpec, Unchecked), Error> {
        let folder = source.fetch(self.inner.offline, &self.inner.bundles, events)?;
        let mut subject = card::read(&source.to_string(), &folder, overrides)?;
        let unchecked = self.inner.contents.identify(&mut subject, events)?;
        Ok((subject, unchecked))
    }

    /// Hashes all files of a model and compares with the hashes that are known. An error names the first file that
    /// differs.
    pub fn check_contents(
        &self,
        subject: &ModelSpec,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Error> {
        let unchecked = self.inner.contents.identify(&mut subject.clone(), &mut |_| {})?;
        Ok(self.inner.contents.check(&unchecked, events)?)
    }

    /// Tries what is not known yet about the placements that `admits` lets through.
    pub fn survey(
        &self,
        subject: &ModelSpec,
        depth: Depth,
        admits: &dyn Fn(&Placement) -> bool,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Survey, Error> {
        let grid = self.grid(subject);
        let is_graph = |weights: &str| {
            subject.card.weights_named(weights).is_some_and(|weights| weights.format.is_graph())
        };
        let mut open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
        let graphs =
            !subject.files.weights.is_empty() && open.any(|open| is_graph(&open.weights) && admits(open));
        let texts = if depth == Depth::Canary || graphs {
            let tokens = Tokens::open(&subject.files.folder, &subject.card)?;
            Some(Texts::of(&tokens, &subject.card)?)
        } else {
            None
        };
        Ok(self.gathering(subject, texts.as_ref(), events).survey(grid, depth, admits))
    }

    /// The placements that `admits` lets through whose real weights a prover has yet to load, and the reference with
    /// them.
    pub(crate) fn unproved(
        &self,
        subject: &ModelSpec,
        admits: &dyn Fn(&Placement) -> bool,
    ) -> Result<Vec<Placement>, Error> {
        let grid = self.grid(subject);
        if grid.iter().all(|(_, obstacle)| obstacle.is_some()) {
            return Ok(Vec::new());
        }
        let tokens = Tokens::open(&subject.files.folder, &subject.card)?;
        let texts = Texts::of(&tokens, &subject.card)?;
        Ok(self.gathering(subject, None, &mut |_| {}).unproved(&grid, admits, &texts))
    }

    /// Every op alone on every engine and device.
    pub fn ops(&self, events: &mut dyn FnMut(Event<'_>)) -> Vec<OpFindings> {
        let sample = card::sample();
        self.gathering(&sample, None, events).ops(&self.grid(&sample))
    }

    /// Every placement of a model, with what stands against it before anything is tried.
    pub(crate) fn grid(&self, subject: &ModelSpec) -> Vec<(Placement, Option<Obstacle>)> {
        let card = &subject.card;
        let mut grid = grid::grid(card, &self.candidates());
        for (placement, obstacle) in &mut grid {
            let described = || self.engine(placement).and_then(|engine| engine.describe(card)).err();
            let fits = || grid::does_not_fit(card, placement, &self.inner.hardware);
            *obstacle = obstacle.take().or_else(described).or_else(fits);
        }
        grid
    }

    fn gathering<'a>(
        &'a self,
        subject: &'a ModelSpec,
        texts: Option<&'a Texts>,
        events: &'a mut dyn FnMut(Event<'_>),
    ) -> Gathering<'a> {
        let inner = &*self.inner;
        Gathering {
            engines: &inner.engines,
            hardware: &inner.hardware,
            store: &inner.store,
            prover: &inner.prover,
            limit: inner.limit,
            threads: inner.threads,
            subject,
            texts,
            anew: false,
            events,
        }
    }

    /// Tries the real weights on a placement, whatever is known of them.
    pub(crate) fn try_anew(&self, subject: &ModelSpec, placement: &Placement) -> Result<Canary, Obstacle> {
        let failed = |error: Error| Obstacle::LoadFailed { says: error.to_string() };
        let tokens =
            Tokens::open(&subject.files.folder, &subject.card).map_err(|error| failed(error.into()))?;
        let texts = Texts::of(&tokens, &subject.card).map_err(failed)?;
        let mut unheard = |_: Event<'_>| {};
        let gathering = self.gathering(subject, None, &mut unheard);
        Gathering { anew: true, ..gathering }.real(&self.grid(subject), placement, &texts)
    }

    /// Where a model would run by these constraints.
    pub fn plan(
        &self,
        subject: &ModelSpec,
        constraints: &Constraints,
        depth: Depth,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Plan, Error> {
        let survey = self.survey(subject, depth, &|_| true, events)?;
        Ok(plan(&subject.card, &survey.grid, &survey.evidence, constraints))
    }

    pub(crate) fn engine(&self, placement: &Placement) -> Result<&Arc<dyn Engine>, Obstacle> {
        let engine = self.inner.engines.iter().find(|engine| engine.id() == placement.engine);
        engine.ok_or_else(|| Obstacle::engine_not_in_this_version(placement.engine))
    }
}
