//! The choice of a worker for a request: two draws weighted by measured rate, of which the earlier predicted finish
//! wins. Comparing all workers instead would send the requests of all gateways to the same one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sconce_registry::Registration;

use crate::breaker::BreakerOptions;
use crate::class::Pin;
use crate::index::{Group, Index, rate};
use crate::random::{Random, fraction, mix, stable_hash};
use crate::size::SizeClass;
use crate::workers::{Unavailable, Worker, Workers};

/// Draws of unavailable workers before the available ones are listed.
const MAX_DRAWS: usize = 8;

/// The start of a prompt, which a worker may have in its prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Hash of the text, such as [`stable_hash`].
    pub hash: u64,
    /// Its tokens.
    pub tokens: u64,
}

/// What the choice depends on.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Name or alias of the model.
    pub model: &'a str,
    /// Tasks that can answer the request; empty if all can.
    pub tasks: &'a [&'a str],
    /// The class that the answer must have.
    pub pin: Option<&'a Pin>,
    /// Estimated tokens.
    pub tokens: u64,
    /// The start of the prompt, if the model generates.
    pub prefix: Option<Prefix>,
    /// Ids of workers that were tried.
    pub exclude: &'a [&'a str],
}

impl<'a> Request<'a> {
    /// A request to a model, without restrictions.
    pub fn new(model: &'a str, tokens: u64) -> Request<'a> {
        Request { model, tasks: &[], pin: None, tokens, prefix: None, exclude: &[] }
    }

    /// The size class.
    pub fn size(&self) -> SizeClass {
        SizeClass::of(self.tokens)
    }
}

/// The worker that gets a request.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Its registration.
    pub registration: Arc<Registration>,
    /// Predicted time until the answer is complete.
    pub predicted: Duration,
    /// Whether it was chosen for the prefix.
    pub by_prefix: bool,
    /// Whether the model is loaded there. If not, the worker loads it first.
    pub is_loaded: bool,
    pub(crate) model: Box<str>,
    pub(crate) tokens: u64,
    pub(crate) slot: u32,
    pub(crate) incarnation: u64,
}

impl Choice {
    /// Id of the worker.
    pub fn worker_id(&self) -> &str {
        &self.registration.worker_id
    }

    /// URL of its API.
    pub fn url(&self) -> &str {
        &self.registration.url
    }
}

/// Why no worker can get a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWorker {
    /// No worker has the model.
    #[error("no worker of the pool has this model")]
    UnknownModel,
    /// The model has another task on every worker.
    #[error("the model has another task")]
    WrongTask,
    /// No ready worker answers in the pinned class.
    #[error("no ready worker serves the model in the numerics class of the request")]
    ClassUnavailable,
    /// No worker with the model is ready.
    #[error("no worker with this model is ready")]
    NoneReady,
    /// Every circuit is open.
    #[error("every worker with this model failed recently; the next attempt is in {retry_after:?}")]
    AllOpen {
        /// Time until the first probe.
        retry_after: Duration,
    },
    /// Every worker refused a request because its queue is full.
    #[error("every worker with this model is busy; retry in {retry_after:?}")]
    AllBusy {
        /// The smallest `Retry-After`.
        retry_after: Duration,
    },
    /// Every available worker was tried.
    #[error("no other worker has this model")]
    NoOther,
}

/// The inputs of a choice.
pub(crate) struct Chooser<'a> {
    pub(crate) index: &'a Index,
    pub(crate) workers: &'a Workers,
    pub(crate) options: &'a BreakerOptions,
    pub(crate) request: &'a Request<'a>,
    pub(crate) now: Instant,
}

/// A worker that may be chosen.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    slot: u32,
    worker: &'a Worker,
    /// Predicted seconds until the answer is complete.
    finish: f64,
}

