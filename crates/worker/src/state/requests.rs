//! The number of requests in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts requests in flight.
#[derive(Clone, Default)]
pub(crate) struct RequestCounter {
    requests: Arc<AtomicU32>,
}

/// A request in flight, which ends on drop.
pub(crate) struct RequestInFlight {
    requests: Arc<AtomicU32>,
}

impl RequestCounter {
    /// Counts a request until the guard is dropped.
    pub(crate) fn begin(&self) -> RequestInFlight {
        self.requests.fetch_add(1, Ordering::Relaxed);
        RequestInFlight { requests: Arc::clone(&self.requests) }
    }

    pub(crate) fn count(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }
}
