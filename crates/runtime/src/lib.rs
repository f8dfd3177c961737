//! Run embedding models from Rust on the best place that provably works.
//!
//! ```no_run
//! # fn main() -> Result<(), sconce::Error> {
//! let vectors = sconce::Model::open("intfloat/e5-small-v2")?.embed(&["a text", "another"])?;
//! # Ok(()) }
//! ```

mod active;
mod answers;
mod attribution;
mod batching;
pub mod bundle;
mod canary;
pub mod card;
mod contents;
mod embeddings;
mod error;
mod event;
mod executor;
mod fingerprint;
mod guard;
pub mod hardware;
mod home;
#[doc(hidden)]
pub mod http;
pub mod hub;
mod inspect;
mod instruct;
mod late;
mod low_level;
mod model;
mod nearest;
mod pairs;
mod prompt;
pub mod prove;
mod readmission;
mod regex_cost;
mod resident;
mod runtime;
mod scores;
mod second;
mod serving;
mod shadow;
mod similarity;
mod source;
mod sparse;
mod starvation;
mod store;
pub mod tokens;
mod vocabulary;

pub use answers::{Account, Truncation};
pub use attribution::{Answered, SequenceError, Suspect};
pub use embeddings::Embeddings;
pub use error::{Error, Fault, Retry};
pub use event::Event;
pub use inspect::{Inspection, inspect};
pub use late::{Matrix, TokenEmbeddings, maxsim};
pub use low_level::{Computed, Incident, IncidentKind};
pub use model::{Claim, EmbedOptions, Model, ModelBuilder};
pub use pairs::Cut;
pub use prompt::Prompt;
pub use readmission::{Readmission, Readmitted};
pub use resident::{limit_arenas, peak, resident};
pub use runtime::{Runtime, RuntimeBuilder, init};
pub use sconce_core as core;
pub use sconce_core::card::{ModelCard, PoolingMode, Task};
pub use sconce_core::device::Device;
pub use sconce_core::head::Scoring;
pub use sconce_core::obstacle::Obstacle;
pub use sconce_core::placement::{Dtype, EngineId, Placement};
pub use sconce_engines::model_cost::ModelCost;
pub use sconce_engines::native::peak::Peak;
pub use sconce_planner as planner;
pub use sconce_planner::band::Band;
pub use sconce_planner::plan::{Constraints, Downgrade, Plan};
pub use scores::{
    Classifications, ClassifyOptions, Labelled, Ranked, Ranking, RerankOptions, ranked, scored,
};
pub use second::{SecondLoad, SecondLoaded};
pub use shadow::{Shadow, Verdict};
pub use similarity::{Similarities, SimilarityOptions, cosine};
pub use source::ModelSource;
pub use sparse::{SparseEmbeddings, Weight, sparse_dot, weights};
pub use vocabulary::VocabularyError;

/// Where the model of this name or folder would run, by what is known or found now.
pub fn plan(name: &str) -> Result<Plan, Error> {
    let runtime = Runtime::default();
    let source = ModelSource::parse(name, None);
    let subject = runtime.subject(&source, &card::Overrides::default(), &mut |_| {})?;
    runtime.plan(&subject, &Constraints::default(), prove::Depth::Twin, &mut |_| {})
}
