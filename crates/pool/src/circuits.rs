//! The circuits of one worker: its own, and one for each model that failed there while the worker itself answered. So a
//! model that can't be served takes no requests from the others.

use std::collections::HashMap;
use std::time::Instant;

use crate::breaker::{Breaker, BreakerOptions, Circuit, Permit};

/// The circuit breakers of one worker.
#[derive(Debug, Default)]
pub(crate) struct Circuits {
    worker: Breaker,
    /// By the name in requests. Other models have never failed.
    models: HashMap<Box<str>, Breaker>,
}

/// A request that passed the circuits of a worker and a model.
#[derive(Debug)]
pub(crate) struct Permits {
    worker: Permit,
    model: Permit,
}

/// Who is at fault if a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Worker,
    Model,
}

impl Circuits {
    /// When a request for `model` may be sent, unless it may be sent now.
    pub(crate) fn retry_at(&self, model: &str, options: &BreakerOptions, now: Instant) -> Option<Instant> {
        let open = self.of(model).filter(|breaker| !breaker.admits(options, now));
        open.map(|breaker| breaker.retry_at(options).unwrap_or(now)).max()
    }

    /// Whether neither the worker nor the model on it failed last.
    pub(crate) fn are_healthy(&self, model: &str) -> bool {
        self.of(model).all(Breaker::is_healthy)
    }

    /// The state of the worker's own circuit.
    pub(crate) fn circuit(&self, now: Instant) -> Circuit {
        self.worker.circuit(now)
    }

    /// The models whose circuits are not closed.
    pub(crate) fn models(&self, now: Instant) -> impl Iterator<Item = (&str, Circuit)> {
        let all = self.models.iter().map(move |(model, breaker)| (&**model, breaker.circuit(now)));
        all.filter(|(_, circuit)| *circuit != Circuit::Closed)
    }

    /// Takes note of a request that is sent.
    pub(crate) fn start(&mut self, model: &str, options: &BreakerOptions, now: Instant) -> Permits {
        let worker = self.worker.start(options, now);
        let model = match self.models.get_mut(model) {
            Some(breaker) => breaker.start(options, now),
            None => Breaker::default().start(options, now),
        };
        Permits { worker, model }
    }

    /// Takes note of the start of an answer.
    pub(crate) fn answered(&mut self, model: &str, permits: &Permits, now: Instant) {
        self.worker.answered(permits.worker, now);
        if let Some(breaker) = self.models.get_mut(model) {
            breaker.answered(permits.model, now);
        }
    }

    /// Takes note of the outcome of a request.
    pub(crate) fn record(
        &mut self,
        model: &str,
        permits: &Permits,
        fault: Fault,
        options: &BreakerOptions,
        now: Instant,
    ) {
        self.worker.record(permits.worker, fault != Fault::Worker, options, now);
        if fault == Fault::Model && !self.models.contains_key(model) {
            self.models.insert(model.into(), Breaker::default());
        }
        let Some(breaker) = self.models.get_mut(model) else { return };
        match fault {
            // The model could not show whether it works.
            Fault::Worker => breaker.cancel(permits.model, now),
            Fault::None | Fault::Model => breaker.record(permits.model, fault == Fault::None, options, now),
        }
    }

    /// Takes note of a request that ended without an outcome.
    pub(crate) fn cancel(&mut self, model: &str, permits: &Permits, now: Instant) {
        self.worker.cancel(permits.worker, now);
        if let Some(breaker) = self.models.get_mut(model) {
            breaker.cancel(permits.model, now);
        }
    }

    fn of(&self, model: &str) -> impl Iterator<Item = &Breaker> {
        [Some(&self.worker), self.models.get(model)].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: BreakerOptions = BreakerOptions::DEFAULT;

    fn send(circuits: &mut Circuits, model: &str, fault: Fault, now: Instant) {
        let permits = circuits.start(model, &OPTIONS, now);
        circuits.record(model, &permits, fault, &OPTIONS, now);
    }

    #[test]
    fn a_model_that_fails_takes_no_requests_from_the_others() {
        let (mut circuits, now) = (Circuits::default(), Instant::now());
        for _ in 0..OPTIONS.consecutive {
            send(&mut circuits, "b", Fault::Model, now);
        }
        assert_eq!(circuits.retry_at("b", &OPTIONS, now), Some(now + OPTIONS.backoff));
        assert_eq!(circuits.retry_at("a", &OPTIONS, now), None);
        assert!(circuits.are_healthy("a") && !circuits.are_healthy("b"));
        assert_eq!(circuits.circuit(now), Circuit::Closed);
        assert_eq!(circuits.models(now).collect::<Vec<_>>(), [("b", Circuit::Open)]);
        // A probe closes it.
        let later = now + OPTIONS.backoff;
        send(&mut circuits, "b", Fault::None, later);
        assert_eq!(circuits.retry_at("b", &OPTIONS, later), None);
        assert_eq!(circuits.models(later).count(), 0);
    }

    #[test]
    fn a_worker_that_fails_takes_all_models_with_it() {
        let (mut circuits, now) = (Circuits::default(), Instant::now());
        send(&mut circuits, "b", Fault::Model, now);
        for _ in 0..OPTIONS.consecutive {
            send(&mut circuits, "a", Fault::Worker, now);
        }
        for model in ["a", "b", "c"] {
            assert_eq!(circuits.retry_at(model, &OPTIONS, now), Some(now + OPTIONS.backoff), "{model}");
        }
        let later = now + OPTIONS.backoff;
        let probe = circuits.start("c", &OPTIONS, later);
        circuits.answered("c", &probe, later);
        assert_eq!(circuits.circuit(later), Circuit::Closed);
        // A cancelled probe of a model leaves the next one free.
        for _ in 0..OPTIONS.consecutive {
            send(&mut circuits, "b", Fault::Model, later);
        }
        let later = later + OPTIONS.max_backoff;
        let probe = circuits.start("b", &OPTIONS, later);
        assert!(circuits.retry_at("b", &OPTIONS, later).is_some(), "the probe is in flight");
        circuits.cancel("b", &probe, later);
        assert_eq!(circuits.retry_at("b", &OPTIONS, later), None);
    }
}
