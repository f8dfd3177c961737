//! A request to forward: what is sent, and what the choice of a worker depends on.

use std::sync::Arc;

use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Method};
use hyper::body::Bytes;
use sconce_http::keys::Principal;
use sconce_http::memory_budget::{RequestMemory, Reservation};
use tokio::time::Instant;

use super::routes::Route;
use crate::choose::{Prefix, Request};
use crate::class::Pin;
use crate::size::SizeClass;

/// Bytes of text per token, for estimates.
pub(super) const BYTES_PER_TOKEN: u64 = 4;

/// What is sent, to whichever worker.
pub(super) struct Outgoing {
    pub(super) method: Method,
    pub(super) path: PathAndQuery,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) deadline: Instant,
    /// Whether workers are told the deadline.
    pub(super) sends_deadline: bool,
    /// Whether another worker would give the same answer.
    pub(super) is_repeatable: bool,
    /// Memory of the request.
    pub(super) memory: RequestMemory,
}

/// A request to forward.
pub(super) struct Job {
    pub(super) route: &'static Route,
    pub(super) model: String,
    pub(super) pin: Option<Pin>,
    /// Estimated tokens.
    pub(super) tokens: u64,
    /// The start of the prompt, if the model generates.
    pub(super) prefix: Option<Prefix>,
    pub(super) outgoing: Arc<Outgoing>,
    pub(super) principal: Principal,
    /// Memory of the body, which a retry needs.
    pub(super) _reservation: Reservation,
}

impl Job {
    /// The size class.
    pub(super) fn size(&self) -> SizeClass {
        SizeClass::of(self.tokens)
    }

    /// What the choice of a worker depends on.
    pub(super) fn choice<'a>(&'a self, exclude: &'a [&'a str]) -> Request<'a> {
        Request {
            tasks: self.route.tasks,
            pin: self.pin.as_ref(),
            exclude,
            prefix: self.prefix,
            ..Request::new(&self.model, self.tokens)
        }
    }
}
