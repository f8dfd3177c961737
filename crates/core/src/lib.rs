//! Types that all crates of sconce share. Nothing here opens a file, a socket or a device.

pub mod batch;
pub mod card;
pub mod device;
pub mod engine;
mod engine_error;
pub mod files;
pub mod generator;
pub mod hardware;
pub mod head;
pub mod obstacle;
pub mod placement;
pub mod probe;
pub mod remedy;
pub mod report;
pub mod sourced;
