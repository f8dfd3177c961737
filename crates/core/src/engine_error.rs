//! Errors of engines while they compute.

use std::error::Error;

/// Why a batch could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Out of device memory; a smaller batch may fit.
    #[error("out of memory")]
    OutOfMemory(#[source] Box<dyn Error + Send + Sync>),
    /// The engine or its device failed.
    #[error("the engine failed")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
    /// The batch is invalid.
    #[error("the batch is malformed: {0}")]
    Malformed(String),
}
