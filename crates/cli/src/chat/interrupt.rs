//! Ctrl-C: stops an answer, and ends the program while it waits for a message.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// State of Ctrl-C.
pub(super) struct Interrupt {
    raised: Arc<AtomicBool>,
    /// Whether the program waits for a message.
    waiting: Arc<AtomicBool>,
}

/// Marks the time in which Ctrl-C stops an answer.
pub(super) struct Answering(Arc<AtomicBool>);

impl Interrupt {
    pub(super) fn new() -> io::Result<Interrupt> {
        let (raised, waiting) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        #[cfg(unix)]
        {
            use signal_hook::consts::SIGINT;
            use signal_hook::flag;

            // The exit code of a shell for a command that a signal ended.
            flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, Arc::clone(&waiting))?;
            flag::register(SIGINT, Arc::clone(&raised))?;
        }
        Ok(Interrupt { raised, waiting })
    }

    /// An answer begins.
    pub(super) fn answering(&self) -> Answering {
        self.raised.store(false, Ordering::SeqCst);
        self.waiting.store(false, Ordering::SeqCst);
        Answering(Arc::clone(&self.waiting))
    }

    /// Whether the user stopped the answer.
    pub(super) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
