//! Tests of the supervision of a worker.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const KILLED: Exit = Exit::Signal(9);

/// A worker and its clock.
struct Fixture {
    supervision: Supervision,
    now: Instant,
}

impl Fixture {
    fn new() -> Fixture {
        let now = Instant::now();
        Fixture { supervision: Supervision::new(SupervisionOptions::default(), now), now }
    }

    /// A worker whose process listens.
    fn running() -> Fixture {
        let mut fixture = Fixture::new();
        fixture.start();
        fixture
    }

    fn pass(&mut self, time: Duration) -> Option<Action> {
        self.now += time;
        self.supervision.poll(self.now)
    }

    fn start(&mut self) {
        assert_eq!(self.pass(Duration::ZERO), Some(Action::Start));
        assert_eq!(self.pass(Duration::ZERO), None, "an action is due once");
        self.supervision.listening(self.now);
    }

    fn probe(&mut self, outcome: ProbeOutcome) -> Option<Action> {
        self.supervision.probed(outcome, self.now)
    }

    fn exit(&mut self, exit: &Exit) -> Next {
        self.supervision.exited(exit, self.now)
    }

    /// Ends the process and starts it again once it is due. Returns the delay.
    fn crash(&mut self) -> Duration {
        let next = self.exit(&KILLED);
        let (Next::Restart { after } | Next::Degraded { after, .. }) = next else { panic!("{next:?}") };
        if let Some(early) = after.checked_sub(Duration::from_millis(1)) {
            assert_eq!(self.pass(early), None, "the backoff has not passed");
        }
        self.now += Duration::from_millis(1);
        self.start();
        after
    }
}

#[test]
fn a_crash_is_followed_by_a_restart_with_exponential_backoff() {
    let mut fixture = Fixture::running();
    let delays: Vec<u128> = (0..4).map(|_| fixture.crash().as_millis()).collect();
    assert_eq!(delays, [250, 500, 1000, 2000]);
}

#[test]
fn the_fifth_crash_within_a_minute_makes_a_worker_degraded() {
    let mut fixture = Fixture::running();
    for _ in 0..4 {
        fixture.crash();
        assert!(!fixture.supervision.is_degraded());
    }
    assert_eq!(fixture.exit(&KILLED), Next::Degraded { crashes: 5, after: 60 * SECOND });
    assert!(fixture.supervision.is_degraded());
}

#[test]
fn slow_crashes_back_off_but_do_not_degrade_a_worker() {
    let mut fixture = Fixture::running();
    let mut delays = Vec::new();
    for _ in 0..12 {
        assert_eq!(fixture.pass(16 * SECOND), None);
        delays.push(fixture.crash().as_millis());
        assert!(!fixture.supervision.is_degraded());
    }
    assert_eq!(delays[6..9], [16_000, 30_000, 30_000]);
}

#[test]
fn a_degraded_worker_is_retried_ever_less_often_until_it_runs_for_a_minute() {
    let mut fixture = Fixture::running();
    for _ in 0..4 {
        fixture.crash();
    }
    let delays: Vec<u64> = (0..6).map(|_| fixture.crash().as_secs()).collect();
    assert_eq!(delays, [60, 120, 240, 480, 600, 600]);
    assert!(fixture.supervision.is_degraded(), "it runs, but not for long enough");
    fixture.pass(60 * SECOND);
    assert!(!fixture.supervision.is_degraded());
    assert_eq!(fixture.crash(), Duration::from_millis(250), "a worker that recovered starts over");
}

#[test]
fn a_worker_that_ran_for_a_minute_starts_over_with_the_shortest_backoff() {
    let mut fixture = Fixture::running();
    fixture.crash();
    fixture.crash();
    // Not even polled in between.
    fixture.now += 61 * SECOND;
    assert_eq!(fixture.exit(&KILLED), Next::Restart { after: Duration::from_millis(250) });
}

#[test]
fn three_silent_probes_in_a_row_are_a_hang() {
    use ProbeOutcome::{Answered, Silent};
    let mut fixture = Fixture::running();
    for outcome in [Silent, Silent, Answered, Silent, Silent] {
        assert_eq!(fixture.probe(outcome), None);
    }
    assert_eq!(fixture.probe(Silent), Some(Action::Kill(KillReason::Hung)));
    assert_eq!(fixture.probe(Silent), None, "it is killed once");
    assert_eq!(fixture.exit(&KILLED), Next::Restart { after: Duration::from_millis(250) });
}

#[test]
fn a_process_that_was_killed_for_a_hang_is_restarted_whatever_its_code() {
    let mut fixture = Fixture::running();
    for _ in 0..3 {
        fixture.probe(ProbeOutcome::Silent);
    }
    assert!(matches!(fixture.exit(&Exit::Code(0)), Next::Restart { .. }));
}

#[test]
fn a_process_that_never_listens_is_killed() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.pass(Duration::ZERO), Some(Action::Start));
    assert_eq!(fixture.probe(ProbeOutcome::Silent), None, "it is not probed yet");
    assert_eq!(fixture.pass(59 * SECOND), None);
    assert_eq!(fixture.pass(SECOND), Some(Action::Kill(KillReason::NotListening)));
}

#[test]
fn a_worker_that_an_operator_drains_may_take_its_time_and_is_not_restarted() {
    let mut fixture = Fixture::running();
    for _ in 0..30 {
        assert_eq!(fixture.probe(ProbeOutcome::Refused), None);
        assert_eq!(fixture.pass(SECOND), None);
    }
    assert_eq!(fixture.exit(&Exit::Code(0)), Next::Stopped);
    assert!(fixture.supervision.is_stopped());
    assert_eq!(fixture.pass(600 * SECOND), None);

    let mut fixture = Fixture::running();
    fixture.probe(ProbeOutcome::Refused);
    assert_eq!(fixture.pass(40 * SECOND), Some(Action::Kill(KillReason::NotDrained)));
}

#[test]
fn an_agent_that_stops_drains_its_worker_and_kills_it_if_it_does_not_end() {
    let mut fixture = Fixture::running();
    assert_eq!(fixture.supervision.stop(fixture.now), Some(Action::Drain));
    assert_eq!(fixture.supervision.stop(fixture.now), None);
    assert_eq!(fixture.probe(ProbeOutcome::Silent), None, "a worker that drains is not probed");
    assert_eq!(fixture.pass(39 * SECOND), None);
    assert_eq!(fixture.pass(SECOND), Some(Action::Kill(KillReason::NotDrained)));
    assert_eq!(fixture.exit(&KILLED), Next::Stopped);
}

#[test]
fn an_agent_that_stops_starts_no_worker_again() {
    let mut fixture = Fixture::running();
    fixture.exit(&KILLED);
    assert_eq!(fixture.supervision.stop(fixture.now), None);
    assert!(fixture.supervision.is_stopped());

    let mut fixture = Fixture::running();
    fixture.supervision.stop(fixture.now);
    assert_eq!(fixture.exit(&KILLED), Next::Stopped, "a worker that crashes while it drains stays away");
}

#[test]
fn a_second_signal_kills_a_worker_that_drains() {
    let mut fixture = Fixture::running();
    fixture.supervision.stop(fixture.now);
    assert_eq!(fixture.supervision.abort(), Some(Action::Kill(KillReason::Aborted)));
    assert_eq!(fixture.supervision.abort(), None);
    assert_eq!(fixture.exit(&KILLED), Next::Stopped);
}
