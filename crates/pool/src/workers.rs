//! The workers as one gateway knows them: the last report of each, and what the gateway has sent since.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sconce_registry::{Heartbeat, Load, Member, MemberMap, Registration, WorkerState};

use crate::breaker::BreakerOptions;
use crate::circuits::{Circuits, Fault, Permits};
use crate::random::stable_hash;

/// A busy worker gets no request for at most this long. Its `Retry-After` is in whole seconds, in which its queue may
/// run empty.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// A worker of the map.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) registration: Arc<Registration>,
    pub(crate) heartbeat: Arc<Heartbeat>,
    /// Hash of its id, the same at every gateway.
    pub(crate) hash: u64,
    /// Distinguishes it from earlier workers of the same slot.
    pub(crate) incarnation: u64,
    /// The last reported load: of a heartbeat or of an answer.
    load: Load,
    /// When it arrived.
    reported: Instant,
    /// Number of the last report.
    report: u64,
    /// Tokens sent since the last report, without those that are done.
    since_report: u64,
    /// Tokens sent, without those that are done.
    in_flight: u64,
    circuits: Circuits,
    busy: Option<Busy>,
    /// The last update that listed it.
    listed: u64,
}

/// A worker that refused a request because its queue is full.
#[derive(Clone, Copy, Debug)]
struct Busy {
    /// When it gets requests again.
    until: Instant,
    /// When a client should retry.
    retry_at: Instant,
}

/// Why a worker gets no request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// Its circuit, or that of the model, is open until this time.
    Open(Instant),
    /// Its queue is full; clients may retry at this time.
    Busy(Instant),
}

/// How a request ended, for the choice of later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The worker answered, if only to reject an invalid request.
    Success,
    /// The worker is at fault.
    Failure,
    /// The worker answered that it can't serve the model now.
    ModelFailure,
    /// The worker's queue is full.
    Busy {
        /// Its `Retry-After`.
        retry_after: Duration,
    },
    /// The client left, or another worker was faster.
    Cancelled,
}

/// A request in flight.
#[derive(Debug)]
#[must_use = "a request in flight counts as load until it is finished"]
pub struct Ticket {
    pub(crate) slot: u32,
    pub(crate) incarnation: u64,
    model: Box<str>,
    tokens: u64,
    report: u64,
    permits: Permits,
}

impl Worker {
    /// Whether its state allows requests.
    pub(crate) fn is_ready(&self) -> bool {
        is_ready(&self.heartbeat)
    }

    /// Tokens that a new request waits for. The reported ones are served at `rate` tokens per second since the report;
    /// without that, all gateways avoid a worker that had a long queue until it reports again, and it runs idle.
    pub(crate) fn queued(&self, rate: f64, now: Instant) -> u64 {
        let served = rate * now.saturating_duration_since(self.reported).as_secs_f64();
        let reported = self.load.tokens.saturating_sub(served as u64);
        reported.saturating_add(self.since_report).max(self.in_flight)
    }

    /// Latency of one short request in seconds, without waiting.
    pub(crate) fn latency(&self) -> f64 {
        let latency = f64::from(self.load.latency);
        if latency.is_finite() { latency.max(0.0) } else { 0.0 }
    }

    /// Why it gets no request for `model` now, if it gets none.
    pub(crate) fn unavailable(
        &self,
        model: &str,
        options: &BreakerOptions,
        now: Instant,
    ) -> Option<Unavailable> {
        if let Some(until) = self.circuits.retry_at(model, options, now) {
            return Some(Unavailable::Open(until));
        }
        self.busy.filter(|busy| now < busy.until).map(|busy| Unavailable::Busy(busy.retry_at))
    }

    pub(crate) fn circuits(&self) -> &Circuits {
        &self.circuits
    }

    /// Takes over a record of the same boot.
    fn refresh(&mut self, member: Member<'_>, changes: &mut Changes) {
        if !Arc::ptr_eq(&self.registration, member.registration) {
            changes.members = true;
            self.registration = Arc::clone(member.registration);
        }
        if !Arc::ptr_eq(&self.heartbeat, member.heartbeat) {
            if self.is_ready() != is_ready(member.heartbeat) {
                changes.members = true;
                // The refusal of a paused worker does not outlive the pause.
                self.busy = None;
            }
            changes.rates |= self.heartbeat.rates != member.heartbeat.rates;
            self.heartbeat = Arc::clone(member.heartbeat);
            self.report(member.heartbeat.load, member.received);
        }
    }

    fn report(&mut self, load: Load, now: Instant) {
        self.load = load;
        self.reported = now;
        self.report += 1;
        self.since_report = 0;
    }
}

fn is_ready(heartbeat: &Heartbeat) -> bool {
    matches!(heartbeat.state, WorkerState::Ready | WorkerState::Degraded)
}

/// What an update changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changes {
    /// Members, their registrations, or whether they are ready.
    pub(crate) members: bool,
    /// Measured rates.
    pub(crate) rates: bool,
}

