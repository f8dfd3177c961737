//! Supervision of one worker process: when it is started, drained, killed and restarted. A pure state machine whose clock is
//! an argument.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use super::exit::Exit;

/// When a worker is restarted or killed.
#[derive(Clone, Copy, Debug)]
pub struct SupervisionOptions {
    /// Delay of the restart after the first crash. It doubles with every crash.
    pub backoff: Duration,
    /// Maximum delay of a restart.
    pub max_backoff: Duration,
    /// Crashes within `crash_window` after which a worker is degraded.
    pub max_crashes: usize,
    /// Time in which crashes are counted. A worker that runs for this long has recovered.
    pub crash_window: Duration,
    /// Delay of the first restart of a degraded worker. It doubles with every crash.
    pub degraded_backoff: Duration,
    /// Maximum delay of a restart of a degraded worker.
    pub max_degraded_backoff: Duration,
    /// Time in which a process must listen.
    pub start_timeout: Duration,
    /// Consecutive probes without an answer after which a process has hung.
    pub max_silent_probes: u32,
    /// Time in which a process must have drained and ended.
    pub drain_timeout: Duration,
}

impl Default for SupervisionOptions {
    fn default() -> SupervisionOptions {
        SupervisionOptions {
            backoff: Duration::from_millis(250),
            max_backoff: Duration::from_secs(30),
            max_crashes: 5,
            crash_window: Duration::from_mins(1),
            degraded_backoff: Duration::from_mins(1),
            max_degraded_backoff: Duration::from_mins(10),
            start_timeout: Duration::from_mins(1),
            max_silent_probes: 3,
            drain_timeout: Duration::from_secs(40),
        }
    }
}

/// Outcome of a liveness probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The worker answered.
    Answered,
    /// It did not answer in time.
    Silent,
    /// It does not listen any more, as a worker that drains.
    Refused,
}

/// What to do with the process now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start it.
    Start,
    /// Let it finish its requests and end.
    Drain,
    /// Kill it.
    Kill(KillReason),
}

/// Why a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// It does not listen in time.
    NotListening,
    /// It does not answer probes.
    Hung,
    /// It did not drain in time.
    NotDrained,
    /// The agent ends at once.
    Aborted,
}

impl fmt::Display for KillReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KillReason::NotListening => "it did not listen in time",
            KillReason::Hung => "it did not answer probes",
            KillReason::NotDrained => "it did not drain in time",
            KillReason::Aborted => "the agent ends at once",
        })
    }
}

/// What follows the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is started again after this delay.
    Restart {
        /// The delay.
        after: Duration,
    },
    /// It crashed too often. It is started again after this longer delay.
    Degraded {
        /// Crashes within the window.
        crashes: usize,
        /// The delay.
        after: Duration,
    },
    /// It is not started again: it was drained.
    Stopped,
}

/// Supervision of one worker.
#[derive(Clone, Debug)]
pub struct Supervision {
    options: SupervisionOptions,
    state: State,
    /// Whether the worker is to end.
    stopping: bool,
    /// Crashes within the window, oldest first.
    crashes: VecDeque<Instant>,
    /// Crashes since the worker last ran for a whole window.
    consecutive: u32,
    /// Crashes since the worker was degraded; 0 if it is not.
    degraded: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No process; one is started at this time.
    Waiting { until: Instant },
    /// A process that does not listen yet.
    Starting { since: Instant },
    /// A process that listens.
    Running { since: Instant, silent: u32, refused: Option<Instant> },
    /// A process that was asked to drain.
    Draining { since: Instant },
    /// A process that was killed, and has not ended yet.
    Killed,
    /// No process any more.
    Stopped,
}

impl Supervision {
    /// A worker whose process is started at `now`.
    pub fn new(options: SupervisionOptions, now: Instant) -> Supervision {
        let (state, crashes) = (State::Waiting { until: now }, VecDeque::new());
        Supervision { options, state, stopping: false, crashes, consecutive: 0, degraded: 0 }
    }

    /// Whether the worker has ended for good.
    pub fn is_stopped(&self) -> bool {
        self.state == State::Stopped
    }

    /// Whether the worker is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Whether the worker crashed too often and has not recovered since.
    pub fn is_degraded(&self) -> bool {
        self.degraded > 0
    }

