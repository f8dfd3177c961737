//! A running generation, as an iterator or an async stream over its text.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use sconce_core::placement::Placement;

use super::events::EventReceiver;
use crate::error::Error;

/// Part of the text of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Index of the output, below `n`.
    pub choice: usize,
    /// Text. It is empty while a character or a possible stop string is incomplete.
    pub text: String,
    /// The token that was sampled; none for text that was held back until the end.
    pub token: Option<GeneratedToken>,
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken {
    /// Its id.
    pub id: u32,
    /// Its log probability, if requested.
    pub logprob: Option<f32>,
    /// The most likely tokens with their log probabilities, if requested.
    pub top: Vec<(u32, f32)>,
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// The maximum number of tokens.
    Length,
}

impl FinishReason {
    /// The name that OpenAI's API uses.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        }
    }
}

/// What the step loop reports.
pub(super) enum Event {
    Piece(Piece),
    Finished {
        choice: usize,
        reason: FinishReason,
        /// Index of the stop string that ended it.
        stop: Option<usize>,
        tokens: usize,
    },
    /// The placement that computed the last step.
    Placed(Placement, String),
    /// Number of tokens of the prompt that were in the prefix cache.
    Cached(usize),
    Failed(Box<Error>),
}

/// What a generation took and where it ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationSummary {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the prefix cache.
    pub cached_tokens: usize,
    /// Generated tokens of all outputs.
    pub generated_tokens: usize,
    /// Why each output ended; none while it runs.
    pub finish_reasons: Vec<Option<FinishReason>>,
    /// Index in [`GenerateOptions::stop`](crate::GenerateOptions::stop) of the stop string that ended each output.
    pub stop_strings: Vec<Option<usize>>,
    /// The placements that computed it.
    pub placements: Vec<Placement>,
    /// Their numerics classes.
    pub classes: Vec<String>,
}

/// A running generation: an iterator over pieces of text. Dropping it cancels the generation.
///
/// [`Generation::into_stream`] is the same for async code.
pub struct Generation {
    events: EventReceiver<Event>,
    cancelled: Arc<AtomicBool>,
    summary: GenerationSummary,
    running: usize,
    /// Keeps the model loaded.
    _model: Box<dyn Send>,
}

impl Generation {
    pub(super) fn new(
        events: EventReceiver<Event>,
        cancelled: Arc<AtomicBool>,
        (prompt_tokens, choices): (usize, usize),
        model: Box<dyn Send>,
    ) -> Generation {
        let (finish_reasons, stop_strings) = (vec![None; choices], vec![None; choices]);
        let summary =
            GenerationSummary { prompt_tokens, finish_reasons, stop_strings, ..GenerationSummary::default() };
        Generation { events, cancelled, summary, running: choices, _model: model }
    }

    /// What it took so far.
    pub fn summary(&self) -> &GenerationSummary {
        &self.summary
    }

    /// Waits for the next piece, at most this long.
    pub fn next_timeout(&mut self, timeout: Duration) -> Poll<Option<Result<Piece, Error>>> {
        self.advance(|events| events.receive_timeout(timeout))
    }

    /// The generation as an async stream. It needs no particular async runtime.
    pub fn into_stream(self) -> GenerationStream {
        GenerationStream(self)
    }

    /// The whole text of the first output.
    pub fn text(mut self) -> Result<String, Error> {
        let mut text = String::new();
        for piece in &mut self {
            let piece = piece?;
            if piece.choice == 0 {
                text += &piece.text;
            }
        }
        Ok(text)
    }
}

impl Generation {
    /// The next item, from events that `receive` waits for. An event of `None` means that the step loop has ended.
    fn advance(
        &mut self,
        mut receive: impl FnMut(&EventReceiver<Event>) -> Poll<Option<Event>>,
    ) -> Poll<Option<Result<Piece, Error>>> {
        while self.running > 0 {
            let Poll::Ready(event) = receive(&self.events) else { return Poll::Pending };
            match event {
                Some(Event::Piece(piece)) => return Poll::Ready(Some(Ok(piece))),
                Some(Event::Finished { choice, reason, stop, tokens }) => {
                    self.summary.finish_reasons[choice] = Some(reason);
                    self.summary.stop_strings[choice] = stop;
                    self.summary.generated_tokens += tokens;
                    self.running -= 1;
                }
                Some(Event::Placed(placement, class)) => {
                    if !self.summary.placements.contains(&placement) {
                        self.summary.placements.push(placement);
                    }
                    if !self.summary.classes.contains(&class) {
                        self.summary.classes.push(class);
                    }
                }
                Some(Event::Cached(tokens)) => self.summary.cached_tokens = tokens,
                Some(Event::Failed(error)) => {
                    // The other outputs end with it.
                    self.cancelled.store(true, Ordering::Relaxed);
                    self.running = 0;
                    return Poll::Ready(Some(Err(*error)));
                }
                None => {
                    self.running = 0;
                    let ended = Error::Machine("the thread of the step loop ended".to_owned());
                    return Poll::Ready(Some(Err(ended)));
                }
            }
        }
        Poll::Ready(None)
    }
}

impl Iterator for Generation {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance(|events| Poll::Ready(events.receive())) {
            Poll::Ready(item) => item,
            Poll::Pending => None,
        }
    }
}

/// A running generation as an async stream of pieces. Dropping it cancels the generation.
pub struct GenerationStream(Generation);

impl GenerationStream {
    /// What it took so far.
    pub fn summary(&self) -> &GenerationSummary {
        self.0.summary()
    }
}

impl Stream for GenerationStream {
    type Item = Result<Piece, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.advance(|events| events.poll_receive(context))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}
