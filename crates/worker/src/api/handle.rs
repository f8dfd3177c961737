//! The way of a request through any route: body to fields, operation, response with headers, metrics and records.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use sconce_http::keys::Principal;
use sconce_http::refusal::{Dialect, Kind, Refusal};
use sconce_http::{body, deadline};
use serde::de::DeserializeOwned;

use crate::api::fields::parse;
use crate::api::headers::write_headers;
use crate::operations::context::{ModelChoice, RequestContext};
use crate::operations::response::{Answer, AnswerBody};
use crate::state::app::App;

/// Bodies above this many bytes are parsed on a text thread.
const LARGE: usize = 64 << 10;

/// Reads a body as `T`, answers it by `operation`, and writes the response.
pub(crate) async fn handle<T, O>(
    app: Arc<App>,
    dialect: Dialect,
    method: &'static str,
    request: Request,
    operation: impl FnOnce(RequestContext, T) -> O,
) -> Response
where
    T: DeserializeOwned + Send + 'static,
    O: Future<Output = Result<Answer, Refusal>>,
{
    let (start, in_flight) = (Instant::now(), app.requests.begin());
    app.metrics.requests.with_label_values(&[method]).inc();
    let (parts, body) = request.into_parts();
    let settings = app.settings();
    let resolved: Arc<OnceLock<String>> = Arc::default();
    let answering = async {
        let principal = parts.extensions.get::<Principal>().copied().unwrap_or_default();
        let choice = ModelChoice::of(&parts.headers, &parts.extensions);
        let mut context = RequestContext::new(&app, &parts.headers, choice, principal, &resolved)?;
        if let Err(refusal) = context.shed() {
            return Err(if body::drain(&parts.headers, body).await { refusal } else { refusal.closing() });
        }
        let (bytes, reservation) = body::read(&settings.http, &context.memory, &parts.headers, body).await?;
        context.hold(reservation);
        let strict = settings.strict;
        let (parsed, unread) = if bytes.len() > LARGE {
            context.on_text_thread(bytes.len(), move || parse::<T>(&bytes, strict)).await??
        } else {
            parse::<T>(&bytes, strict)?
        };
        Ok((operation(context, parsed).await?, unread))
    };
    let limit = settings.http.time_limit;
    let timed_out =
        |limit: Duration| Refusal::new(Kind::TimedOut, format!("no answer within {} s", limit.as_secs_f64()));
    let deadline = match deadline::remaining(&parts.headers) {
        Ok(deadline) => deadline,
        Err(refusal) => return refusal.respond(dialect),
    };
    let limit = deadline.map_or(limit, |deadline| deadline.min(limit));
    let answered = tokio::time::timeout(limit, answering).await.unwrap_or_else(|_| Err(timed_out(limit)));
    let refused = |refusal: Refusal| match resolved.get() {
        Some(model) => refusal.for_model(model).respond(dialect),
        None => refusal.respond(dialect),
    };
    let (Answer { body, work }, unread) = match answered {
        Ok(answered) => answered,
        Err(refusal) => return refused(refusal),
    };
    let (body, work, format) = match body {
        AnswerBody::Whole(chunks) => (Body::new(chunks), work, None),
        AnswerBody::Later(body) => {
            match within(deadline.and_then(|deadline| start.checked_add(deadline)), body).await {
                Some(Ok((chunks, work))) => (Body::new(chunks), work, None),
                Some(Err(refusal)) => return refused(refusal),
                None => return refused(timed_out(deadline.unwrap_or(limit))),
            }
        }
        AnswerBody::Events(events, record) => {
            let format = events.format();
            (Body::new(events.holding(in_flight)), work, Some((format, record)))
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let mut response = Response::new(body);
    write_headers(response.headers_mut(), &work, &unread, dialect, seconds);
    if let Some((format, record)) = format {
        // The generation records itself when it ends.
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response.extensions_mut().insert(record);
    } else {
        if work.generated.is_none() {
            app.metrics.answered(method, &work.model, &work, seconds);
        }
        response.extensions_mut().insert(work.record());
    }
    response
}

/// The output of `future`; `None` if a deadline passes first.
async fn within<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        None => Some(future.await),
        Some(deadline) => tokio::time::timeout_at(deadline.into(), future).await.ok(),
    }
}
