//! The event model: clients, gateways and workers on one made-up clock. A seed determines every event.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sconce_pool::balancer::{Balancer, Ticket};
use sconce_pool::hedge::Hedger;
use sconce_pool::random::Random;
use sconce_registry::{Heartbeat, Load, MemberMap, Registration};

use super::worker::{Copy, Worker};

/// Nanoseconds since the start.
pub(crate) type Time = u64;
pub(crate) const MILLISECOND: Time = 1_000_000;
pub(crate) const SECOND: Time = 1000 * MILLISECOND;
pub(crate) const MODEL: &str = "model";

/// Mean tokens of a request.
pub(crate) const MEAN_TOKENS: u64 = 100;

/// How a gateway chooses a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The balancer.
    Balancer,
    /// The earliest predicted finish of all workers, for comparison.
    Scan,
    /// The earlier predicted finish of two uniform draws, for comparison.
    UniformTwo,
}

/// What clients send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clients {
    /// Each client sends its next request when the last one is answered. The number keeps the queues this long.
    Closed {
        /// Seconds of queue.
        seconds: f64,
    },
    /// Requests arrive at random, whatever the answers.
    Open {
        /// Fraction of the sum of all rates.
        load: f64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// Tokens per second of each worker.
    pub(crate) rates: Vec<f64>,
    pub(crate) gateways: usize,
    pub(crate) clients: Clients,
    pub(crate) policy: Policy,
    /// Start of the measurement.
    pub(crate) warmup: Time,
    pub(crate) end: Time,
    /// Deaths and partitions per second; 0 for none.
    pub(crate) faults: f64,
    /// Whether slow requests are hedged.
    pub(crate) hedges: bool,
    /// Whether answers report the load of their worker.
    pub(crate) reports: bool,
    /// Whether some heartbeats are late, so that older ones arrive after newer ones.
    pub(crate) stale: bool,
    /// Workers that answer 503 at once.
    pub(crate) failing: Vec<usize>,
}

#[derive(Debug)]
pub(crate) enum Event {
    /// A client sends a request.
    Send { gateway: u16 },
    /// A copy of a request reaches its worker.
    Arrive { copy: Copy, worker: u32 },
    /// A worker has computed the answer to the first request of its queue.
    Done { worker: u32, boot: u64 },
    /// A gateway learns that an attempt failed.
    Failed { copy: Copy, why: Why },
    /// A slow request may be hedged.
    Hedge { request: u32 },
    /// A worker writes a heartbeat.
    Beat { worker: u32, boot: u64 },
    /// A heartbeat reaches a gateway.
    Deliver { gateway: u16, worker: u32, heartbeat: Box<(Heartbeat, Arc<Registration>)> },
    /// A gateway takes over its map.
    Tick { gateway: u16 },
    /// A fault begins.
    Fault,
    /// A worker starts again.
    Restart { worker: u32 },
    /// A gateway reaches the registry again.
    Reconnect { gateway: u16 },
    /// The measurement begins.
    Measure,
    /// Clients stop, and the measurement ends.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Disconnected,
    Refused(u16, &'static str),
}

pub(crate) struct Gateway {
    pub(crate) map: MemberMap,
    pub(crate) balancer: Balancer,
    pub(crate) hedger: Hedger,
    pub(crate) random: Random,
    /// Delay of heartbeats.
    pub(crate) delay: Time,
    pub(crate) is_changed: bool,
    /// A worker that this gateway can't reach until then.
    pub(crate) cut: Option<(u32, Time)>,
    /// For comparison policies: reported tokens, and tokens sent since, of each worker.
    pub(crate) known: Vec<(u64, u64)>,
}

/// A request of a client.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) gateway: u16,
    pub(crate) tokens: u64,
    pub(crate) sent: Time,
    pub(crate) predicted: Duration,
    pub(crate) attempts: u32,
    pub(crate) is_hedged: bool,
    /// The attempts in flight: worker and ticket.
    pub(crate) copies: [Option<(u32, Option<Ticket>)>; 2],
    /// Number of answers that the client got.
    pub(crate) answers: u32,
}

/// How requests ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) ok: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) hedges: u64,
    pub(crate) retries: u64,
}

/// Counters of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Time spent on requests.
    pub(crate) served: Time,
    /// Requests that arrived.
    pub(crate) requests: u64,
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) now: Time,
    start: Instant,
    pub(crate) random: Random,
    events: BinaryHeap<Reverse<(Time, u64)>>,
    /// Events by number; a slot is free once its event has happened.
    slots: Vec<Option<Event>>,
    free: Vec<u32>,
    numbers: u64,
    pub(crate) workers: Vec<Worker>,
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) requests: Vec<Request>,
    pub(crate) counts: Counts,
    pub(crate) latencies: Vec<Time>,
    /// Counters of each worker at the start and at the end of the measurement.
    pub(crate) measured: [Vec<Measured>; 2],
}

