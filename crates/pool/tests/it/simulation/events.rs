//! What each event of the simulation does.

use std::sync::Arc;
use std::time::Duration;

use sconce_pool::balancer::Outcome;
use sconce_pool::choose;
use sconce_pool::retry::{Failure, Operation, Progress, may_retry};
use sconce_pool::size::SizeClass;

use super::worker::Copy;
use super::world::{Event, MEAN_TOKENS, MILLISECOND, MODEL, Policy, Request, SECOND, Time, Why, World};

/// One way between gateway and worker.
const NETWORK: Time = MILLISECOND / 2;
/// Time after which an unreachable worker counts as failed.
const CONNECT_TIMEOUT: Time = SECOND;
/// Interval in which a gateway takes over its map.
const TICK: Time = 100 * MILLISECOND;
/// Time until a client sends again after a refusal.
const CLIENT_BACKOFF: Time = 100 * MILLISECOND;

impl World {
    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::Send { gateway } => self.send(gateway),
            Event::Arrive { copy, worker } => self.arrive(copy, worker),
            Event::Done { worker, boot } => self.done(worker, boot),
            Event::Failed { copy, why } => self.failed(copy, why),
            Event::Hedge { request } => self.hedge(request),
            Event::Beat { worker, boot } => self.beat(worker, boot),
            Event::Deliver { gateway, worker: at, heartbeat } => {
                let now = self.instant();
                let (gateway, worker) = (&mut self.gateways[gateway as usize], &self.workers[at as usize]);
                // While the registry is away, nothing arrives.
                if gateway.map.is_connected() {
                    let (heartbeat, registration) = *heartbeat;
                    let known = gateway.map.get(&worker.id).map(|member| member.registration.boot_id);
                    if known != Some(registration.boot_id) {
                        gateway.map.register(registration, now);
                    }
                    let load = heartbeat.load;
                    if gateway.map.heartbeat(&worker.id, heartbeat, now) {
                        gateway.is_changed = true;
                        gateway.known[at as usize] = (load.tokens, 0);
                    }
                }
            }
            Event::Tick { gateway: at } => {
                let now = self.instant();
                let gateway = &mut self.gateways[at as usize];
                let expirations = gateway.map.expirations();
                gateway.map.expire(now);
                if gateway.is_changed || gateway.map.expirations() > expirations {
                    gateway.is_changed = false;
                    gateway.balancer.update(&gateway.map);
                }
                if self.is_open() {
                    self.after(TICK, Event::Tick { gateway: at });
                }
            }
            Event::Fault => self.fault(),
            Event::Restart { worker } => {
                self.workers[worker as usize].restart();
                let boot = self.workers[worker as usize].boot;
                self.after(0, Event::Beat { worker, boot });
            }
            Event::Reconnect { gateway } => {
                let now = self.instant();
                self.gateways[gateway as usize].map.connect(now);
            }
            Event::Measure => {
                self.measure(0);
                self.latencies.clear();
            }
            Event::End => self.measure(1),
        }
    }

    fn measure(&mut self, at: usize) {
        self.measured[at] = self.workers.iter().map(|worker| worker.measured(self.now)).collect();
    }

    fn send(&mut self, gateway: u16) {
        self.next_arrival_if_open(gateway);
        if !self.is_open() {
            return;
        }
        self.counts.sent += 1;
        let tokens = MEAN_TOKENS / 2 + self.random.bits() % (MEAN_TOKENS + 1);
        let request = self.requests.len() as u32;
        self.requests.push(Request {
            gateway,
            tokens,
            sent: self.now,
            predicted: Duration::ZERO,
            attempts: 0,
            is_hedged: false,
            copies: [None, None],
            answers: 0,
        });
        self.gateways[gateway as usize].hedger.request();
        if !self.attempt(request, &[]) {
            self.counts.refused += 1;
            self.answer(request, CLIENT_BACKOFF);
        }
    }

    fn next_arrival_if_open(&mut self, gateway: u16) {
        if self.is_open() {
            self.next_arrival(gateway);
        }
    }

    /// Sends a copy of a request to a worker. Returns whether there is one.
    fn attempt(&mut self, number: u32, exclude: &[&str]) -> bool {
        let now = self.instant();
        let request = &self.requests[number as usize];
        let (gateway_at, tokens) = (request.gateway, request.tokens);
        let gateway = &mut self.gateways[gateway_at as usize];
        let (worker, ticket, predicted) = match self.setup.policy {
            Policy::Balancer => {
                let asked = choose::Request { exclude, ..choose::Request::new(MODEL, tokens) };
                let Ok(choice) = gateway.balancer.choose(&asked, now, &mut gateway.random) else {
                    return false;
                };
                let worker = choice.worker_id()[1..].parse().unwrap();
                (worker, gateway.balancer.start(&choice, now), choice.predicted)
            }
            Policy::Scan | Policy::UniformTwo => {
                let count = self.workers.len() as u32;
                let finish = |worker: &u32| {
                    let (reported, since) = gateway.known[*worker as usize];
                    (reported + since + tokens) as f64 / self.workers[*worker as usize].rate
                };
                let by_finish = |a: &u32, b: &u32| finish(a).total_cmp(&finish(b));
                let mut draw = || (gateway.random.bits() % u64::from(count)) as u32;
                let two = [draw(), draw()];
                let best = match self.setup.policy {
                    Policy::Scan => (0..count).min_by(by_finish),
                    Policy::Balancer | Policy::UniformTwo => two.into_iter().min_by(by_finish),
                };
                let best = best.unwrap();
                gateway.known[best as usize].1 += tokens;
                (best, None, Duration::ZERO)
            }
        };
        let request = &mut self.requests[number as usize];
        let at = usize::from(request.attempts > 0);
        assert!(request.copies[at].is_none(), "a copy is in flight twice");
        request.copies[at] = Some((worker, ticket));
        request.attempts += 1;
        request.predicted = predicted;
        let copy = Copy { request: number, number: at as u8 };
        let is_cut = self.is_cut(gateway_at, worker);
        if is_cut {
            self.after(CONNECT_TIMEOUT, Event::Failed { copy, why: Why::Disconnected });
        } else {
            self.after(NETWORK, Event::Arrive { copy, worker });
        }
        if at == 0 && self.setup.hedges {
            let hedger = &self.gateways[gateway_at as usize].hedger;
            if let Some(delay) = hedger.delay(SizeClass::of(tokens), predicted) {
                self.after(delay.as_nanos() as Time, Event::Hedge { request: number });
            }
        }
        true
    }

    fn is_cut(&self, gateway: u16, worker: u32) -> bool {
        self.gateways[gateway as usize].cut.is_some_and(|(cut, until)| cut == worker && self.now < until)
    }

    fn arrive(&mut self, copy: Copy, at: u32) {
        let (now, tokens) = (self.now, self.requests[copy.request as usize].tokens);
        let worker = &mut self.workers[at as usize];
        if !worker.is_alive {
            self.after(NETWORK, Event::Failed { copy, why: Why::Disconnected });
        } else if worker.fails {
            worker.requests += 1;
            self.after(MILLISECOND, Event::Failed { copy, why: Why::Refused(503, "not_ready") });
        } else {
            let is_idle = worker.queue.is_empty();
            if !worker.accept(copy, tokens, now) {
                self.after(NETWORK, Event::Failed { copy, why: Why::Refused(429, "overloaded") });
            } else if is_idle {
                self.serve_next(at);
            }
        }
    }

    /// Schedules the end of the first request in the queue.
    fn serve_next(&mut self, at: u32) {
        let worker = &self.workers[at as usize];
        let boot = worker.boot;
        if let Some(&(_, time)) = worker.queue.front() {
            self.at(time, Event::Done { worker: at, boot });
        }
    }

    fn done(&mut self, at: u32, boot: u64) {
        let now = self.now;
        let worker = &mut self.workers[at as usize];
        if worker.boot != boot || !worker.is_alive {
            return;
        }
        let Some((copy, _)) = worker.queue.pop_front() else { return };
        let load = worker.load(now);
        self.serve_next(at);
        let gateway = self.requests[copy.request as usize].gateway;
        if self.is_cut(gateway, at) {
            // The answer is lost, though the worker has computed it.
            return self.failed(copy, Why::Disconnected);
        }
        if self.setup.reports {
            self.observe(gateway, at, load);
        }
        let instant = self.instant();
        let request = &mut self.requests[copy.request as usize];
        let Some((_, ticket)) = request.copies[copy.number as usize].take() else { return };
        let gateway = &mut self.gateways[gateway as usize];
        if let Some(ticket) = ticket {
            if self.setup.reports {
                gateway.balancer.observe_load(&ticket, load);
            }
            gateway.balancer.finish(ticket, Outcome::Success, instant);
        }
        if request.answers > 0 {
            // The other copy was faster.
            return;
        }
        let elapsed = now - request.sent;
        if !request.is_hedged && request.attempts == 1 {
            let (size, elapsed) = (SizeClass::of(request.tokens), Duration::from_nanos(elapsed));
            gateway.hedger.record(size, request.predicted, elapsed);
        }
        self.latencies.push(elapsed);
        self.counts.ok += 1;
        self.answer(copy.request, NETWORK);
    }

    /// Gives the client its answer. It sends its next request after a pause.
    fn answer(&mut self, request: u32, pause: Time) {
        let request = &mut self.requests[request as usize];
        request.answers += 1;
        let gateway = request.gateway;
        if matches!(self.setup.clients, super::world::Clients::Closed { .. }) && self.is_open() {
            self.after(pause, Event::Send { gateway });
        }
    }

    fn failed(&mut self, copy: Copy, why: Why) {
        let now = self.instant();
        let failure = match why {
            Why::Disconnected => Failure::Disconnected,
            Why::Refused(status, code) => {
                Failure::Refused { status, code: Some(code), retry_after: Some(Duration::from_secs(1)) }
            }
        };
        let request = &mut self.requests[copy.request as usize];
        let Some((worker, ticket)) = request.copies[copy.number as usize].take() else { return };
        if let Some(ticket) = ticket {
            let gateway = &mut self.gateways[request.gateway as usize];
            gateway.balancer.finish(ticket, failure.outcome(), now);
        }
        if request.answers > 0 || request.copies.iter().any(Option::is_some) {
            return;
        }
        let retries = may_retry(Operation::Repeatable, Progress::None, request.attempts, &failure);
        let id = self.workers[worker as usize].id.clone();
        if retries && self.attempt(copy.request, &[&id]) {
            self.counts.retries += 1;
            return;
        }
        match why {
            Why::Refused(429, _) => self.counts.refused += 1,
            Why::Refused(..) | Why::Disconnected => self.counts.failed += 1,
        }
        self.answer(copy.request, CLIENT_BACKOFF);
    }

    fn hedge(&mut self, number: u32) {
        let request = &mut self.requests[number as usize];
        let Some((worker, _)) = &request.copies[0] else { return };
        if request.answers > 0 || request.attempts > 1 {
            return;
        }
        let id = self.workers[*worker as usize].id.clone();
        if self.gateways[request.gateway as usize].hedger.try_hedge(false) {
            request.is_hedged = true;
            self.counts.hedges += u64::from(self.attempt(number, &[&id]));
        }
    }

    fn beat(&mut self, at: u32, boot: u64) {
        let now = self.now;
        let noise = 0.95 + 0.1 * self.random.fraction();
        let worker = &mut self.workers[at as usize];
        if !worker.is_alive || worker.boot != boot || now >= self.setup.end {
            return;
        }
        let heartbeat = worker.heartbeat(noise, now);
        if now >= worker.cut_until {
            let registration = Arc::clone(&worker.registration);
            for gateway in 0..self.gateways.len() as u16 {
                let mut delay = self.gateways[gateway as usize].delay;
                if self.setup.stale && self.random.bits().is_multiple_of(20) {
                    delay += self.random.bits() % (3 * SECOND);
                }
                let heartbeat = Box::new((heartbeat.clone(), Arc::clone(&registration)));
                self.after(delay, Event::Deliver { gateway, worker: at, heartbeat });
            }
        }
        let jitter = self.random.bits() % (SECOND / 10);
        self.after(SECOND - SECOND / 20 + jitter, Event::Beat { worker: at, boot });
    }

    fn fault(&mut self) {
        let at = (self.random.bits() % self.workers.len() as u64) as u32;
        let gateway = (self.random.bits() % self.gateways.len() as u64) as u16;
        let length = SECOND + self.random.bits() % (4 * SECOND);
        let alive = self.workers.iter().filter(|worker| worker.is_alive).count();
        match self.random.bits() % 4 {
            0 | 1 if alive > 1 && self.workers[at as usize].is_alive => {
                let now = self.now;
                for (copy, _) in self.workers[at as usize].die(now) {
                    self.after(NETWORK, Event::Failed { copy, why: Why::Disconnected });
                }
                self.after(length, Event::Restart { worker: at });
            }
            2 => {
                let worker = &mut self.workers[at as usize];
                worker.cut_until = self.now + 2 * length;
                worker.is_disturbed = true;
            }
            _ if length.is_multiple_of(2) => {
                self.gateways[gateway as usize].map.disconnect();
                self.after(length, Event::Reconnect { gateway });
            }
            _ => {
                self.gateways[gateway as usize].cut = Some((at, self.now + length));
                self.workers[at as usize].is_disturbed = true;
            }
        }
        let gap = -(1.0 - self.random.fraction()).ln() / self.setup.faults;
        if self.is_open() {
            self.after((gap * SECOND as f64) as Time, Event::Fault);
        }
    }
}
