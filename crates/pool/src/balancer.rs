//! Balances the requests of one gateway over the workers of its map.

use std::time::Instant;

use sconce_registry::{Load, MemberMap};

use crate::breaker::{BreakerOptions, Circuit};
use crate::choose::{Choice, Chooser, NoWorker, Request};
use crate::index::Index;
use crate::random::Random;
use crate::workers::Workers;

pub use crate::workers::{Outcome, Ticket};

/// The workers of one gateway, their circuits, and the requests in flight.
///
/// Call [`update`](Self::update) when the map changes. For each request call [`choose`](Self::choose),
/// [`start`](Self::start) and, whatever happens, [`finish`](Self::finish).
#[derive(Debug, Default)]
pub struct Balancer {
    workers: Workers,
    index: Index,
    options: BreakerOptions,
}

impl Balancer {
    /// A balancer without workers.
    pub fn new(options: BreakerOptions) -> Balancer {
        Balancer { options, ..Balancer::default() }
    }

    /// Takes over the members of `map`. Workers that stay keep their circuits and requests in flight.
    pub fn update(&mut self, map: &MemberMap) {
        let changes = self.workers.update(map);
        if changes.members {
            self.index = Index::build(&self.workers);
        } else if changes.rates {
            self.index.weigh(&self.workers);
        }
    }

    /// Whether any worker is ready.
    pub fn is_ready(&self) -> bool {
        self.workers.iter().any(|(_, worker)| worker.is_ready() && worker.registration.is_running())
    }

    /// Chooses a worker. Reads no clock and changes nothing.
    pub fn choose(
        &self,
        request: &Request<'_>,
        now: Instant,
        random: &mut Random,
    ) -> Result<Choice, NoWorker> {
        let Balancer { workers, index, options } = self;
        Chooser { index, workers, options, request, now }.choose(random)
    }

    /// Counts a request as in flight. `None` if the worker has left or restarted since the choice.
    pub fn start(&mut self, choice: &Choice, now: Instant) -> Option<Ticket> {
        let worker = (choice.slot, choice.incarnation);
        self.workers.start(worker, &choice.model, choice.tokens, &self.options, now)
    }

    /// Takes the outcome of a request.
    pub fn finish(&mut self, ticket: Ticket, outcome: Outcome, now: Instant) {
        self.workers.finish(&ticket, outcome, &self.options, now);
        drop(ticket);
    }

    /// Takes note that the answer to a request begins, as what was asked for.
    pub fn answered(&mut self, ticket: &Ticket, now: Instant) {
        self.workers.answered(ticket, now);
    }

    /// Takes the load that an answer reports. It replaces the load of the last heartbeat.
    pub fn observe_load(&mut self, ticket: &Ticket, load: Load) {
        self.workers.observe_load(ticket, load);
    }

    /// The circuit of a worker.
    pub fn circuit(&self, worker_id: &str, now: Instant) -> Option<Circuit> {
        Some(self.workers.by_id(worker_id)?.circuits().circuit(now))
    }

    /// The models of a worker whose own circuits are not closed.
    pub fn model_circuits(&self, worker_id: &str, now: Instant) -> Vec<(String, Circuit)> {
        let circuits =
            self.workers.by_id(worker_id).into_iter().flat_map(|worker| worker.circuits().models(now));
        circuits.map(|(model, circuit)| (model.to_owned(), circuit)).collect()
    }
}

#[cfg(test)]
mod tests;
