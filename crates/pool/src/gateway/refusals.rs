//! What clients are told when no worker can get their request.

use sconce_http::refusal::{Kind, Refusal};

use crate::choose::NoWorker;

/// The refusal of a request that no worker can get.
pub(super) fn no_worker(reason: &NoWorker, model: &str) -> Refusal {
    let (kind, seconds) = match reason {
        NoWorker::UnknownModel => (Kind::UnknownModel, 1.0),
        NoWorker::WrongTask => (Kind::WrongTask, 1.0),
        NoWorker::ClassUnavailable => (Kind::ClassUnavailable, 1.0),
        NoWorker::NoneReady | NoWorker::NoOther => (Kind::NotReady, 1.0),
        NoWorker::AllOpen { retry_after } => (Kind::WorkerFailed, retry_after.as_secs_f64()),
        NoWorker::AllBusy { retry_after } => (Kind::Overloaded, retry_after.as_secs_f64()),
    };
    Refusal::new(kind, format!("{reason}: `{model}`")).retry_after(seconds).for_model(model)
}
