//! Threads for work on text that takes longer than a connection may wait: tokenizing, and writing long answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::oneshot;

type Task = Box<dyn FnOnce() + Send>;

/// Threads that work on text, with a bound on how much of it waits.
pub(crate) struct Threads {
    tasks: Sender<Task>,
    bytes: Arc<AtomicUsize>,
    most: usize,
}

/// Too much text waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMuch;

/// The bytes of one task, given back when it is done.
struct Weight {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Threads {
    /// So many threads, which let at most `most` bytes of text wait.
    pub(crate) fn start(count: usize, most: usize) -> std::io::Result<Threads> {
        let (sender, receiver) = mpsc::channel::<Task>();
        let receiver = Arc::new(Mutex::new(receiver));
        for number in 0..count.max(1) {
            let tasks = Arc::clone(&receiver);
            thread::Builder::new().name(format!("sconce-text-{number}")).spawn(move || run(&tasks))?;
        }
        Ok(Threads { tasks: sender, bytes: Arc::default(), most })
    }

    /// Runs `task`, which holds `bytes` of text, on one of the threads. A task that nobody waits for any more when
    /// its turn comes is not run; one that panics gives none.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>, TooMuch> {
        let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        let weight = Weight { bytes, all: Arc::clone(&self.bytes) };
        if before > 0 && before + bytes > self.most {
            return Err(TooMuch);
        }
        let (reply, answer) = oneshot::channel();
        let task = move || {
            let _weight = weight;
            if !reply.is_closed() {
                let _ = reply.send(task());
            }
        };
        let _ = self.tasks.send(Box::new(task));
        Ok(answer.await.ok())
    }
}

fn run(tasks: &Mutex<Receiver<Task>>) {
    loop {
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
    }
}
