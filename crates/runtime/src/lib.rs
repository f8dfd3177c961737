//! Run embedding models from Rust on the best place that provably works.
//!
//! ```no_run
//! # fn main() -> Result<(), sconce::Error> {
//! let model = sconce::Model::open("e5-small")?; // a short name, an id on the hub, or a folder
//! let documents = model.embed_documents(&["list.sort() orders it in place", "the harbour at night"])?;
//! let query = model.embed_query("how do I sort a list?")?;
//! # Ok(()) }
//! ```

// Layers, top down; imports point down only: model, low_level, builder > operations, generate, chat > execute > runtime,
// inspect > error > prove > card > event > source > tokenize, template, device, memory, hardware, catalogue and the helpers.
mod builder;
pub mod card;
pub mod catalogue;
mod chat;
mod device;
mod digest;
#[cfg(doctest)]
mod doc_pages;
mod error;
mod event;
mod execute;
mod generate;
pub mod hardware;
mod home;
#[doc(hidden)]
pub mod http;
mod inspect;
mod low_level;
mod memory;
mod model;
mod nearest;
pub mod operations;
pub mod prove;
mod runtime;
mod source;
mod template;
pub mod tokenize;

pub use builder::{LoadForecast, ModelBuilder};
pub use chat::{ChatOptions, ChatPrompt, Message};
pub use error::{Error, ErrorCause, Retry, SequenceError};
pub use event::Event;
pub use execute::{
    BatchOutcome, BatchOutput, Incident, IncidentKind, OnOutput, Readmission, Readmitted, SecondLoad,
    SecondLoaded, ShadowCheck, UnresolvedSequence, Verdict,
};
pub use generate::{
    CacheEstimate, FinishReason, GenerateOptions, GeneratedToken, Generation, GenerationLoad,
    GenerationStream, GenerationSummary, InvalidOption, Piece, Priority, Scheduling, StepTimer,
    StructuredOutput,
};
pub use inspect::{Inspection, inspect};
pub use memory::{Claim, MemoryAccount, MemoryPurpose, available, limit_arenas, peak, resident};
pub use model::Model;
pub use operations::chunk::Chunk;
pub use operations::classify::{Classifications, ClassifyOptions, LabelScore};
pub use operations::embed::EmbedOptions;
pub use operations::late_interaction::{Matrix, TokenEmbeddings, maxsim};
pub use operations::rerank::{RankedDocument, Ranking, RerankOptions, ranking};
pub use operations::similarity::{Similarities, SimilarityOptions, cosine};
pub use operations::sparse::{SparseEmbeddings, TokenWeight, nonzero_weights, sparse_dot};
pub use operations::{Embeddings, OutputMetadata, Prompt, Truncation, activate, missing_prompt};
pub use runtime::{PlanSpec, Runtime, RuntimeBuilder, init, init_as, program};
pub use sconce_core as core;
pub use sconce_core::card::{KvCacheDtype, ModelCard, PoolingMode, Task};
pub use sconce_core::device::Device;
pub use sconce_core::head::Scoring;
pub use sconce_core::obstacle::Obstacle;
pub use sconce_core::placement::{Dtype, EngineId, Placement};
pub use sconce_engines::model_cost::ModelCost;
pub use sconce_engines::native::peak::Peak;
pub use sconce_planner as planner;
pub use sconce_planner::band::Band;
pub use sconce_planner::plan::{Constraints, Downgrade, Plan};
pub use source::{ModelSource, SourceError, bundle, hub, last_use};
pub use template::TemplateError;
pub use tokenize::{TokenizerError, TruncationStrategy};

/// Whether a model can run on a device of this machine, as a [`plan`] would find. The plan has the reasons.
pub fn supports(name: &str, device: Device) -> Result<bool, Error> {
    Ok(plan(name)?.supports(device))
}

/// Plans the placement of a model, by its short name, folder, bundle or hub id. Weights are not downloaded.
pub fn plan(name: &str) -> Result<Plan, Error> {
    let runtime = Runtime::default();
    let source = ModelSource::parse(name, None);
    let PlanSpec { spec, .. } = runtime.plan_spec(&source, &card::Overrides::default(), &mut |_| {})?;
    runtime.plan(&spec, &Constraints::default(), prove::ProofDepth::Twin, &mut |_| {})
}
