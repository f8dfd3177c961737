//! Builder of a model: source, constraints, overrides, and the steps of opening it.

use std::sync::Arc;

use sconce_core::card::{KvCacheDtype, ModelCard, PoolingMode, Task};
use sconce_core::device::Device;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_planner::band::Band;
use sconce_planner::cases::CANARIES;
use sconce_planner::evidence::Goal;
use sconce_planner::plan::{Constraints, Plan, Refusal, plan};

use crate::card::Overrides;
use crate::error::Error;
use crate::event::Event;
use crate::execute::Serving;
use crate::inspect;
use crate::memory::{Claim, prover_bytes};
use crate::model::Model;
use crate::prove::{GatheredEvidence, ProofDepth, canary};
use crate::runtime::Runtime;
use crate::source::{ModelSource, record_use};
use crate::tokenize::ModelTokenizer;

/// What a load of a model takes, as far as it is known before the model is proved.
#[derive(Clone, Debug)]
pub struct LoadForecast {
    /// The card. The identity of weights is empty while their hashes are not recorded.
    pub card: ModelCard,
    /// The plan by stored evidence.
    pub plan: Plan,
    /// Memory of the weights on the chosen placement; on the largest one that may be chosen, while none is proved. `None`
    /// if no placement can be used.
    pub claim: Option<Claim>,
    /// The numerics class on the chosen placement; `None` if its real weights are not proved.
    pub class: Option<String>,
}

/// Builder of a [`Model`].
#[derive(Clone, Default)]
pub struct ModelBuilder {
    name: String,
    revision: Option<String>,
    runtime: Option<Runtime>,
    constraints: Constraints,
    overrides: Overrides,
    offline: bool,
    kv_cache_bytes: Option<u64>,
}

