//! Waits for work on another thread, detached from the interpreter, and handles signals meanwhile.

use std::ops::ControlFlow;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::progress::Progress;

/// How often a waiting call handles signals, and work reports its progress.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

enum Message<T> {
    Progress(String, u64, u64),
    Done(T),
}

/// Reports the progress of work to the call that waits for it.
pub(crate) struct Reporter<T> {
    sender: Sender<Message<T>>,
    last: Instant,
}

impl<T> Reporter<T> {
    /// Reports progress, at most once per interval until it is complete. Breaks if nobody waits any more.
    pub(crate) fn report(&mut self, what: &str, done: u64, total: u64) -> ControlFlow<()> {
        if done < total && self.last.elapsed() < POLL_INTERVAL {
            return ControlFlow::Continue(());
        }
        self.last = Instant::now();
        match self.sender.send(Message::Progress(what.to_owned(), done, total)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

/// Runs `work` on a thread of its own. The call ends early by an exception of a signal handler, such as
/// `KeyboardInterrupt`, or of a progress callback; the work learns it from its next report.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    progress: &Progress,
    work: impl FnOnce(Reporter<T>) -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, messages) = mpsc::channel();
    let reporter = Reporter { sender: sender.clone(), last: Instant::now() };
    let run = move || {
        let _ = sender.send(Message::Done(work(reporter)));
    };
    thread::Builder::new().name("sconce-python".to_owned()).spawn(run)?;
    let result = py.detach(move || {
        loop {
            let message = messages.recv_timeout(POLL_INTERVAL);
            if let Ok(Message::Done(result)) = message {
                return Ok(result);
            }
            Python::attach(|py| {
                py.check_signals()?;
                match message {
                    Ok(Message::Progress(what, done, total)) => progress.show(py, &what, done, total),
                    Ok(Message::Done(_)) | Err(RecvTimeoutError::Timeout) => Ok(()),
                    Err(RecvTimeoutError::Disconnected) => {
                        Err(PyRuntimeError::new_err("a thread of sconce panicked"))
                    }
                }
            })?;
        }
    });
    progress.clear(py);
    result
}