impl<'a> Chooser<'a> {
    pub(crate) fn choose(&self, random: &mut Random) -> Result<Choice, NoWorker> {
        let groups = self.index.groups(self.request.model).ok_or(NoWorker::UnknownModel)?;
        if !groups.iter().any(|group| self.has_task(group)) {
            return Err(NoWorker::WrongTask);
        }
        let loaded = self.total(groups, true);
        if loaded > 0.0 {
            let best = self.best_of_two(groups, loaded, random)?;
            if let Some(prefix) = self.request.prefix
                && let Some(preferred) = self.preferred(groups, true, prefix.hash)
            {
                let rates = &preferred.worker.heartbeat.rates;
                let saved = rate(rates, SizeClass::Large).map_or(0.0, |rate| prefix.tokens as f64 / rate);
                if preferred.finish <= best.finish + saved {
                    return Ok(self.choice(&preferred, true, true));
                }
            }
            return Ok(self.choice(&best, false, true));
        }
        if self.total(groups, false) > 0.0 {
            // All gateways choose the same worker, so that the model is loaded once.
            let hash = stable_hash(self.request.model.as_bytes());
            let preferred = self.preferred(groups, false, hash);
            let preferred = preferred.ok_or_else(|| self.why_none(groups, false))?;
            return Ok(self.choice(&preferred, false, false));
        }
        Err(if self.request.pin.is_some() { NoWorker::ClassUnavailable } else { NoWorker::NoneReady })
    }

    /// Whether a model may have the task of the request. A worker that has not read its card yet knows none.
    fn has_task(&self, group: &Group) -> bool {
        let tasks = &self.request.tasks;
        tasks.is_empty() || group.task.is_empty() || tasks.contains(&&*group.task)
    }

    /// The groups that can answer the request.
    fn suitable(&self, groups: &'a [Group], is_loaded: bool) -> impl Iterator<Item = &'a Group> {
        groups.iter().filter(move |group| {
            group.is_loaded == is_loaded
                && self.has_task(group)
                && self.request.pin.is_none_or(|pin| group.satisfies(pin))
        })
    }

    fn total(&self, groups: &'a [Group], is_loaded: bool) -> f64 {
        self.suitable(groups, is_loaded).map(|group| group.total(self.request.size())).sum()
    }

    fn best_of_two(
        &self,
        groups: &'a [Group],
        total: f64,
        random: &mut Random,
    ) -> Result<Candidate<'a>, NoWorker> {
        let first = match self.draw_available(groups, total, random) {
            Some(candidate) => candidate,
            None => [true, false]
                .into_iter()
                .find_map(|healthy| self.draw_from_list(groups, healthy, random))
                .ok_or_else(|| self.why_none(groups, true))?,
        };
        let second = self.draw_available(groups, total, random);
        Ok(second.filter(|second| second.finish < first.finish).unwrap_or(first))
    }

    /// Draws until a worker is available, but not for long. A retry is no probe: it goes to a worker that did not fail
    /// last.
    fn draw_available(&self, groups: &'a [Group], total: f64, random: &mut Random) -> Option<Candidate<'a>> {
        let is_retry = !self.request.exclude.is_empty();
        (0..MAX_DRAWS).find_map(|_| {
            let (slot, rate) = self.draw(groups, random.fraction() * total)?;
            let candidate = self.candidate(slot, rate)?;
            (!is_retry || self.is_healthy(&candidate)).then_some(candidate)
        })
    }

    /// The worker at a position of the sum of all rates.
    fn draw(&self, groups: &'a [Group], mut position: f64) -> Option<(u32, f64)> {
        let size = self.request.size();
        let mut last = None;
        for group in self.suitable(groups, true).filter(|group| group.total(size) > 0.0) {
            if position < group.total(size) {
                return group.at_sum(size, position);
            }
            position -= group.total(size);
            last = Some(group);
        }
        // Rounding may leave a position at the very end.
        last.and_then(|group| group.at_sum(size, f64::INFINITY))
    }

    /// A weighted draw from the available workers, which takes time in proportion to all workers.
    fn draw_from_list(
        &self,
        groups: &'a [Group],
        healthy: bool,
        random: &mut Random,
    ) -> Option<Candidate<'a>> {
        let (mut total, mut drawn) = (0.0, None);
        let candidates = self.candidates(groups, true);
        for (candidate, rate) in candidates.filter(|(one, _)| !healthy || self.is_healthy(one)) {
            total += rate;
            if random.fraction() * total < rate {
                drawn = Some(candidate);
            }
        }
        drawn
    }

