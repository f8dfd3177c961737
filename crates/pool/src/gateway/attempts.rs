//! The attempts of one request: a retry elsewhere where that is safe, and a hedge against stragglers.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sconce_http::refusal::Refusal;
use tokio::time::{Instant, sleep};

use super::attempt::{Attempt, AttemptError, send};
use super::hedging::{HedgeTimer, Race};
use super::job::Job;
use super::refusals::no_worker;
use super::state::Gateway;
use super::verdict::{Verdict, judge};
use crate::balancer::Outcome;
use crate::choose::NoWorker;

/// Maximum number of attempts, with those that did not reach a worker.
const MAX_ATTEMPTS: usize = 4;

/// Maximum time to wait while all circuits are open.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Interval of attempts meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

type Running = Pin<Box<dyn Future<Output = Attempt> + Send>>;

/// The attempts of one request.
struct Attempts<'a> {
    gateway: &'a Arc<Gateway>,
    job: &'a Job,
    running: Vec<Running>,
    /// Workers that were tried.
    tried: Vec<String>,
    /// Attempts that reached a worker.
    reached: u32,
    /// Whether the request was hedged.
    hedged: bool,
    /// The race between them.
    race: Race,
    /// The smallest `Retry-After` of busy workers.
    busy: Option<Duration>,
}

/// Sends a request to a worker, and to another one if the first fails. The error is the refusal of the last worker.
pub(super) async fn run(gateway: &Arc<Gateway>, job: &Job) -> Result<Attempt, Refusal> {
    let mut attempts = Attempts {
        gateway,
        job,
        running: Vec::new(),
        tried: Vec::new(),
        reached: 0,
        hedged: false,
        race: Race::default(),
        busy: None,
    };
    attempts.run().await
}