    /// What is due at `now`. An action is returned once.
    pub fn poll(&mut self, now: Instant) -> Option<Action> {
        let elapsed = |since: Instant| now.saturating_duration_since(since);
        match self.state {
            State::Waiting { until } if now >= until => {
                self.state = State::Starting { since: now };
                Some(Action::Start)
            }
            State::Starting { since } if elapsed(since) >= self.options.start_timeout => {
                Some(self.kill(KillReason::NotListening))
            }
            State::Draining { since } if elapsed(since) >= self.options.drain_timeout => {
                Some(self.kill(KillReason::NotDrained))
            }
            State::Running { refused: Some(since), .. } if elapsed(since) >= self.options.drain_timeout => {
                Some(self.kill(KillReason::NotDrained))
            }
            State::Running { since, .. } if elapsed(since) >= self.options.crash_window => {
                self.recover();
                None
            }
            State::Waiting { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Draining { .. }
            | State::Killed
            | State::Stopped => None,
        }
    }

    /// Takes note that the process listens.
    pub fn listening(&mut self, now: Instant) {
        if matches!(self.state, State::Starting { .. }) {
            self.state = State::Running { since: now, silent: 0, refused: None };
        }
    }

    /// Takes the outcome of a probe.
    pub fn probed(&mut self, outcome: ProbeOutcome, now: Instant) -> Option<Action> {
        let State::Running { silent, refused, .. } = &mut self.state else { return None };
        match outcome {
            ProbeOutcome::Answered => (*silent, *refused) = (0, None),
            ProbeOutcome::Refused => {
                refused.get_or_insert(now);
            }
            ProbeOutcome::Silent => *silent += 1,
        }
        (*silent >= self.options.max_silent_probes).then(|| self.kill(KillReason::Hung))
    }

    /// Takes note that the process has ended, or could not be started.
    pub fn exited(&mut self, exit: &Exit, now: Instant) -> Next {
        let was_killed = self.state == State::Killed;
        if self.stopping || exit.is_success() && !was_killed {
            self.state = State::Stopped;
            return Next::Stopped;
        }
        if let State::Running { since, .. } = self.state
            && now.saturating_duration_since(since) >= self.options.crash_window
        {
            self.recover();
        }
        self.crashes.push_back(now);
        let window = self.options.crash_window;
        self.crashes.retain(|&crash| now.saturating_duration_since(crash) < window);
        let crashes = self.crashes.len();
        let next = if self.degraded > 0 || crashes >= self.options.max_crashes {
            let (first, max) = (self.options.degraded_backoff, self.options.max_degraded_backoff);
            let after = doubled(first, self.degraded, max);
            self.degraded = self.degraded.saturating_add(1);
            Next::Degraded { crashes, after }
        } else {
            let after = doubled(self.options.backoff, self.consecutive, self.options.max_backoff);
            Next::Restart { after }
        };
        self.consecutive = self.consecutive.saturating_add(1);
        let (Next::Restart { after } | Next::Degraded { after, .. }) = next else { return next };
        self.state = State::Waiting { until: now + after };
        next
    }

    /// Lets the worker end: a process that listens drains, and none is started again.
    pub fn stop(&mut self, now: Instant) -> Option<Action> {
        if std::mem::replace(&mut self.stopping, true) {
            return None;
        }
        match self.state {
            State::Waiting { .. } => {
                self.state = State::Stopped;
                None
            }
            State::Starting { .. } | State::Running { .. } => {
                self.state = State::Draining { since: now };
                Some(Action::Drain)
            }
            State::Draining { .. } | State::Killed | State::Stopped => None,
        }
    }

    /// Ends the worker at once.
    pub fn abort(&mut self) -> Option<Action> {
        self.stopping = true;
        match self.state {
            State::Waiting { .. } => {
                self.state = State::Stopped;
                None
            }
            State::Starting { .. } | State::Running { .. } | State::Draining { .. } => {
                Some(self.kill(KillReason::Aborted))
            }
            State::Killed | State::Stopped => None,
        }
    }

    fn kill(&mut self, reason: KillReason) -> Action {
        self.state = State::Killed;
        Action::Kill(reason)
    }

    fn recover(&mut self) {
        (self.consecutive, self.degraded) = (0, 0);
    }
}

/// `first`, doubled `times` times, at most `max`.
fn doubled(first: Duration, times: u32, max: Duration) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(max)
}

#[cfg(test)]
mod tests;
