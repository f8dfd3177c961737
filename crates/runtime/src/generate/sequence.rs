//! One output of a generation: from logits to text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::constraint::{Constraint, ConstraintError};
use super::detokenize::Detokenizer;
use super::events::EventSender;
use super::generation::{Event, FinishReason, GeneratedToken, Piece};
use super::mask::TokenMask;
use super::options::GenerateOptions;
use super::sample::{SampleError, Sampled, Sampler};
use super::stop::StopMatcher;
use crate::tokenize::ModelTokenizer;

/// Decodes token ids to text.
pub(super) type Decode = Box<dyn Fn(&[u32]) -> String + Send>;

/// The output of one choice of a request.
pub(super) struct OutputSequence {
    choice: usize,
    options: GenerateOptions,
    sampler: Sampler,
    detokenizer: Detokenizer<Decode>,
    stop: StopMatcher,
    /// The tokens that the options allow.
    mask: Option<TokenMask>,
    constraint: Option<Constraint>,
    /// The mask of the next token, if it is computed.
    next_mask: Option<Result<TokenMask, ConstraintError>>,
    end_tokens: Vec<u32>,
    /// Number of generated tokens.
    generated: usize,
    /// Whether it began to run.
    admitted: bool,
    events: EventSender<Event>,
    cancelled: Arc<AtomicBool>,
}

/// Why a sequence can't continue.
#[derive(Debug, thiserror::Error)]
pub(super) enum OutputError {
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
}

/// What a sequence does after a token.
pub(super) enum Next {
    /// It continues with this token.
    Continue(u32),
    /// It ended.
    Finished,
}

impl OutputSequence {
    pub(super) fn new(
        tokenizer: &Arc<ModelTokenizer>,
        end_tokens: &[u32],
        prompt: &[u32],
        options: GenerateOptions,
        (seed, choice): (u64, usize),
        events: EventSender<Event>,
        cancelled: Arc<AtomicBool>,
    ) -> OutputSequence {
        let tokenizer = Arc::clone(tokenizer);
        let decode: Decode = Box::new(move |ids| tokenizer.decode(ids, true).unwrap_or_default());
        OutputSequence {
            choice,
            sampler: Sampler::new(&options, seed, choice, prompt, end_tokens),
            detokenizer: Detokenizer::new(decode, prompt),
            stop: StopMatcher::new(&options.stop),
            mask: options.allowed_tokens.as_deref().map(mask),
            constraint: None,
            next_mask: None,
            end_tokens: if options.ignore_eos { Vec::new() } else { end_tokens.to_vec() },
            generated: 0,
            admitted: false,
            options,
            events,
            cancelled,
        }
    }

    /// With a constraint on its text.
    pub(super) fn constrained(self, constraint: Option<Constraint>) -> OutputSequence {
        OutputSequence { constraint, ..self }
    }

    /// Whether nobody waits for its output.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Sends an event. If nobody receives it, the sequence is cancelled.
    pub(super) fn send(&self, event: Event) {
        if !self.events.send(event) {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that it runs, with this many cached tokens. Returns whether it did not run before.
    pub(super) fn admit(&mut self, cached: usize) -> bool {
        let is_first = !std::mem::replace(&mut self.admitted, true);
        if is_first && self.choice == 0 {
            self.send(Event::Cached(cached));
        }
        is_first
    }

    /// Samples the next token, and sends its text.
    pub(super) fn next(&mut self, logits: &mut [f32]) -> Result<Next, OutputError> {
        let sampled = self.sample(logits)?;
        let token = sampled.token;
        self.generated += 1;
        let is_end = self.end_tokens.contains(&token) || self.options.stop_tokens.contains(&token);
        if is_end {
            self.finish(String::new(), Some(sampled), FinishReason::Stop);
            return Ok(Next::Finished);
        }
        let is_complete = match &mut self.constraint {
            Some(constraint) => constraint.push(token)?,
            None => false,
        };
        let piece = self.detokenizer.push(token);
        let (text, stop) = if self.generated <= self.options.min_tokens {
            (self.stop.skip(&piece), None)
        } else {
            let output = self.stop.push(&piece);
            (output.text, output.stop)
        };
        if stop.is_some() {
            self.send(Event::Piece(self.piece(text, Some(sampled))));
            self.send(Event::Finished {
                choice: self.choice,
                reason: FinishReason::Stop,
                stop,
                tokens: self.generated,
            });
            return Ok(Next::Finished);
        }
        if is_complete {
            self.finish(text, Some(sampled), FinishReason::Stop);
            return Ok(Next::Finished);
        }
        if self.options.max_tokens.is_some_and(|most| self.generated >= most) {
            self.finish(text, Some(sampled), FinishReason::Length);
            return Ok(Next::Finished);
        }
        self.send(Event::Piece(self.piece(text, Some(sampled))));
        Ok(Next::Continue(token))
    }

    /// Whether the mask of the next token is to be computed.
    pub(super) fn needs_mask(&self) -> bool {
        self.constraint.is_some() && self.next_mask.is_none()
    }

    /// Computes the mask of the next token, unless there is one.
    pub(super) fn prepare_mask(&mut self) {
        if self.needs_mask() {
            let stop_tokens = &self.options.stop_tokens;
            self.next_mask = self.constraint.as_mut().map(|constraint| constraint.mask(stop_tokens));
        }
    }

    fn sample(&mut self, logits: &mut [f32]) -> Result<Sampled, OutputError> {
        self.prepare_mask();
        let mut mask = self.next_mask.take().transpose()?;
        if let (Some(mask), Some(allowed)) = (&mut mask, &self.mask) {
            mask.intersect(allowed);
        }
        Ok(self.sampler.sample(logits, mask.as_ref().or(self.mask.as_ref()))?)
    }

    /// Sends `text` with all text that was held back, and the end.
    fn finish(&mut self, text: String, sampled: Option<Sampled>, reason: FinishReason) {
        let last = self.stop.push(&self.detokenizer.flush());
        let reason = if last.stop.is_some() { FinishReason::Stop } else { reason };
        let text = text + &last.text + &self.stop.flush();
        if !text.is_empty() || sampled.is_some() {
            self.send(Event::Piece(self.piece(text, sampled)));
        }
        let stop = last.stop;
        self.send(Event::Finished { choice: self.choice, reason, stop, tokens: self.generated });
    }

    /// Ends at the maximum length.
    pub(super) fn finish_at_length(&mut self) {
        self.finish(String::new(), None, FinishReason::Length);
    }

    fn piece(&self, text: String, sampled: Option<Sampled>) -> Piece {
        let token = sampled.map(|Sampled { token, logprob, top }| GeneratedToken { id: token, logprob, top });
        Piece { choice: self.choice, text, token }
    }
}

/// A mask that allows these tokens.
fn mask(tokens: &[u32]) -> TokenMask {
    let mut mask = TokenMask::new(tokens.iter().max().map_or(0, |last| *last as usize + 1));
    for token in tokens {
        mask.allow(*token);
    }
    mask
}
