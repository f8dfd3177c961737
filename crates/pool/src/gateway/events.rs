//! Events of an answer that a gateway passes on: whole events only, so that a broken stream can end with an error event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::Bytes;
use sconce_http::event_stream::{EventFormat, named_event};
use sconce_http::refusal::{Dialect, Refusal};
use serde_json::json;

/// Maximum bytes of an event that is held back until it is whole.
const MAX_HELD: usize = 1 << 20;

/// Prefixes of a server-sent event after which a stream has ended.
const TERMINAL: [&[u8]; 8] = [
    b"data: [DONE]",
    b"data: {\"error\"",
    b"event: error",
    b"event: message_stop",
    b"event: response.completed",
    b"event: response.failed",
    b"event: response.incomplete",
    b"data: {\"type\":\"error\"",
];

/// The events of one answer.
pub(super) struct Events {
    format: EventFormat,
    /// Path of the route.
    path: &'static str,
    dialect: Dialect,
    /// The start of an event that is not whole.
    held: Vec<u8>,
    /// Whether the last event was the end of the stream.
    terminal: bool,
    /// Events of OpenAI's `/v1/responses`, which are numbered.
    sequence: usize,
    /// Events that were passed on, which are about as many as generated tokens.
    count: Arc<AtomicU64>,
}

impl Events {
    /// The events of an answer with this content type; `None` if it is not a stream.
    pub(super) fn of(content_type: &[u8], path: &'static str, dialect: Dialect) -> Option<Events> {
        let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
        let formats = [EventFormat::Sse, EventFormat::JsonLines];
        let format = formats.into_iter().find(|format| format.content_type().as_bytes() == media_type)?;
        Some(Events {
            format,
            path,
            dialect,
            held: Vec::new(),
            terminal: false,
            sequence: 0,
            count: Arc::default(),
        })
    }

    /// How events are written.
    pub(super) fn format(&self) -> EventFormat {
        self.format
    }

    /// The number of events that were passed on, while they are.
    pub(super) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.count)
    }

    /// Takes the next bytes of a worker, and returns the whole events.
    pub(super) fn push(&mut self, bytes: Bytes) -> Bytes {
        let whole = if self.held.is_empty() && self.boundary(&bytes) == bytes.len() {
            bytes
        } else {
            self.held.extend_from_slice(&bytes);
            let end = if self.held.len() > MAX_HELD { self.held.len() } else { self.boundary(&self.held) };
            Bytes::from(self.held.drain(..end).collect::<Vec<u8>>())
        };
        if !whole.is_empty() {
            self.terminal = self.is_terminal(&whole);
            self.count.fetch_add(count(&whole, self.separator()) as u64, Ordering::Relaxed);
            if self.path == "/v1/responses" {
                self.sequence += count(&whole, b"\"sequence_number\":");
            }
        }
        whole
    }

    /// The bytes that are held back, for an answer that has ended.
    pub(super) fn finish(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.held))
    }

    /// The last event of a stream that broke, unless it had ended.
    pub(super) fn error(&mut self, refusal: &Refusal) -> Option<Bytes> {
        if std::mem::replace(&mut self.terminal, true) {
            return None;
        }
        let body = refusal.body(self.dialect);
        let event = match (self.path, self.dialect) {
            ("/v1/responses", _) => named_event(
                "error",
                &json!({
                    "type": "error",
                    "code": refusal.code(),
                    "message": refusal.message,
                    "param": null,
                    "sequence_number": self.sequence,
                }),
            ),
            (_, Dialect::Anthropic) => named_event("error", &body),
            (_, Dialect::Tei | Dialect::OpenAi | Dialect::Cohere | Dialect::Ollama) => {
                self.format.event(&body)
            }
        };
        Some(Bytes::from(event))
    }

    /// The end of the last whole event.
    fn boundary(&self, bytes: &[u8]) -> usize {
        let separator = self.separator();
        let at = bytes.windows(separator.len()).rposition(|window| window == separator);
        at.map_or(0, |at| at + separator.len())
    }

    fn separator(&self) -> &'static [u8] {
        match self.format {
            EventFormat::Sse => b"\n\n",
            EventFormat::JsonLines => b"\n",
        }
    }

    /// Whether the last of whole events ends the stream.
    fn is_terminal(&self, whole: &[u8]) -> bool {
        let separator = self.separator();
        let body = whole.strip_suffix(separator).unwrap_or(whole);
        let start = body.windows(separator.len()).rposition(|window| window == separator);
        let last = start.map_or(body, |at| &body[at + separator.len()..]);
        match self.format {
            EventFormat::Sse => TERMINAL.iter().any(|prefix| last.starts_with(prefix)),
            EventFormat::JsonLines => last.starts_with(b"{\"error\"") || count(last, b"\"done\":true") > 0,
        }
    }
}

