//! Response bodies of events that are sent as they arrive: server-sent events, or a JSON value per line.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use hyper::body::{Body, Bytes, Frame};
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep};

/// Interval of comments on a stream without events, so that proxies do not close the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFormat {
    /// Server-sent events.
    Sse,
    /// A JSON value per line.
    JsonLines,
}

impl EventFormat {
    /// The content type of the body.
    pub fn content_type(self) -> &'static str {
        match self {
            EventFormat::Sse => "text/event-stream",
            EventFormat::JsonLines => "application/x-ndjson",
        }
    }

    /// An event with this value.
    pub fn event(self, value: &impl Serialize) -> Vec<u8> {
        // A value of strings, numbers and maps with string keys is always written.
        let json = serde_json::to_string(value).unwrap_or_default();
        match self {
            EventFormat::Sse => format!("data: {json}\n\n").into_bytes(),
            EventFormat::JsonLines => format!("{json}\n").into_bytes(),
        }
    }
}

/// A server-sent event with a name.
pub fn named_event(name: &str, value: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_string(value).unwrap_or_default();
    format!("event: {name}\ndata: {json}\n\n").into_bytes()
}

/// A response body of events. It ends with its stream; dropping it drops the stream.
pub struct EventStream {
    format: EventFormat,
    events: Pin<Box<dyn Stream<Item = Vec<u8>> + Send>>,
    keep_alive: Duration,
    idle: Pin<Box<Sleep>>,
    ended: bool,
    /// Dropped with the body.
    held: Option<Box<dyn Send>>,
}

impl EventStream {
    /// A body of events that `events` has written.
    pub fn new(format: EventFormat, events: impl Stream<Item = Vec<u8>> + Send + 'static) -> EventStream {
        EventStream::with_keep_alive(format, events, KEEP_ALIVE)
    }

    fn with_keep_alive(
        format: EventFormat,
        events: impl Stream<Item = Vec<u8>> + Send + 'static,
        keep_alive: Duration,
    ) -> EventStream {
        let idle = Box::pin(sleep(keep_alive));
        EventStream { format, events: Box::pin(events), keep_alive, idle, ended: false, held: None }
    }

    /// Holds `guard` until the body is dropped.
    #[must_use]
    pub fn holding(mut self, guard: impl Send + 'static) -> EventStream {
        self.held = Some(Box::new(guard));
        self
    }

    /// How its events are written.
    pub fn format(&self) -> EventFormat {
        self.format
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = match self.events.as_mut().poll_next(context) {
            Poll::Ready(Some(event)) => Bytes::from(event),
            Poll::Ready(None) => {
                self.ended = true;
                return Poll::Ready(None);
            }
            Poll::Pending if self.format == EventFormat::Sse => {
                std::task::ready!(self.idle.as_mut().poll(context));
                Bytes::from_static(b": keep-alive\n\n")
            }
            Poll::Pending => return Poll::Pending,
        };
        let next = Instant::now() + self.keep_alive;
        self.idle.as_mut().reset(next);
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Two events with a pause between them.
    struct Events {
        left: u32,
        pause: Pin<Box<Sleep>>,
    }

    impl Stream for Events {
        type Item = Vec<u8>;

        fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
            if self.left == 1 {
                std::task::ready!(self.pause.as_mut().poll(context));
            }
            self.left = match self.left.checked_sub(1) {
                Some(left) => left,
                None => return Poll::Ready(None),
            };
            Poll::Ready(Some(EventFormat::Sse.event(&self.left)))
        }
    }

    fn sent(format: EventFormat) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let (pause, keep_alive) =
                (Box::pin(sleep(Duration::from_millis(200))), Duration::from_millis(80));
            let mut body = EventStream::with_keep_alive(format, Events { left: 2, pause }, keep_alive);
            let mut sent = Vec::new();
            while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                assert!(!body.is_end_stream());
                let bytes = frame.into_data().expect("data");
                sent.push(String::from_utf8(bytes.to_vec()).expect("text"));
            }
            assert!(body.is_end_stream());
            sent
        })
    }

    #[test]
    fn events_are_sent_as_they_arrive_with_comments_between_distant_ones() {
        let comment = ": keep-alive\n\n";
        let events = sent(EventFormat::Sse);
        assert!(events.contains(&comment.to_owned()), "{events:?}");
        let events: Vec<String> = events.into_iter().filter(|event| event != comment).collect();
        assert_eq!(events, ["data: 1\n\n", "data: 0\n\n"]);
        assert_eq!(sent(EventFormat::JsonLines), ["data: 1\n\n", "data: 0\n\n"], "no comments in JSON lines");
    }

    #[test]
    fn an_event_is_one_line_of_json() {
        assert_eq!(EventFormat::Sse.event(&"a\nb"), b"data: \"a\\nb\"\n\n");
        assert_eq!(EventFormat::JsonLines.event(&1), b"1\n");
        assert_eq!(named_event("ping", &1), b"event: ping\ndata: 1\n\n");
    }
}
