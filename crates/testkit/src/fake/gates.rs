//! What a test can hold up in a fake engine, and what it can count there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// How often whoever is held up looks whether the gate is open.
const POLL: Duration = Duration::from_millis(1);

/// What a test can hold up, and count.
#[derive(Debug, Default)]
pub struct Gates {
    /// Whether loading waits.
    pub hold_loads: AtomicBool,
    /// Whether canaries wait.
    pub hold_canaries: AtomicBool,
    /// How many wait.
    pub waiting: AtomicUsize,
    /// How many encoders are loaded.
    pub loaded: Arc<AtomicUsize>,
}

/// An encoder that is loaded.
#[derive(Debug)]
pub(super) struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gates {
    pub(super) fn enter(&self) -> Alive {
        self.loaded.fetch_add(1, Ordering::SeqCst);
        Alive(Arc::clone(&self.loaded))
    }

    /// Waits while `gate` is closed.
    pub(super) fn pass(&self, gate: &AtomicBool) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while gate.load(Ordering::SeqCst) {
            thread::sleep(POLL);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
