//! The gateway: one address for the workers of a pool. It finds the model of a request, chooses a worker by the local
//! map of the registry, forwards the request and streams the answer.

mod account;
mod answer;
mod arguments;
mod attempt;
mod attempts;
mod cold;
mod desired;
mod events;
mod headers;
mod hedging;
mod job;
mod liveness;
mod members;
mod metrics;
pub mod model_name;
mod ollama;
mod pages;
mod pin;
mod prefix;
mod proxy;
mod rate_limits;
mod refusals;
mod router;
mod routes;
mod run;
mod server;
mod settings;
mod state;
mod verdict;

pub use arguments::Arguments;
pub use headers::{CLASS_HEADER, INDEX_HEADER, WORKER_HEADER};
pub use routes::BodyName;
pub use run::{RunSettings, run};
pub use server::{GatewayError, serve};
pub use settings::GatewaySettings;

pub use crate::backend::Backend;
