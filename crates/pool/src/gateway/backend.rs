//! What a gateway needs of a registry.

use sconce_registry::{Bindings, Broadcast, Registry};

/// A registry that also binds names and sends messages to other gateways.
pub trait Backend: Registry + Bindings + Broadcast {}

impl<T: Registry + Bindings + Broadcast> Backend for T {}
