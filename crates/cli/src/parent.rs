//! The parent process of a worker, on standard input: the worker exits when it is closed, and drains on the line `drain`.
//!
//! The parent holds the other end of the pipe. However the parent ends, the system closes the pipe.

use std::io::{self, BufRead, BufReader, Read};
use std::process;
use std::sync::{Arc, OnceLock};
use std::thread;

/// The line that lets a worker drain.
const DRAIN: &str = "drain";
/// Exit code of a worker whose parent has ended.
const PARENT_ENDED: i32 = 3;

/// Begins graceful shutdown.
type Stop = Box<dyn Fn() + Send + Sync>;

/// The parent process.
#[derive(Default)]
pub(crate) struct Parent {
    stop: Arc<OnceLock<Stop>>,
}

impl Parent {
    /// Watches standard input from now on.
    pub(crate) fn watch() -> io::Result<Parent> {
        let parent = Parent::default();
        let stop = Arc::clone(&parent.stop);
        thread::Builder::new().name("sconce-parent".to_owned()).spawn(move || {
            process::exit(follow(io::stdin(), &stop));
        })?;
        Ok(parent)
    }

    /// Sets what the line `drain` does from now on. Before, it ends the process.
    pub(crate) fn on_drain(&self, stop: impl Fn() + Send + Sync + 'static) {
        let _ = self.stop.set(Box::new(stop));
    }
}

/// Reads lines until the process must exit. Returns the exit code.
fn follow(input: impl Read, stop: &OnceLock<Stop>) -> i32 {
    for line in BufReader::new(input).lines() {
        match (line, stop.get()) {
            (Ok(line), Some(stop)) if line.trim() == DRAIN => stop(),
            // Nothing is served yet.
            (Ok(line), None) if line.trim() == DRAIN => return 0,
            (Ok(_), _) => {}
            (Err(_), _) => break,
        }
    }
    PARENT_ENDED
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_worker_drains_when_it_is_told_and_exits_at_the_end_of_input() {
        let (parent, drains) = (Parent::default(), Arc::new(AtomicUsize::new(0)));
        assert_eq!(follow(&b"other\n"[..], &parent.stop), PARENT_ENDED);
        assert_eq!(follow(&b"drain\nother\n"[..], &parent.stop), 0, "nothing is served yet");
        let counted = Arc::clone(&drains);
        parent.on_drain(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(follow(&b"other\ndrain\r\n\n"[..], &parent.stop), PARENT_ENDED);
        assert_eq!(drains.load(Ordering::SeqCst), 1);
    }
}
