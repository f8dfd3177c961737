//! A simulated worker: one queue, served in order at a constant rate.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sconce_registry::{
    BootId, Heartbeat, Load, ModelRecord, PlacementRecord, Rates, Registration, WorkerState,
};

use super::world::{MODEL, Measured, SECOND, Time};

/// A worker refuses requests above this queue time.
const MAX_QUEUE: Time = 10 * SECOND;

/// A copy of a request that a worker has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) request: u32,
    /// 0 for the first, 1 for a retry or a hedge.
    pub(crate) number: u8,
}

pub(crate) struct Worker {
    pub(crate) id: String,
    /// Tokens per second.
    pub(crate) rate: f64,
    pub(crate) is_alive: bool,
    /// Answers every request with 503 at once.
    pub(crate) fails: bool,
    /// No heartbeat reaches the registry until then.
    pub(crate) cut_until: Time,
    /// Number of starts.
    pub(crate) boot: u64,
    pub(crate) registration: Arc<Registration>,
    sequence: u64,
    /// Requests with the time at which each is done.
    pub(crate) queue: VecDeque<(Copy, Time)>,
    busy_until: Time,
    /// Time that all accepted requests take.
    accepted: Time,
    /// Whether a fault befell it.
    pub(crate) is_disturbed: bool,
    /// Requests that arrived.
    pub(crate) requests: u64,
}

impl Worker {
    pub(crate) fn new(at: usize, rate: f64) -> Worker {
        let id = format!("w{at:04}");
        Worker {
            registration: registration(&id, 1),
            id,
            rate,
            is_alive: true,
            fails: false,
            cut_until: 0,
            boot: 1,
            sequence: 0,
            queue: VecDeque::new(),
            busy_until: 0,
            accepted: 0,
            is_disturbed: false,
            requests: 0,
        }
    }

    /// Takes a request. Returns whether there was space in the queue.
    pub(crate) fn accept(&mut self, copy: Copy, tokens: u64, now: Time) -> bool {
        self.requests += 1;
        let start = self.busy_until.max(now);
        if start - now > MAX_QUEUE {
            return false;
        }
        let duration = (tokens as f64 / self.rate * SECOND as f64) as Time;
        self.busy_until = start + duration;
        self.accepted += duration;
        self.queue.push_back((copy, self.busy_until));
        true
    }

    /// Time spent on requests until now.
    fn served(&self, now: Time) -> Time {
        self.accepted - self.busy_until.saturating_sub(now)
    }

    /// What is measured at the start and at the end.
    pub(crate) fn measured(&self, now: Time) -> Measured {
        Measured { served: self.served(now), requests: self.requests }
    }

    pub(crate) fn load(&self, now: Time) -> Load {
        let seconds = self.busy_until.saturating_sub(now) as f64 / SECOND as f64;
        Load { requests: self.queue.len() as u32, tokens: (seconds * self.rate) as u64, latency: 0.002 }
    }

    pub(crate) fn heartbeat(&mut self, noise: f64, now: Time) -> Heartbeat {
        self.sequence += 1;
        let rate = (self.rate * noise) as f32;
        let load = if self.fails { Load::default() } else { self.load(now) };
        Heartbeat {
            boot_id: self.registration.boot_id,
            sequence: self.sequence,
            state: WorkerState::Ready,
            load,
            rates: Rates { small: rate, medium: rate, large: rate },
            free_memory: BTreeMap::new(),
        }
    }

    /// Ends the process. Returns the requests that it had.
    pub(crate) fn die(&mut self, now: Time) -> VecDeque<(Copy, Time)> {
        self.is_alive = false;
        self.is_disturbed = true;
        self.accepted = self.served(now);
        self.busy_until = now;
        std::mem::take(&mut self.queue)
    }

    pub(crate) fn restart(&mut self) {
        self.is_alive = true;
        self.boot += 1;
        self.sequence = 0;
        self.registration = registration(&self.id, self.boot);
    }
}

fn registration(id: &str, boot: u64) -> Arc<Registration> {
    let placement = PlacementRecord {
        placement: "native/cpu/f32".to_owned(),
        active: true,
        class: None,
        band: None,
        obstacle: None,
    };
    let model = ModelRecord {
        model: MODEL.to_owned(),
        aliases: Vec::new(),
        task: "embed".to_owned(),
        max_length: 512,
        managed: false,
        placements: vec![placement],
    };
    Arc::new(Registration {
        worker_id: id.to_owned(),
        boot_id: BootId::at(boot),
        url: String::new(),
        version: String::new(),
        ttl_ms: 3000,
        models: vec![model],
        failure: None,
    })
}
