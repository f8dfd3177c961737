//! Gates that block a fake engine, and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Poll interval of a blocked call.
const POLL: Duration = Duration::from_millis(1);

/// Gates that block calls, and counters.
#[derive(Debug, Default)]
pub struct Gates {
    /// Whether loads block.
    pub hold_loads: AtomicBool,
    /// Whether canaries block.
    pub hold_canaries: AtomicBool,
    /// Number of blocked calls.
    pub waiting: AtomicUsize,
    /// Number of loads.
    pub loads: AtomicUsize,
    /// Number of loaded encoders.
    pub loaded: Arc<AtomicUsize>,
}

/// Counts a loaded encoder until it is dropped.
#[derive(Debug)]
pub(super) struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gates {
    pub(super) fn enter(&self) -> Alive {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.loaded.fetch_add(1, Ordering::SeqCst);
        Alive(Arc::clone(&self.loaded))
    }

    /// Blocks while `gate` is closed.
    pub(super) fn pass(&self, gate: &AtomicBool) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while gate.load(Ordering::SeqCst) {
            thread::sleep(POLL);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
