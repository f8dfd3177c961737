//! The HTTP edge of sconce: listener, TLS, API keys and tenants, rate, body and memory limits, CORS, telemetry, the
//! table of refusals, graceful shutdown. It knows no model: a worker and a gateway serve their routes through it.
// These macros panic once nobody reads the output any more; the log ignores that.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod body;
mod cors;
pub mod deadline;
pub mod edge;
pub mod event_stream;
pub mod fair_quota;
mod hosts;
pub mod keys;
mod layers;
pub mod listen;
pub mod memory_budget;
pub mod operator;
pub mod output;
pub mod path_name;
mod rate_limiter;
pub mod refusal;
pub mod settings;
pub mod telemetry;
pub mod tls;
mod write_deadline;

pub use edge::{Edge, RouteRules, wants_page};
pub use keys::{KeyError, Keys, Principal, TENANT_HEADER, TenantError, TenantId};
pub use layers::{Trusted, protect};
pub use listen::listen;
pub use refusal::{Dialect, Kind, Refusal};
pub use settings::Settings;
pub use telemetry::{Collector, LogFormat, TelemetryConfig};
pub use tls::{Tls, TlsError};