/// The workers by slot. A worker keeps its slot as long as it is a member.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    slots: Vec<Option<Worker>>,
    free: Vec<u32>,
    by_id: HashMap<Box<str>, u32>,
    updates: u64,
    incarnations: u64,
    /// The time of the last request that started or finished.
    last: Option<Instant>,
}

impl Workers {
    pub(crate) fn get(&self, slot: u32) -> Option<&Worker> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(crate) fn by_id(&self, worker_id: &str) -> Option<&Worker> {
        self.get(*self.by_id.get(worker_id)?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Worker)> {
        self.slots.iter().enumerate().filter_map(|(slot, worker)| Some((slot as u32, worker.as_ref()?)))
    }

    /// Takes over the members of `map`.
    pub(crate) fn update(&mut self, map: &MemberMap) -> Changes {
        self.updates += 1;
        let mut changes = Changes::default();
        for member in map.iter() {
            let slot = self.by_id.get(member.registration.worker_id.as_str()).copied();
            let known = slot.and_then(|slot| self.slots[slot as usize].as_mut());
            // A worker that restarted is a new one: its requests in flight ended with the process.
            if let Some(worker) =
                known.filter(|known| known.registration.boot_id == member.registration.boot_id)
            {
                worker.listed = self.updates;
                worker.refresh(member, &mut changes);
            } else {
                changes.members = true;
                self.insert(member, slot);
            }
        }
        if self.by_id.len() > map.len() {
            changes.members = true;
            self.remove_unlisted();
        }
        changes
    }

    fn insert(&mut self, member: Member<'_>, slot: Option<u32>) {
        self.incarnations += 1;
        let id = member.registration.worker_id.as_str();
        let worker = Worker {
            registration: Arc::clone(member.registration),
            heartbeat: Arc::clone(member.heartbeat),
            hash: stable_hash(id.as_bytes()),
            incarnation: self.incarnations,
            load: member.heartbeat.load,
            reported: member.received,
            report: 0,
            since_report: 0,
            in_flight: 0,
            circuits: Circuits::default(),
            busy: None,
            listed: self.updates,
        };
        let slot = slot.or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Some(worker);
        self.by_id.insert(id.into(), slot);
    }

    fn remove_unlisted(&mut self) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let Some(worker) = slot.take_if(|worker| worker.listed != self.updates) {
                self.by_id.remove(worker.registration.worker_id.as_str());
                self.free.push(at as u32);
            }
        }
    }

    /// Counts a request as in flight. `None` if the worker is gone.
    pub(crate) fn start(
        &mut self,
        (slot, incarnation): (u32, u64),
        model: &str,
        tokens: u64,
        options: &BreakerOptions,
        now: Instant,
    ) -> Option<Ticket> {
        self.last = Some(now);
        let worker = self.of_incarnation(slot, incarnation)?;
        worker.in_flight = worker.in_flight.saturating_add(tokens);
        worker.since_report = worker.since_report.saturating_add(tokens);
        let (report, permits) = (worker.report, worker.circuits.start(model, options, now));
        Some(Ticket { slot, incarnation, model: model.into(), tokens, report, permits })
    }

    pub(crate) fn finish(
        &mut self,
        ticket: &Ticket,
        outcome: Outcome,
        options: &BreakerOptions,
        now: Instant,
    ) {
        let Some(worker) = self.of_incarnation(ticket.slot, ticket.incarnation) else { return };
        worker.in_flight = worker.in_flight.saturating_sub(ticket.tokens);
        if worker.report == ticket.report {
            worker.since_report = worker.since_report.saturating_sub(ticket.tokens);
        }
        let fault = match outcome {
            // A busy worker answered, so the probe of a half-open circuit succeeded.
            Outcome::Success | Outcome::Busy { .. } => Fault::None,
            Outcome::Failure => Fault::Worker,
            Outcome::ModelFailure => Fault::Model,
            Outcome::Cancelled => return worker.circuits.cancel(&ticket.model, &ticket.permits, now),
        };
        worker.circuits.record(&ticket.model, &ticket.permits, fault, options, now);
        if let Outcome::Busy { retry_after } = outcome {
            worker.busy =
                Some(Busy { until: now + retry_after.min(BUSY_PAUSE), retry_at: now + retry_after });
        }
    }

    /// Takes note that an answer begins.
    pub(crate) fn answered(&mut self, ticket: &Ticket, now: Instant) {
        if let Some(worker) = self.of_incarnation(ticket.slot, ticket.incarnation) {
            worker.circuits.answered(&ticket.model, &ticket.permits, now);
        }
    }

    /// Takes the load that an answer reports.
    pub(crate) fn observe_load(&mut self, ticket: &Ticket, load: Load) {
        let last = self.last;
        if let Some(worker) = self.of_incarnation(ticket.slot, ticket.incarnation) {
            worker.report(load, last.unwrap_or(worker.reported));
        }
    }

    fn of_incarnation(&mut self, slot: u32, incarnation: u64) -> Option<&mut Worker> {
        let worker = self.slots.get_mut(slot as usize)?.as_mut()?;
        (worker.incarnation == incarnation).then_some(worker)
    }
}