fn count(bytes: &[u8], pattern: &[u8]) -> usize {
    bytes.windows(pattern.len()).filter(|window| *window == pattern).count()
}

#[cfg(test)]
mod tests {
    use sconce_http::refusal::Kind;

    use super::*;

    fn events(content_type: &str, path: &'static str, dialect: Dialect) -> Events {
        Events::of(content_type.as_bytes(), path, dialect).expect("a stream")
    }

    fn chat() -> Events {
        events("text/event-stream", "/v1/chat/completions", Dialect::OpenAi)
    }

    fn lost() -> Refusal {
        Refusal::new(Kind::WorkerFailed, "lost")
    }

    #[test]
    fn only_whole_events_are_passed_on() {
        let mut events = chat();
        assert_eq!(events.push(Bytes::from("data: 1\n\n")), "data: 1\n\n");
        assert_eq!(events.push(Bytes::from("data: 2\n\ndata: {\"a")), "data: 2\n\n");
        assert_eq!(events.push(Bytes::from("\": 3}\n")), "");
        assert_eq!(events.push(Bytes::from("\n: keep")), "data: {\"a\": 3}\n\n");
        assert_eq!(events.finish(), ": keep");
        assert_eq!(events.counter().load(Ordering::Relaxed), 3);
        let mut events = chat();
        let long = "a".repeat(MAX_HELD + 1);
        assert_eq!(events.push(Bytes::from(long.clone())).len(), long.len(), "memory is bounded");
    }

    #[test]
    fn a_broken_stream_ends_with_one_error_in_its_dialect() {
        let mut stream = chat();
        stream.push(Bytes::from("data: 1\n\ndata: {\"cut"));
        let error = stream.error(&lost()).expect("an event");
        let text = String::from_utf8(error.to_vec()).expect("text");
        assert!(
            text.starts_with("data: {\"error\":{\"message\":\"lost\"") && text.ends_with("}\n\n"),
            "{text}"
        );
        assert!(stream.error(&lost()).is_none());

        let mut messages = events("text/event-stream", "/v1/messages", Dialect::Anthropic);
        let error = messages.error(&lost()).expect("an event");
        assert!(error.starts_with(b"event: error\ndata: {\"type\":\"error\""));

        let mut responses = events("text/event-stream; charset=utf-8", "/v1/responses", Dialect::OpenAi);
        responses.push(Bytes::from("event: a\ndata: {\"sequence_number\":0}\n\n"));
        let error = String::from_utf8(responses.error(&lost()).expect("an event").to_vec()).expect("text");
        assert!(error.contains("\"sequence_number\":1") && error.contains("\"worker_failed\""), "{error}");

        let mut ollama = events("application/x-ndjson", "/api/chat", Dialect::Ollama);
        assert_eq!(ollama.push(Bytes::from("{\"a\":1}\n{\"b")), "{\"a\":1}\n");
        assert_eq!(ollama.error(&lost()).expect("a line"), "{\"error\":\"lost\"}\n");
    }

    #[test]
    fn a_stream_that_has_ended_gets_no_error() {
        for (content_type, end) in [
            ("text/event-stream", "data: 1\n\ndata: [DONE]\n\n"),
            ("text/event-stream", "event: message_stop\ndata: {}\n\n"),
            ("text/event-stream", "data: {\"error\":{\"message\":\"own\"}}\n\n"),
            ("text/event-stream", "event: response.completed\ndata: {}\n\n"),
            ("application/x-ndjson", "{\"done\":false}\n{\"model\":\"m\",\"done\":true}\n"),
        ] {
            let mut events = events(content_type, "/any", Dialect::OpenAi);
            events.push(Bytes::from(end));
            assert!(events.error(&lost()).is_none(), "{end}");
        }
        assert!(Events::of(b"application/json", "/embed", Dialect::Tei).is_none());
    }
}
