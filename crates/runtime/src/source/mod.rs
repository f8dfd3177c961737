//! Sources of models: local folders, bundles and the Hugging Face hub.

pub mod bundle;
mod error;
pub mod hub;
mod last_use;
mod model_source;

pub use error::SourceError;
pub use last_use::last_use;
pub(crate) use last_use::record_use;
pub use model_source::ModelSource;
pub(crate) use model_source::{not_found, similar_path};
