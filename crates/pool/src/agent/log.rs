//! The log of an agent: its own events, and the lines of its workers.

use std::fmt;
use std::sync::Arc;

use sconce_http::LogFormat;
use serde_json::Value;

/// Where the lines of a log go.
pub type WriteLine = Arc<dyn Fn(&str) + Send + Sync>;

/// The log of an agent.
#[derive(Clone)]
pub struct AgentLog {
    format: LogFormat,
    write: WriteLine,
}

impl fmt::Debug for AgentLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentLog").field("format", &self.format).finish_non_exhaustive()
    }
}

impl AgentLog {
    /// A log of this format whose lines `write` takes.
    pub fn new(format: LogFormat, write: WriteLine) -> AgentLog {
        AgentLog { format, write }
    }

    /// Writes an event.
    pub(crate) fn info(&self, event: &str, fields: &[(&str, Value)]) {
        (self.write)(&self.format.line(event, fields));
    }

    /// Writes an event that needs attention.
    pub(super) fn error(&self, event: &str, fields: &[(&str, Value)]) {
        (self.write)(&self.format.error(event, fields));
    }

    /// Writes a line of a worker, after its id. A JSON log stays JSON.
    pub(super) fn worker_line(&self, worker_id: &str, line: &str) {
        match self.format {
            LogFormat::Human => (self.write)(&format!("{worker_id}: {line}")),
            LogFormat::Json => (self.write)(line),
        }
    }
}
