//! Asks workers what a load would take.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::fit::Offer;
use super::worker_api::WorkerApi;
use crate::class::NumericsClass;

/// Workers that are asked at the same time.
const CONCURRENCY: usize = 64;

/// A question to a worker.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) worker: String,
    pub(super) url: String,
    /// What the worker runs.
    pub(super) version: u64,
    pub(super) model: String,
    pub(super) source: String,
    /// Bytes of loads that have begun there.
    pub(super) reserved: u64,
    /// The class that the model had there, if known.
    pub(super) class: Option<NumericsClass>,
}

/// Asks all questions. The error is the reason why a worker makes no offer.
pub(super) async fn ask(
    api: &Arc<WorkerApi>,
    questions: Vec<Question>,
) -> Vec<(Question, Result<Offer, String>)> {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let mut asked = JoinSet::new();
    for question in questions {
        let (api, permits) = (Arc::clone(api), Arc::clone(&permits));
        asked.spawn(async move {
            let _permit = permits.acquire().await;
            let fit = api.fit(&question.url, &question.source).await;
            let Question { worker, model, reserved, class, .. } = question.clone();
            (question, fit.map(|fit| fit.offer(&worker, &model, reserved, class)))
        });
    }
    asked.join_all().await
}
