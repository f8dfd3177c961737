//! The outputs of a finished generation.

use sconce::GeneratedToken;
use sconce_http::refusal::Refusal;

use super::event::{EndReason, GenerationEvent};
use super::running::Generating;
use crate::operations::output_parser::Delta;

/// One output of a finished generation.
#[derive(Debug, Default)]
pub(crate) struct FinishedOutput {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) reason: Option<EndReason>,
    /// Its tokens, each with the text that it added.
    pub(crate) tokens: Vec<(GeneratedToken, String)>,
}

/// A call of a tool.
#[derive(Debug, Default)]
pub(crate) struct ToolCall {
    pub(crate) name: String,
    /// JSON.
    pub(crate) arguments: String,
}

impl FinishedOutput {
    /// Estimate of its bytes as JSON.
    pub(crate) fn bytes(&self) -> usize {
        let logprobs = self.tokens.iter().map(|(token, _)| 64 * (1 + token.top.len())).sum::<usize>();
        let calls = self.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        self.text.len() + self.reasoning.len() + calls + logprobs
    }

    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Text(text) => self.text += &text,
            Delta::Reasoning(text) => self.reasoning += &text,
            Delta::Call { name, .. } => self.calls.push(ToolCall { name, arguments: String::new() }),
            Delta::Arguments { text, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments += &text;
                }
            }
        }
    }
}

/// Bytes that are reserved at once for outputs.
const STEP: usize = 64 << 10;
/// Bytes of a token's text, and of one log probability, until they are written as JSON.
const TEXT_BYTES: usize = 16;
const LOGPROB_BYTES: usize = 512;

/// Waits for all outputs, which count as memory of requests in flight.
pub(crate) async fn finish(generating: &mut Generating) -> Result<Vec<FinishedOutput>, Refusal> {
    let mut outputs: Vec<FinishedOutput> =
        (0..generating.choices()).map(|_| FinishedOutput::default()).collect();
    let (mut bytes, mut reserved) = (0, 0);
    while let Some(event) = generating.next().await {
        match event? {
            GenerationEvent::Deltas { choice, deltas, token } => {
                let logprobs = token.as_ref().filter(|token| token.logprob.is_some());
                bytes += logprobs.map_or(TEXT_BYTES, |token| LOGPROB_BYTES * (1 + token.top.len()));
                if bytes > reserved {
                    generating.reserve(STEP)?;
                    reserved += STEP;
                }
                let output = &mut outputs[choice];
                let before = output.text.len();
                for delta in deltas {
                    output.add(delta);
                }
                // Tokens are kept only where their log probabilities were requested.
                let text = output.text[before..].to_owned();
                output
                    .tokens
                    .extend(token.filter(|token| token.logprob.is_some()).map(|token| (token, text)));
            }
            GenerationEvent::Finished { choice, reason } => outputs[choice].reason = Some(reason),
        }
    }
    Ok(outputs)
}
