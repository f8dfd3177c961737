//! Diagnoses Cargo projects that use Candle, and computes the manifest edits that fix them.
//!
//! [`examine`] reads the dependency tree that `cargo tree` resolves, checks it ([`Diagnosis`]), and verifies the
//! proposed edits on an overlay of the project. It never writes into the project.

mod accelerator;
mod cargo;
mod change;
mod checks;
mod diagnosis;
mod editor;
mod error;
mod examine;
mod features;
mod fix;
mod manifest;
mod messages;
mod overlay;
mod report;
mod request;
mod tree;
mod versions;

pub use diagnosis::Diagnosis;
pub use error::Error;
pub use examine::examine;
pub use report::render;
pub use request::Request;
