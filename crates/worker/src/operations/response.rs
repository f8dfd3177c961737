//! Response bodies: built of output rows and written as JSON, large ones on the text threads.

use std::ops::Range;
use std::pin::Pin;

use sconce_http::event_stream::EventStream;
use sconce_http::output::{Chunks, OutputLimits};
use sconce_http::refusal::Refusal;
use sconce_http::telemetry::DeferredRecord;
use serde::Serialize;

use crate::operations::context::RequestContext;
use crate::state::work::Work;

/// Response bodies above this many bytes are built and written on a text thread.
const LARGE: usize = 128 << 10;

/// A result that is still to be built of output rows.
pub(crate) struct Deferred<T> {
    pub(crate) work: Work,
    /// Estimate of the bytes that are read and written to build it.
    bytes: usize,
    build: Box<dyn FnOnce() -> T + Send>,
}

impl<T: 'static> Deferred<T> {
    pub(crate) fn new(work: Work, bytes: usize, build: impl FnOnce() -> T + Send + 'static) -> Deferred<T> {
        Deferred { work, bytes, build: Box::new(build) }
    }

    /// Applies `then` to the result when it is built.
    pub(crate) fn map<U>(self, then: impl FnOnce(T) -> U + Send + 'static) -> Deferred<U> {
        let Deferred { work, bytes, build } = self;
        Deferred { work, bytes, build: Box::new(move || then(build())) }
    }

    /// Adds `bytes` to the estimate.
    #[must_use]
    pub(crate) fn and_bytes(mut self, bytes: usize) -> Deferred<T> {
        self.bytes += bytes;
        self
    }
}

/// A response body and the work behind it.
pub(crate) struct Answer {
    pub(crate) body: AnswerBody,
    pub(crate) work: Work,
}

/// A body that is not computed yet.
pub(crate) trait LaterBody: Future<Output = Result<(Chunks, Work), Refusal>> + Send {}

impl<F: Future<Output = Result<(Chunks, Work), Refusal>> + Send> LaterBody for F {}

/// A response body, as far as it is computed.
pub(crate) enum AnswerBody {
    /// The whole body.
    Whole(Chunks),
    /// A body that is sent once all of it is computed. The time limit of requests does not apply to it.
    Later(Pin<Box<dyn LaterBody>>),
    /// Events that are sent as they arrive, and the record that they set at the end.
    Events(EventStream, DeferredRecord),
}

/// A value as a JSON body.
pub(crate) fn json(context: &RequestContext, value: &impl Serialize) -> Result<Chunks, Refusal> {
    let mut output = limits(context).output();
    output.json(value)?;
    output.finish()
}

fn limits(context: &RequestContext) -> OutputLimits {
    OutputLimits::new(&context.memory, context.app.settings().http.max_answer)
}

/// Builds a result and writes it as JSON.
pub(crate) async fn write<T: Serialize + 'static>(
    context: &RequestContext,
    result: Deferred<T>,
) -> Result<Answer, Refusal> {
    let Deferred { work, bytes, build } = result;
    Ok(Answer { body: AnswerBody::Whole(write_body(context, bytes, build).await?), work })
}

/// Builds a value of about `bytes` bytes and writes it as JSON.
pub(crate) async fn write_body<T: Serialize + 'static>(
    context: &RequestContext,
    bytes: usize,
    build: impl FnOnce() -> T + Send + 'static,
) -> Result<Chunks, Refusal> {
    let limits = limits(context);
    let write = move || {
        let mut output = limits.output();
        output.json(&build())?;
        output.finish()
    };
    if bytes > LARGE { context.on_text_thread(0, write).await? } else { write() }
}

/// Writes a JSON list with an item for each text, piece by piece. The texts have `bytes` each, and the list about
/// `growth` times as many: memory for it is reserved until it is built, so that of several large requests the first
/// succeed and the others are refused before any work.
pub(crate) async fn write_list<T: Serialize>(
    context: &RequestContext,
    bytes: &[usize],
    growth: usize,
    item: impl Fn(usize) -> Result<T, Refusal> + Send + Sync + 'static,
) -> Result<Answer, Refusal> {
    let _estimate = context.memory.reserve(growth * bytes.iter().sum::<usize>())?;
    let (limits, count) = (limits(context), bytes.len());
    let each = move |texts: Range<usize>| {
        let (mut output, end) = (limits.output(), texts.end);
        for at in texts {
            output.raw(if at == 0 { b"[" } else { b"," })?;
            output.json(&item(at)?)?;
        }
        if end == count {
            output.raw(b"]")?;
        }
        output.finish()
    };
    let join = |parts: Vec<Chunks>| {
        let mut body = Chunks::default();
        for part in parts {
            body.append(part);
        }
        Ok(body)
    };
    let body = context.on_text_threads(bytes, each, join).await?;
    Ok(Answer { body: AnswerBody::Whole(body), work: Work::default() })
}