    /// The available workers of all suitable groups, and their rates.
    fn candidates(&self, groups: &'a [Group], is_loaded: bool) -> impl Iterator<Item = (Candidate<'a>, f64)> {
        let members = self.suitable(groups, is_loaded).flat_map(|group| group.members(self.request.size()));
        members.filter_map(|(slot, rate)| Some((self.candidate(slot, rate)?, rate)))
    }

    /// The worker that a hash prefers: weighted rendezvous hashing. It stays the same at every gateway while it is
    /// available, and when other workers come and go.
    fn preferred(&self, groups: &'a [Group], is_loaded: bool, hash: u64) -> Option<Candidate<'a>> {
        let score = |candidate: &Candidate<'_>, rate: f64| {
            let draw = 1.0 - fraction(mix(hash ^ candidate.worker.hash));
            // Powers of two: a rate that fluctuates moves no prefix.
            -draw.ln() / rate.log2().round().exp2()
        };
        let scored = self.candidates(groups, is_loaded).map(|(one, rate)| (score(&one, rate), one));
        scored.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, candidate)| candidate)
    }

    /// The worker of a slot, if it may get the request.
    fn candidate(&self, slot: u32, rate: f64) -> Option<Candidate<'a>> {
        let worker = self.workers.get(slot)?;
        if self.is_excluded(worker) || self.unavailable(worker).is_some() {
            return None;
        }
        let tokens = worker.queued(rate, self.now).saturating_add(self.request.tokens);
        Some(Candidate { slot, worker, finish: tokens as f64 / rate + worker.latency() })
    }

    fn is_healthy(&self, candidate: &Candidate<'_>) -> bool {
        candidate.worker.circuits().are_healthy(self.request.model)
    }

    fn unavailable(&self, worker: &Worker) -> Option<Unavailable> {
        worker.unavailable(self.request.model, self.options, self.now)
    }

    fn is_excluded(&self, worker: &Worker) -> bool {
        self.request.exclude.contains(&worker.registration.worker_id.as_str())
    }

    /// Why no worker of the suitable groups is available.
    fn why_none(&self, groups: &'a [Group], is_loaded: bool) -> NoWorker {
        let (mut busy, mut open) = (None::<Instant>, None::<Instant>);
        let earlier = |known: Option<Instant>, at: Instant| Some(known.map_or(at, |known| known.min(at)));
        let members = self.suitable(groups, is_loaded).flat_map(|group| group.members(self.request.size()));
        for worker in members.filter_map(|(slot, _)| self.workers.get(slot)) {
            match self.unavailable(worker) {
                _ if self.is_excluded(worker) => {}
                Some(Unavailable::Busy(at)) => busy = earlier(busy, at),
                Some(Unavailable::Open(at)) => open = earlier(open, at),
                None => {}
            }
        }
        let after = |at: Instant| at.saturating_duration_since(self.now);
        match (busy, open) {
            (Some(at), _) => NoWorker::AllBusy { retry_after: after(at) },
            (None, Some(at)) => NoWorker::AllOpen { retry_after: after(at) },
            (None, None) => NoWorker::NoOther,
        }
    }

    fn choice(&self, candidate: &Candidate<'_>, by_prefix: bool, is_loaded: bool) -> Choice {
        Choice {
            registration: Arc::clone(&candidate.worker.registration),
            predicted: Duration::try_from_secs_f64(candidate.finish).unwrap_or(Duration::MAX),
            by_prefix,
            is_loaded,
            model: self.request.model.into(),
            tokens: self.request.tokens,
            slot: candidate.slot,
            incarnation: candidate.worker.incarnation,
        }
    }
}