impl Attempts<'_> {
    async fn run(&mut self) -> Result<Attempt, Refusal> {
        let predicted = self.first().await.map_err(|reason| no_worker(&reason, &self.job.model))?;
        if !self.job.route.generates() {
            self.gateway.hedging.request();
        }
        let mut timer = self.hedge_timer(predicted);
        loop {
            let attempt = tokio::select! {
                attempt = next(&mut self.running) => attempt,
                () = elapsed(timer.as_ref()) => {
                    timer = self.hedge(timer);
                    continue;
                }
            };
            self.reached += u32::from(!matches!(attempt.answer, Err(AttemptError::Connect(_))));
            let is_last = self.running.is_empty();
            let attempts = if is_last { self.reached } else { 1 };
            let verdict = judge(&attempt, self.job.route, self.job.pin.as_ref(), attempts);
            let Verdict::Fail { code, outcome, retry } = verdict else {
                self.answered(&attempt);
                return Ok(attempt);
            };
            if let Outcome::Busy { retry_after } = outcome {
                self.busy = Some(self.busy.map_or(retry_after, |known| known.min(retry_after)));
            }
            if retry && !is_last {
                // The hedge is the retry.
                self.give_up(attempt, outcome);
                continue;
            }
            let may_retry =
                retry && self.tried.len() < MAX_ATTEMPTS && Instant::now() < self.job.outgoing.deadline;
            let started = if may_retry { self.start() } else { Err(NoWorker::NoOther) };
            match started {
                Ok(predicted) => {
                    self.gateway.metrics.retries.with_label_values(&[code.as_str()]).inc();
                    self.give_up(attempt, outcome);
                    timer = self.hedge_timer(predicted);
                }
                Err(reason) => return self.refuse(attempt, outcome, &code, &reason),
            }
        }
    }

    /// When to hedge the attempt that was started last. Generations are not hedged: both workers would generate to the
    /// end.
    fn hedge_timer(&self, predicted: Duration) -> Option<HedgeTimer> {
        if self.hedged || self.job.route.generates() {
            return None;
        }
        let delay = self.gateway.hedging.delay(self.job.size(), predicted);
        Some(HedgeTimer::new(delay, Instant::now(), self.job.outgoing.deadline))
    }

    /// Sends a hedge, if one is allowed and there is a worker for it. Otherwise returns when to try again.
    fn hedge(&mut self, timer: Option<HedgeTimer>) -> Option<HedgeTimer> {
        let (mut timer, now) = (timer?, Instant::now());
        self.hedged = self.gateway.hedging.hedge(timer.is_urgent(now), || self.start().is_ok());
        timer.retry(now);
        (!self.hedged).then_some(timer)
    }

    /// Takes note of an attempt whose answer is passed on.
    fn answered(&self, attempt: &Attempt) {
        attempt.in_flight.answered_first();
        if !self.job.route.generates() {
            self.gateway.hedging.answered(self.job.size(), attempt.choice.predicted, attempt.took);
        }
        if self.hedged {
            let is_first = self.tried.first().is_some_and(|first| first == attempt.choice.worker_id());
            let label = if is_first { "first" } else { "second" };
            self.gateway.metrics.hedges.with_label_values(&[label]).inc();
        }
    }

    /// Starts the first attempt. While all circuits are open, waits for one that admits a probe, but not for long.
    async fn first(&mut self) -> Result<Duration, NoWorker> {
        let give_up = self.job.outgoing.deadline.min(Instant::now() + MAX_WAIT);
        loop {
            match self.start() {
                Err(NoWorker::AllOpen { .. }) if Instant::now() < give_up => sleep(POLL_INTERVAL).await,
                started => return started,
            }
        }
    }

    /// Starts an attempt at a worker that was not tried. Returns the predicted time of its answer.
    fn start(&mut self) -> Result<Duration, NoWorker> {
        let exclude: Vec<&str> = self.tried.iter().map(String::as_str).collect();
        let (choice, in_flight) = self.gateway.members.start(&self.job.choice(&exclude))?;
        self.tried.push(choice.worker_id().to_owned());
        let predicted = choice.predicted;
        let outgoing = Arc::clone(&self.job.outgoing);
        let (gateway, race) = (Arc::clone(self.gateway), self.race.join());
        self.running.push(Box::pin(send(gateway, outgoing, choice, in_flight, race)));
        Ok(predicted)
    }

    /// Drops an attempt whose answer is not passed on.
    fn give_up(&self, attempt: Attempt, outcome: Outcome) {
        self.count(&attempt, outcome);
        attempt.observe_load();
        attempt.in_flight.finish(outcome);
    }

    fn count(&self, attempt: &Attempt, outcome: Outcome) {
        let label = match outcome {
            Outcome::Success | Outcome::Busy { .. } => "refused",
            Outcome::Failure | Outcome::ModelFailure => "failed",
            Outcome::Cancelled => "cancelled",
        };
        self.gateway.metrics.attempts.with_label_values(&[attempt.choice.worker_id(), label]).inc();
    }

    /// The end of a request whose last attempt is not passed on as it is.
    fn refuse(
        &self,
        attempt: Attempt,
        outcome: Outcome,
        code: &str,
        reason: &NoWorker,
    ) -> Result<Attempt, Refusal> {
        let model = &self.job.model;
        let busy = match (self.busy, reason) {
            (Some(seen), NoWorker::AllBusy { retry_after }) => Some(seen.min(*retry_after)),
            (seen, _) => seen,
        };
        let refusal = if let Some(retry_after) = busy {
            no_worker(&NoWorker::AllBusy { retry_after }, model)
        } else if code == "class_unavailable" {
            no_worker(&NoWorker::ClassUnavailable, model)
        } else if let Err(failure) = &attempt.answer {
            failure.refusal(attempt.choice.worker_id(), model, self.job.outgoing.deadline)
        } else {
            // The refusal of the worker is already in the dialect of the client. Its outcome is recorded here, because
            // the end of its body says nothing.
            return Ok(Self::settled(attempt, outcome));
        };
        self.give_up(attempt, outcome);
        Err(refusal)
    }

    /// An attempt whose outcome is recorded.
    fn settled(attempt: Attempt, outcome: Outcome) -> Attempt {
        let in_flight = attempt.in_flight.settled(outcome);
        Attempt { in_flight, ..attempt }
    }
}

/// The first attempt that ends.
async fn next(running: &mut Vec<Running>) -> Attempt {
    poll_fn(|context| {
        for at in 0..running.len() {
            if let Poll::Ready(attempt) = running[at].as_mut().poll(context) {
                drop(running.swap_remove(at));
                return Poll::Ready(attempt);
            }
        }
        Poll::Pending
    })
    .await
}

async fn elapsed(timer: Option<&HedgeTimer>) {
    match timer {
        Some(timer) => timer.elapsed().await,
        None => std::future::pending().await,
    }
}
