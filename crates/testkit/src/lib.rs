//! Fakes, tiny models and goldens for sconce's tests.

pub mod byte_model;
pub mod chat_model;
pub mod compare;
pub mod conformance;
pub mod dashboard;
pub mod draws;
pub mod fake;
pub mod gguf;
pub mod goldens;
pub mod hub_server;
pub mod nats;
pub mod parts;
