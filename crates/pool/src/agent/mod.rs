//! The agent: runs the workers of one machine. It starts a process per device, probes it, and restarts it with backoff.
//! Its workers end when it does.

mod exit;
mod failure;
mod log;
mod log_tail;
mod probe;
mod process;
mod run;
mod supervision;
mod supervisor;

pub use exit::Exit;
pub use log::{AgentLog, WriteLine};
pub use process::WorkerCommand;
pub(crate) use process::detach;
pub(crate) use run::supervise;
pub use run::{AgentError, AgentSettings, run};
pub use supervision::{Action, KillReason, Next, ProbeOutcome, Supervision, SupervisionOptions};
