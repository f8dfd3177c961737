//! Run embedding models from Rust on the best place that provably works.
//!
//! ```no_run
//! # fn main() -> Result<(), sconce::Error> {
//! let vectors = sconce::Model::open("intfloat/e5-small-v2")?.embed(&["a text", "another"])?;
//! # Ok(()) }
//! ```

mod batching;
pub mod card;
mod embeddings;
mod error;
mod event;
mod fingerprint;
mod guard;
pub mod hardware;
pub mod hub;
mod lane;
mod model;
pub mod prove;
mod runtime;
mod serving;
mod source;
mod store;
pub mod tokens;
mod vocabulary;

pub use embeddings::{Embeddings, Truncation};
pub use error::{Error, Fault, Retry};
pub use event::Event;
pub use model::{EmbedOptions, Model, ModelBuilder};
pub use runtime::{Runtime, RuntimeBuilder, init};
pub use sconce_core as core;
pub use sconce_core::card::{ModelCard, PoolingMode};
pub use sconce_core::device::Device;
pub use sconce_core::obstacle::Obstacle;
pub use sconce_core::placement::{Dtype, EngineId, Placement};
pub use sconce_planner as planner;
pub use sconce_planner::band::Band;
pub use sconce_planner::plan::{Plan, Wish};
pub use source::ModelSource;
pub use vocabulary::VocabularyError;

/// Where the model of this name or folder would run, by what is known or found now.
pub fn plan(name: &str) -> Result<Plan, Error> {
    let runtime = Runtime::default();
    let source = ModelSource::parse(name, None);
    let subject = runtime.subject(&source, &card::Overrides::default(), &mut |_| {})?;
    runtime.plan(&subject, &Wish::default(), prove::Depth::Twin, &mut |_| {})
}
