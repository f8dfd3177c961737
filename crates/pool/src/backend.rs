//! What a gateway needs of a registry.

use sconce_registry::{Bindings, Broadcast, DesiredState, Lease, Registry};

/// A registry that also grants leases, binds names, stores the desired state and sends messages to other gateways.
pub trait Backend: Registry + Lease + Bindings + DesiredState + Broadcast {}

impl<T: Registry + Lease + Bindings + DesiredState + Broadcast> Backend for T {}
