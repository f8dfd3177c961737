//! A pool of workers as one service. The decisions are pure: clock and random source are arguments, and the members
//! are a [`MemberMap`](sconce_registry::MemberMap).

pub mod agent;
mod backend;
pub mod balancer;
pub mod breaker;
pub mod choose;
mod circuits;
pub mod class;
pub mod gateway;
pub mod hedge;
mod index;
mod model_path;
pub mod place;
mod placement;
pub mod random;
pub mod retry;
mod signals;
pub mod size;
pub mod up;
pub mod vanish;
mod worker_client;
mod workers;

pub use model_path::model_path;
