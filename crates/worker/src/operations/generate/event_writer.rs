//! The events of a generation as a response body, in the format of an API.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use sconce::GeneratedToken;
use sconce_http::event_stream::{EventFormat, EventStream};
use sconce_http::refusal::Refusal;

use super::event::{EndReason, GenerationEvent, TokenUsage};
use super::running::Generating;
use crate::operations::output_parser::Delta;

/// Writes the events of a generation in the format of an API.
pub(crate) trait EventWriter: Send + Unpin + 'static {
    /// How events are written.
    const FORMAT: EventFormat;

    /// Writes what comes before the first event.
    fn start(&mut self, generating: &Generating, output: &mut Vec<u8>);

    /// Writes the next parts of an output and the token that they come from.
    fn deltas(
        &mut self,
        choice: usize,
        deltas: Vec<Delta>,
        token: Option<GeneratedToken>,
        output: &mut Vec<u8>,
    );

    /// Writes the end of an output.
    fn end(&mut self, choice: usize, reason: EndReason, output: &mut Vec<u8>);

    /// Writes what comes after the end of all outputs.
    fn finish(&mut self, usage: TokenUsage, output: &mut Vec<u8>);

    /// Writes an error, which is the last event.
    fn fail(&mut self, refusal: &Refusal, output: &mut Vec<u8>);
}

/// The events of a generation as a response body.
pub(crate) fn event_stream<W: EventWriter>(generating: Generating, writer: W) -> EventStream {
    EventStream::new(W::FORMAT, WrittenEvents { generating, writer, started: false, ended: false })
}

struct WrittenEvents<W> {
    generating: Generating,
    writer: W,
    started: bool,
    ended: bool,
}

impl<W: EventWriter> Stream for WrittenEvents<W> {
    type Item = Vec<u8>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let WrittenEvents { generating, writer, started, ended } = &mut *self;
        if *ended {
            return Poll::Ready(None);
        }
        let mut output = Vec::new();
        if !std::mem::replace(started, true) {
            writer.start(generating, &mut output);
        }
        // Events that are there already are written together.
        loop {
            match generating.poll_event(context) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(GenerationEvent::Deltas { choice, deltas, token }))) => {
                    writer.deltas(choice, deltas, token, &mut output);
                }
                Poll::Ready(Some(Ok(GenerationEvent::Finished { choice, reason }))) => {
                    writer.end(choice, reason, &mut output);
                }
                Poll::Ready(Some(Err(refusal))) => {
                    generating.refused(&refusal);
                    writer.fail(&refusal, &mut output);
                    *ended = true;
                    break;
                }
                Poll::Ready(None) => {
                    writer.finish(generating.usage(), &mut output);
                    *ended = true;
                    break;
                }
            }
        }
        if output.is_empty() { Poll::Pending } else { Poll::Ready(Some(output)) }
    }
}