impl World {
    pub(crate) fn new(setup: Setup) -> World {
        let mut random = Random::seeded(setup.seed);
        let mut workers: Vec<Worker> =
            setup.rates.iter().enumerate().map(|(at, rate)| Worker::new(at, *rate)).collect();
        for at in &setup.failing {
            workers[*at].fails = true;
        }
        let gateways = (0..setup.gateways)
            .map(|_| Gateway {
                map: MemberMap::default(),
                balancer: Balancer::default(),
                hedger: Hedger::default(),
                random: Random::seeded(random.bits()),
                delay: MILLISECOND + random.bits() % (300 * MILLISECOND),
                is_changed: false,
                cut: None,
                known: vec![(0, 0); workers.len()],
            })
            .collect();
        let mut world = World {
            now: 0,
            start: Instant::now(),
            random,
            events: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            numbers: 0,
            workers,
            gateways,
            requests: Vec::new(),
            counts: Counts::default(),
            latencies: Vec::new(),
            measured: [Vec::new(), Vec::new()],
            setup,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let start = self.start;
        for at in 0..self.gateways.len() {
            self.gateways[at].map.connect(start);
            // Everything is known at first.
            for worker in 0..self.workers.len() {
                let heartbeat = self.workers[worker].heartbeat(1.0, 0);
                let gateway = &mut self.gateways[at];
                gateway.map.register(Arc::clone(&self.workers[worker].registration), start);
                gateway.map.heartbeat(&self.workers[worker].id, heartbeat, start);
            }
            let gateway = &mut self.gateways[at];
            gateway.balancer.update(&gateway.map);
            let phase = self.random.bits() % (100 * MILLISECOND);
            self.at(phase, Event::Tick { gateway: at as u16 });
        }
        for worker in 0..self.workers.len() {
            let phase = self.random.bits() % SECOND;
            self.at(phase, Event::Beat { worker: worker as u32, boot: 1 });
        }
        let capacity: f64 = self.setup.rates.iter().sum();
        match self.setup.clients {
            Clients::Closed { seconds } => {
                let clients = (capacity * seconds / MEAN_TOKENS as f64).ceil() as u64;
                for client in 0..clients {
                    // They begin one after another, as people do.
                    let gateway = (client % self.gateways.len() as u64) as u16;
                    self.at(client * (SECOND / 2) / clients, Event::Send { gateway });
                }
            }
            Clients::Open { .. } => {
                for gateway in 0..self.gateways.len() as u16 {
                    self.next_arrival(gateway);
                }
            }
        }
        if self.setup.faults > 0.0 {
            self.at(SECOND / 2, Event::Fault);
        }
        self.at(self.setup.warmup, Event::Measure);
        self.at(self.setup.end, Event::End);
    }

    /// The made-up clock.
    pub(crate) fn instant(&self) -> Instant {
        self.start + Duration::from_nanos(self.now)
    }

    /// Schedules an event.
    pub(crate) fn at(&mut self, time: Time, event: Event) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Some(event);
        // Events of one time happen in the order in which they were scheduled.
        self.numbers += 1;
        self.events.push(Reverse((time, self.numbers << 32 | u64::from(slot))));
    }

    /// Schedules an event after a delay.
    pub(crate) fn after(&mut self, delay: Time, event: Event) {
        self.at(self.now + delay, event);
    }

    pub(crate) fn next_arrival(&mut self, gateway: u16) {
        let Clients::Open { load } = self.setup.clients else { return };
        let capacity: f64 = self.setup.rates.iter().sum();
        let per_second = capacity * load / MEAN_TOKENS as f64 / self.gateways.len() as f64;
        let gap = -(1.0 - self.random.fraction()).ln() / per_second;
        self.after((gap * SECOND as f64) as Time, Event::Send { gateway });
    }

    /// Runs until every request has ended.
    pub(crate) fn run(mut self) -> World {
        while let Some(Reverse((time, key))) = self.events.pop() {
            let slot = (key & 0xffff_ffff) as u32;
            let Some(event) = self.slots[slot as usize].take() else { continue };
            self.free.push(slot);
            self.now = time;
            self.handle(event);
        }
        self
    }

    /// Whether clients still send.
    pub(crate) fn is_open(&self) -> bool {
        self.now < self.setup.end
    }

    /// The load that the comparison policies assume of a worker.
    pub(crate) fn observe(&mut self, gateway: u16, worker: u32, load: Load) {
        self.gateways[gateway as usize].known[worker as usize] = (load.tokens, 0);
    }
}
