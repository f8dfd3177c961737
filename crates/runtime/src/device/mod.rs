//! Device executors, and detection of hangs under CPU contention.

mod executor;
mod run_delay;

pub(crate) use executor::{DeviceExecutors, ExecutorError, Loaded, panic_message};
pub(crate) use run_delay::RunDelays;
