//! The circuit breaker of one worker: stops requests to a worker that fails, and probes it with backoff.

use std::time::{Duration, Instant};

/// When a circuit opens, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct BreakerOptions {
    /// Consecutive failures that open the circuit.
    pub consecutive: u32,
    /// Fraction of failures in the window that opens the circuit.
    pub ratio: f64,
    /// Minimum number of outcomes in the window before the fraction counts.
    pub min_outcomes: u32,
    /// Length of the window.
    pub window: Duration,
    /// Time until the first probe.
    pub backoff: Duration,
    /// Maximum time until a probe. The time doubles with every failed probe.
    pub max_backoff: Duration,
    /// A probe without an outcome for this long is replaced by another one.
    pub probe_timeout: Duration,
    /// A circuit that was closed for this long starts over with the shortest backoff.
    pub reset_after: Duration,
}

impl BreakerOptions {
    /// The default options.
    pub const DEFAULT: BreakerOptions = BreakerOptions {
        consecutive: 5,
        ratio: 0.5,
        min_outcomes: 20,
        window: Duration::from_secs(10),
        backoff: Duration::from_millis(500),
        max_backoff: Duration::from_secs(30),
        probe_timeout: Duration::from_secs(30),
        reset_after: Duration::from_mins(1),
    };
}

impl Default for BreakerOptions {
    fn default() -> BreakerOptions {
        BreakerOptions::DEFAULT
    }
}

/// The state of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Requests pass.
    Closed,
    /// No request passes.
    Open,
    /// One request passes at a time, as a probe.
    HalfOpen,
}

/// The circuit breaker of one worker.
#[derive(Clone, Debug)]
pub struct Breaker {
    state: State,
    /// Changes with every transition. Outcomes of requests that started before it are ignored.
    epoch: u32,
    /// How often the circuit opened in a row.
    opened: u32,
    consecutive: u32,
    window: Window,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { since: Option<Instant> },
    Open { until: Instant },
    Probing { since: Instant },
}

/// A request that passed the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    epoch: u32,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker {
            state: State::Closed { since: None },
            epoch: 0,
            opened: 0,
            consecutive: 0,
            window: Window::default(),
        }
    }
}

impl Breaker {
    /// Whether a request may be sent.
    pub fn admits(&self, options: &BreakerOptions, now: Instant) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } => now >= until,
            State::Probing { since } => now >= since + options.probe_timeout,
        }
    }

    /// The state of the circuit.
    pub fn circuit(&self, now: Instant) -> Circuit {
        match self.state {
            State::Closed { .. } => Circuit::Closed,
            State::Open { until } if now < until => Circuit::Open,
            State::Open { .. } | State::Probing { .. } => Circuit::HalfOpen,
        }
    }

    /// Whether the circuit is closed and the last outcome was no failure.
    pub fn is_healthy(&self) -> bool {
        matches!(self.state, State::Closed { .. }) && self.consecutive == 0
    }

    /// When a request may be sent again, unless it may be sent now.
    pub fn retry_at(&self, options: &BreakerOptions) -> Option<Instant> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { until } => Some(until),
            State::Probing { since } => Some(since + options.probe_timeout),
        }
    }

    /// Takes note of a request that is sent. The first one after the backoff is the probe.
    pub fn start(&mut self, options: &BreakerOptions, now: Instant) -> Permit {
        if !matches!(self.state, State::Closed { .. }) && self.admits(options, now) {
            self.change(State::Probing { since: now });
            return Permit { epoch: self.epoch };
        }
        // A request beside the probe has no say.
        let counts = matches!(self.state, State::Closed { .. });
        Permit { epoch: if counts { self.epoch } else { self.epoch.wrapping_sub(1) } }
    }

    /// Takes note of the outcome of a request.
    pub fn record(&mut self, permit: Permit, success: bool, options: &BreakerOptions, now: Instant) {
        if permit.epoch != self.epoch {
            return;
        }
        match self.state {
            State::Open { .. } => {}
            State::Probing { .. } if success => self.change(State::Closed { since: Some(now) }),
            State::Probing { .. } => self.open(options, now),
            State::Closed { since } => {
                self.window.record(success, options.window, now);
                self.consecutive = if success { 0 } else { self.consecutive + 1 };
                let fails = self.consecutive >= options.consecutive
                    || !success && self.window.fails(options.ratio, options.min_outcomes);
                if fails {
                    if since.is_none_or(|since| now.duration_since(since) >= options.reset_after) {
                        self.opened = 0;
                    }
                    self.open(options, now);
                }
            }
        }
    }

    /// Takes note of the start of an answer. A probe has succeeded with it: its end may be minutes away.
    pub fn answered(&mut self, permit: Permit, now: Instant) {
        if permit.epoch == self.epoch && matches!(self.state, State::Probing { .. }) {
            self.change(State::Closed { since: Some(now) });
        }
    }

    /// Takes note of a request that ended without an outcome, such as one whose client left.
    pub fn cancel(&mut self, permit: Permit, now: Instant) {
        if permit.epoch == self.epoch && matches!(self.state, State::Probing { .. }) {
            self.change(State::Open { until: now });
        }
    }

    /// Closes the circuit and forgets all outcomes, for a worker that restarted.
    pub fn reset(&mut self) {
        *self = Breaker { epoch: self.epoch.wrapping_add(1), ..Breaker::default() };
    }

    fn open(&mut self, options: &BreakerOptions, now: Instant) {
        let doubled = options.backoff.saturating_mul(1 << self.opened.min(16));
        self.opened = self.opened.saturating_add(1);
        self.change(State::Open { until: now + doubled.min(options.max_backoff) });
    }

    fn change(&mut self, state: State) {
        self.state = state;
        self.epoch = self.epoch.wrapping_add(1);
        self.consecutive = 0;
        self.window = Window::default();
    }
}

/// Outcomes of the last one to two halves of the window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    start: Option<Instant>,
    current: Outcomes,
    previous: Outcomes,
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    all: u32,
    failed: u32,
}

impl Window {
    fn record(&mut self, success: bool, length: Duration, now: Instant) {
        let half = length / 2;
        let start = *self.start.get_or_insert(now);
        let age = now.saturating_duration_since(start);
        if age >= half {
            self.previous = if age < length { self.current } else { Outcomes::default() };
            self.current = Outcomes::default();
            self.start = Some(now);
        }
        self.current.all = self.current.all.saturating_add(1);
        self.current.failed = self.current.failed.saturating_add(u32::from(!success));
    }

    fn fails(&self, ratio: f64, min_outcomes: u32) -> bool {
        let all = self.current.all.saturating_add(self.previous.all);
        let failed = self.current.failed.saturating_add(self.previous.failed);
        all >= min_outcomes && f64::from(failed) >= ratio * f64::from(all)
    }
}

#[cfg(test)]
mod tests;
