//! The registry within one process.

use std::sync::Arc;

use sconce_registry::InProcess;

use crate::conformance::conformance;
use crate::pool::Pool;

async fn pool() -> Pool {
    Pool { handles: vec![Arc::new(InProcess::new())], _server: None }
}

conformance!(pool);
