//! The channel from the step loop to a generation, for threads that block and for tasks that are woken.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The task that waits for the next event.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<Option<Waker>>>);

impl Waiting {
    fn set(&self, waker: &Waker) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waiting {
            Some(current) => current.clone_from(waker),
            None => *waiting = Some(waker.clone()),
        }
    }

    fn wake(&self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Sends events. The receiver learns when the last sender is dropped.
pub(super) struct EventSender<T> {
    /// Always there until the sender is dropped.
    sender: Option<Sender<T>>,
    waiting: Waiting,
}

/// Receives events.
pub(super) struct EventReceiver<T> {
    receiver: Receiver<T>,
    waiting: Waiting,
}

pub(super) fn channel<T>() -> (EventSender<T>, EventReceiver<T>) {
    let ((sender, receiver), waiting) = (mpsc::channel(), Waiting::default());
    (EventSender { sender: Some(sender), waiting: waiting.clone() }, EventReceiver { receiver, waiting })
}

impl<T> EventSender<T> {
    /// Sends an event. Returns whether the generation is still there.
    pub(super) fn send(&self, event: T) -> bool {
        let sent = self.sender.as_ref().is_some_and(|sender| sender.send(event).is_ok());
        self.waiting.wake();
        sent
    }
}

impl<T> Clone for EventSender<T> {
    fn clone(&self) -> EventSender<T> {
        EventSender { sender: self.sender.clone(), waiting: self.waiting.clone() }
    }
}

impl<T> Drop for EventSender<T> {
    fn drop(&mut self) {
        // The channel closes before the task is woken.
        drop(self.sender.take());
        self.waiting.wake();
    }
}

impl<T> EventReceiver<T> {
    /// Waits for the next event; `None` if no sender is left.
    pub(super) fn receive(&self) -> Option<T> {
        self.receiver.recv().ok()
    }

    /// Waits at most this long.
    pub(super) fn receive_timeout(&self, timeout: Duration) -> Poll<Option<T>> {
        match self.receiver.recv_timeout(timeout) {
            Ok(event) => Poll::Ready(Some(event)),
            Err(RecvTimeoutError::Timeout) => Poll::Pending,
            Err(RecvTimeoutError::Disconnected) => Poll::Ready(None),
        }
    }

    /// Takes the next event, or registers the task for it.
    pub(super) fn poll_receive(&self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut received = self.receiver.try_recv();
        if matches!(received, Err(TryRecvError::Empty)) {
            self.waiting.set(context.waker());
            // An event that was sent before the task was registered did not wake it.
            received = self.receiver.try_recv();
        }
        match received {
            Ok(event) => Poll::Ready(Some(event)),
            Err(TryRecvError::Empty) => Poll::Pending,
            Err(TryRecvError::Disconnected) => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_waiting_task_is_woken_by_an_event_and_by_the_end_of_the_channel() {
        let (sender, receiver) = channel();
        let counter = Arc::new(Counter(AtomicUsize::new(0)));
        let (waker, woken) = (Waker::from(Arc::clone(&counter)), || counter.0.load(Ordering::SeqCst));
        let mut context = Context::from_waker(&waker);
        assert!(receiver.poll_receive(&mut context).is_pending());
        assert_eq!(woken(), 0);
        assert!(sender.send(7));
        assert_eq!(woken(), 1);
        assert!(matches!(receiver.poll_receive(&mut context), Poll::Ready(Some(7))));
        assert!(receiver.receive_timeout(Duration::ZERO).is_pending());
        assert!(receiver.poll_receive(&mut context).is_pending());
        let other = sender.clone();
        drop(sender);
        assert!(receiver.poll_receive(&mut context).is_pending());
        let before = woken();
        drop(other);
        assert_eq!(woken(), before + 1);
        assert!(matches!(receiver.poll_receive(&mut context), Poll::Ready(None)));
        assert!(receiver.receive().is_none());
    }
}
