//! What the routes of text generation share: responses, ids, time, model, usage.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use sconce_http::event_stream::EventFormat;
use sconce_http::refusal::{Dialect, Refusal};
use serde_json::{Value, json};

use crate::operations::context::RequestContext;
use crate::operations::generate::{self, EventWriter, FinishedOutput, Generating, TokenUsage};
use crate::operations::response::{self, Answer, AnswerBody};
use crate::state::slot::LoadedModel;

/// The response to a generation: the events of `writer` as they arrive, or the object that `whole` makes of all outputs.
pub(crate) fn answer<W: EventWriter>(
    context: RequestContext,
    mut generating: Generating,
    writer: W,
    streams: bool,
    whole: impl FnOnce(W, Vec<FinishedOutput>, TokenUsage) -> Value + Send + 'static,
) -> Answer {
    let work = generating.work();
    if streams {
        let record = generating.record();
        let events = generate::event_stream(generating, writer);
        return Answer { body: AnswerBody::Events(events, record), work };
    }
    let later = async move {
        let outputs = generate::finish(&mut generating).await?;
        let (bytes, usage) = (outputs.iter().map(FinishedOutput::bytes).sum(), generating.usage());
        let body = response::write_body(&context, bytes, move || whole(writer, outputs, usage)).await?;
        Ok((body, generating.work()))
    };
    Answer { body: AnswerBody::Later(Box::pin(later)), work }
}

/// The identity of one completion.
pub(crate) struct Completion {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// Numerics class of the placement.
    fingerprint: Option<String>,
}

impl Completion {
    /// A completion with a random id after `prefix`.
    pub(crate) fn new(prefix: &str, loaded: &LoadedModel) -> Completion {
        Completion {
            id: random_id(prefix),
            created: unix_seconds(),
            model: loaded.name.clone(),
            fingerprint: loaded.model.class(),
        }
    }

    /// The completion as an object of this kind.
    pub(crate) fn object(&self, kind: &str, choices: &[Value], tokens: Option<TokenUsage>) -> Value {
        let mut object = json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        });
        if let Some(tokens) = tokens {
            object["usage"] = usage(tokens);
        }
        object
    }
}

/// Writes the chunks of a completion as events.
pub(crate) struct ChunkWriter {
    pub(crate) completion: Completion,
    /// What the chunks are.
    pub(crate) kind: &'static str,
    /// Whether a last chunk has the usage, and every other one an empty one.
    pub(crate) includes_usage: bool,
}

impl ChunkWriter {
    pub(crate) fn chunk(&self, choice: Value, output: &mut Vec<u8>) {
        let mut chunk = self.completion.object(self.kind, &[choice], None);
        if self.includes_usage {
            chunk["usage"] = Value::Null;
        }
        output.extend(EventFormat::Sse.event(&chunk));
    }

    /// Writes the end of all outputs.
    pub(crate) fn finish(&self, tokens: TokenUsage, output: &mut Vec<u8>) {
        if self.includes_usage {
            output.extend(EventFormat::Sse.event(&self.completion.object(self.kind, &[], Some(tokens))));
        }
        output.extend(b"data: [DONE]\n\n");
    }

    /// Writes an error, which is the last event.
    pub(crate) fn fail(refusal: &Refusal, output: &mut Vec<u8>) {
        output.extend(EventFormat::Sse.event(&refusal.body(Dialect::OpenAi)));
    }
}

/// A random id after `prefix`.
pub(crate) fn random_id(prefix: &str) -> String {
    let random = || RandomState::new().hash_one(prefix);
    format!("{prefix}{:016x}{:08x}", random(), random() >> 32)
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// OpenAI's usage.
pub(crate) fn usage(tokens: TokenUsage) -> Value {
    json!({
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.generated,
        "total_tokens": tokens.prompt + tokens.generated,
        "prompt_tokens_details": { "cached_tokens": tokens.cached },
        "completion_tokens_details": { "reasoning_tokens": tokens.reasoning },
    })
}
