//! The body of an answer, streamed from a worker to the client.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use sconce_http::event_stream::EventFormat;
use sconce_http::refusal::{Kind, Refusal};
use tokio::time::{Instant, Sleep, sleep_until};

use super::attempt::WorkerBody;
use super::events::Events;

/// Time without bytes after which a stream of server-sent events is broken. Workers send a comment every 15 s.
const MAX_SILENCE: Duration = Duration::from_secs(45);

/// How the body of an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The whole body was sent.
    Complete,
    /// The worker broke it off.
    Broken,
    /// The client left.
    Cancelled,
}

/// A future of a reason to break off a body.
pub(super) type Signal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body of an answer.
pub(super) struct AnswerBody {
    body: WorkerBody,
    /// The events, if it is a stream of them.
    events: Option<Events>,
    /// When the next bytes must have arrived.
    limit: Option<Pin<Box<Sleep>>>,
    /// Completes once the worker is known to be dead.
    dead: Signal,
    /// Completes when the gateway ends.
    closing: Signal,
    on_end: Option<Box<dyn FnOnce(End) + Send>>,
    ended: bool,
}

impl AnswerBody {
    /// A body that must be whole at `deadline`, unless it is a stream of events.
    pub(super) fn new(
        body: WorkerBody,
        events: Option<Events>,
        deadline: Instant,
        dead: Signal,
        closing: Signal,
        on_end: impl FnOnce(End) + Send + 'static,
    ) -> AnswerBody {
        let limit = match events.as_ref().map(Events::format) {
            None => Some(deadline),
            Some(EventFormat::Sse) => Some(Instant::now() + MAX_SILENCE),
            Some(EventFormat::JsonLines) => None,
        };
        let limit = limit.map(|limit| Box::pin(sleep_until(limit)));
        let mut answer =
            AnswerBody { body, events, limit, dead, closing, on_end: Some(Box::new(on_end)), ended: false };
        if answer.body.is_end_stream() {
            answer.end(End::Complete);
        }
        answer
    }

    fn end(&mut self, end: End) {
        self.ended = true;
        if let Some(on_end) = self.on_end.take() {
            on_end(end);
        }
    }

    /// Ends the body early: a stream of events with an error event, any other by closing the connection.
    fn break_off(&mut self, refusal: &Refusal) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.end(End::Broken);
        match &mut self.events {
            Some(events) => Poll::Ready(events.error(refusal).map(|event| Ok(Frame::data(event)))),
            None => Poll::Ready(Some(Err(io::Error::other(refusal.message.clone())))),
        }
    }

    /// Why the body must be broken off now, while no bytes arrive.
    fn interruption(&mut self, context: &mut Context<'_>) -> Option<Refusal> {
        if self.dead.as_mut().poll(context).is_ready() {
            return Some(Refusal::new(Kind::WorkerFailed, "the worker stopped answering"));
        }
        if self.closing.as_mut().poll(context).is_ready() {
            return Some(Refusal::new(Kind::NotReady, "the gateway is shutting down"));
        }
        let limit = self.limit.as_mut()?;
        limit.as_mut().poll(context).is_ready().then(|| {
            Refusal::new(Kind::TimedOut, "the worker sent no more of the answer within the time limit")
        })
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            if self.ended {
                return Poll::Ready(None);
            }
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending => {
                    return match self.interruption(context) {
                        Some(refusal) => self.break_off(&refusal),
                        None => Poll::Pending,
                    };
                }
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(_))) => {
                    return self
                        .break_off(&Refusal::new(Kind::WorkerFailed, "the connection to the worker broke"));
                }
                Poll::Ready(None) => {
                    let rest = self.events.as_mut().map(Events::finish).unwrap_or_default();
                    self.end(End::Complete);
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
                }
            };
            let AnswerBody { events, limit, body, .. } = &mut *self;
            let Some(events) = events else {
                if body.is_end_stream() {
                    self.end(End::Complete);
                }
                return Poll::Ready(Some(Ok(frame)));
            };
            if let (Some(limit), EventFormat::Sse) = (limit, events.format()) {
                limit.as_mut().reset(Instant::now() + MAX_SILENCE);
            }
            let Ok(data) = frame.into_data() else { continue };
            let whole = events.push(data);
            if !whole.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(whole))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        if self.events.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.end(End::Cancelled);
    }
}
