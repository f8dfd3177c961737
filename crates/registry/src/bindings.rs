//! Bindings: names that keep the value of their first use.

use async_trait::async_trait;

use crate::registry::RegistryError;

/// Binds names to values. A name that is bound keeps its value.
#[async_trait]
pub trait Bindings: Send + Sync {
    /// Binds `name` to `value`, unless it is bound. Returns the value that it is bound to.
    async fn bind(&self, name: &str, value: &str) -> Result<String, RegistryError>;

    /// The value that `name` is bound to.
    async fn bound(&self, name: &str) -> Result<Option<String>, RegistryError>;
}
