//! Members of a pool of workers, leases, bindings, desired state and messages. A worker writes a [`Registration`] on
//! change and a [`Heartbeat`] at an interval; a gateway watches them and routes by its local [`MemberMap`] alone.
//! [`InProcess`] serves one machine; [`NatsRegistry`] serves many.

mod bindings;
mod boot;
mod broadcast;
mod desired;
mod in_process;
mod lease;
mod member_map;
pub mod nats;
mod record;
mod registry;
mod watcher;

pub use bindings::Bindings;
pub use boot::{BootId, InvalidBootId};
pub use broadcast::{Broadcast, Subscription};
pub use desired::{DesiredModel, DesiredModels, DesiredState, DesiredWatcher};
pub use in_process::InProcess;
pub use lease::{Lease, LeaseGrant};
pub use member_map::{Member, MemberMap};
pub use nats::{NatsAuth, NatsOptions, NatsRegistry, NatsTls};
pub use record::{
    FailureRecord, Heartbeat, Load, MAX_HEARTBEAT_BYTES, MAX_REGISTRATION_BYTES, ModelRecord, ObstacleRecord,
    PlacementRecord, Rates, RecordError, Registration, WorkerState,
};
pub use registry::{Registry, RegistryError};
pub use watcher::Watcher;