impl ModelBuilder {
    /// Revision to fetch: branch, tag or commit.
    #[must_use]
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = Some(revision.into());
        self
    }

    /// Runtime to share with other models.
    #[must_use]
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runtime = Some(runtime.clone());
        self
    }

    /// Requires this engine.
    #[must_use]
    pub fn engine(mut self, engine: EngineId) -> Self {
        self.constraints.engine = Some(engine);
        self
    }

    /// Requires this device.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.constraints.device = Some(device);
        self
    }

    /// Requires this dtype.
    #[must_use]
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.constraints.dtype = Some(dtype);
        self
    }

    /// Maximum distance from the f32 reference; [`Band::Half`] by default.
    #[must_use]
    pub fn band(mut self, band: Band) -> Self {
        self.constraints.band = band;
        self
    }

    /// Optimization goal of the placement.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.constraints.goal = goal;
        self
    }

    /// Replaces all constraints.
    #[must_use]
    pub fn constraints(mut self, constraints: Constraints) -> Self {
        self.constraints = constraints;
        self
    }

    /// Overrides the task in the model's files.
    #[must_use]
    pub fn task(mut self, task: Task) -> Self {
        self.overrides.task = Some(task);
        self
    }

    /// Overrides the pooling mode in the model's files.
    #[must_use]
    pub fn pooling(mut self, mode: PoolingMode) -> Self {
        self.overrides.pooling = Some(mode);
        self
    }

    /// Whether outputs are L2-normalized.
    #[must_use]
    pub fn normalize(mut self, normalize: bool) -> Self {
        self.overrides.normalize = Some(normalize);
        self
    }

    /// Maximum number of tokens of a sequence.
    #[must_use]
    pub fn max_length(mut self, tokens: usize) -> Self {
        self.overrides.max_length = Some(tokens);
        self
    }

    /// Dtype of the KV cache, for text generation.
    #[must_use]
    pub fn kv_cache_dtype(mut self, dtype: KvCacheDtype) -> Self {
        self.overrides.kv_cache_dtype = Some(dtype);
        self
    }

    /// Replaces all overrides.
    #[must_use]
    pub fn overrides(mut self, overrides: Overrides) -> Self {
        self.overrides = overrides;
        self
    }

    /// Opens no socket: the model comes from a folder, a bundle or the hub's cache.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// The runtime of the model, created if none was set.
    pub fn get_or_create_runtime(&mut self) -> Runtime {
        let offline = self.offline;
        self.runtime.get_or_insert_with(|| Runtime::builder().offline(offline).build()).clone()
    }

    /// The model card. Weights are not fetched: for a model that is not cached, only config files and weight headers are
    /// read from the hub.
    pub fn card(&self) -> Result<ModelCard, Error> {
        let runtime = self.clone().get_or_create_runtime();
        let source =
            ModelSource::parse(&self.name, self.revision.as_deref()).for_constraints(&self.constraints);
        inspect::card(&source, &self.overrides, runtime.inner.offline, &runtime.inner.bundles)
    }

    /// Memory of the model by the current plan, before its weights are loaded.
    pub fn claim(&self, events: &mut dyn FnMut(Event<'_>)) -> Result<Claim, Error> {
        let runtime = self.clone().get_or_create_runtime();
        let source = ModelSource::parse(&self.name, self.revision.as_deref());
        let spec = runtime.model_spec(&source, &self.overrides, events)?;
        check_weights(&spec.card, &self.constraints)?;
        let admits = |placement: &Placement| self.constraints.admits(placement);
        let GatheredEvidence { grid, evidence, .. } =
            runtime.gather_evidence(&spec, ProofDepth::Twin, &admits, events)?;
        let plan = plan(&spec.card, &grid, &evidence, &self.constraints);
        let chosen = plan.chosen.as_ref().and_then(|chosen| Claim::of(&spec.card, &chosen.placement));
        let constraints = Box::new(self.constraints.clone());
        chosen.ok_or_else(|| Error::NoPlacement { plan: Box::new(plan), constraints })
    }

    /// What a load of the model takes, by its card and by stored evidence: nothing is proved, and weights are not fetched.
    pub fn forecast(&self) -> Result<LoadForecast, Error> {
        let runtime = self.clone().get_or_create_runtime();
        let source =
            ModelSource::parse(&self.name, self.revision.as_deref()).for_constraints(&self.constraints);
        let spec = runtime.peek_spec(&source, &self.overrides)?;
        check_weights(&spec.card, &self.constraints)?;
        let plan = runtime.plan_from_store(&spec, &self.constraints);
        let untried = plan.refused.iter().filter(|refused| matches!(refused.why, Refusal::NotTried));
        let claims = untried.filter_map(|refused| Claim::of(&spec.card, &refused.placement));
        let chosen = plan.chosen.as_ref().and_then(|chosen| Claim::of(&spec.card, &chosen.placement));
        let claim = chosen.or_else(|| claims.max_by_key(|claim| claim.bytes));
        let class = plan
            .chosen
            .as_ref()
            .and_then(|chosen| runtime.stored_class(&spec, &chosen.placement, plan.reference.as_ref()));
        let card = spec.card.clone();
        // What was read for it must not count as memory in use.
        drop(spec);
        sconce_engines::release_free_memory();
        Ok(LoadForecast { card, plan, claim, class })
    }

    /// Estimated main memory of a prover child for the model's weights, in bytes. 0 if they are already proved.
    pub fn prover_claim(&self, events: &mut dyn FnMut(Event<'_>)) -> Result<u64, Error> {
        let runtime = self.clone().get_or_create_runtime();
        let source =
            ModelSource::parse(&self.name, self.revision.as_deref()).for_constraints(&self.constraints);
        let spec = runtime.model_spec(&source, &self.overrides, events)?;
        check_weights(&spec.card, &self.constraints)?;
        let unproved = runtime.unproved(&spec, &|placement| self.constraints.admits(placement))?;
        Ok(prover_bytes(&spec.card, unproved.iter()))
    }

    /// Memory of the KV cache, for text generation. By default a quarter of the available memory, and no more than is
    /// useful.
    #[must_use]
    pub fn kv_cache_bytes(mut self, bytes: u64) -> Self {
        self.kv_cache_bytes = Some(bytes);
        self
    }

    /// Opens the model.
    pub fn open(self) -> Result<Model, Error> {
        self.open_with_progress(&mut |_| {})
    }

    /// Opens the model, and reports progress to `events`.
    pub fn open_with_progress(self, events: &mut dyn FnMut(Event<'_>)) -> Result<Model, Error> {
        let runtime = self.runtime.unwrap_or_else(|| Runtime::builder().offline(self.offline).build());
        let source =
            ModelSource::parse(&self.name, self.revision.as_deref()).for_constraints(&self.constraints);
        let (spec, unverified) = runtime.model_spec_and_hashes(&source, &self.overrides, events)?;
        record_use(&runtime.inner.home, &source);
        let spec = Arc::new(spec);
        check_weights(&spec.card, &self.constraints)?;
        // An unsupported architecture is reported as such, before errors of its tokenizer.
        if runtime.grid(&spec).iter().all(|(_, obstacle)| obstacle.is_some()) {
            let plan = runtime.plan(&spec, &self.constraints, ProofDepth::Twin, events)?;
            return Err(Error::NoPlacement { plan: Box::new(plan), constraints: Box::new(self.constraints) });
        }
        let tokenizer = ModelTokenizer::open(&spec.files.folder, &spec.card)?;
        let control = canary::batch(&tokenizer, &spec.card, CANARIES)?.part(0..2);
        let serving = Serving::open(&runtime, spec, control, self.constraints, events)?;
        Ok(Model::new(runtime, tokenizer, serving, unverified, self.kv_cache_bytes))
    }
}

impl Model {
    /// Opens a model by its short name, folder, bundle or hub id, on the best placement.
    pub fn open(name: &str) -> Result<Model, Error> {
        Model::builder(name).open()
    }

    /// A builder for a model.
    pub fn builder(name: &str) -> ModelBuilder {
        ModelBuilder { name: name.to_owned(), ..ModelBuilder::default() }
    }
}

fn check_weights(card: &ModelCard, constraints: &Constraints) -> Result<(), Error> {
    let Some(missing) = constraints.weights.as_ref().filter(|name| card.weights_named(name).is_none()) else {
        return Ok(());
    };
    let there: Vec<&str> = card.weights.iter().map(|weights| weights.name.as_str()).collect();
    Err(Error::Request(format!("no weights `{missing}` in this model; there are: {}", there.join(", "))))
}
