//! Errors of finding and fetching a model.

use super::bundle::BundleError;
use super::hub::HubError;

/// Error of resolving a model source.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The hub returned an error.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The name is neither a local folder nor a model of the hub.
    #[error("{}", not_found(name, *is_path, similar.as_deref(), hub))]
    NotFound {
        /// The name.
        name: String,
        /// Whether the name may be a path.
        is_path: bool,
        /// A folder or a cached model with a similar name.
        similar: Option<String>,
        /// The hub's error.
        hub: Box<HubError>,
    },
    /// The bundle is invalid.
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

impl SourceError {
    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            SourceError::Hub(error) => error.is_transient(),
            SourceError::NotFound { hub, .. } => hub.is_transient(),
            SourceError::Bundle(_) => false,
        }
    }
}

fn not_found(name: &str, is_path: bool, similar: Option<&str>, hub: &HubError) -> String {
    let mut from_hub = hub.to_string();
    let mut source = std::error::Error::source(hub);
    while let Some(cause) = source {
        from_hub = format!("{from_hub}: {cause}");
        source = cause.source();
    }
    let similar = similar.map(|name| format!("\nhint: did you mean `{name}`?")).unwrap_or_default();
    if is_path {
        format!("no folder `{name}` here, and from the hub: {from_hub}{similar}")
    } else {
        format!("{from_hub}{similar}")
    }
}
