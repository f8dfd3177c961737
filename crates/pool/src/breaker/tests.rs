//! Tests of the breaker on a made-up clock.

use proptest::prelude::*;

use super::*;

const OPTIONS: BreakerOptions = BreakerOptions::DEFAULT;

fn send(breaker: &mut Breaker, success: bool, now: Instant) {
    let permit = breaker.start(&OPTIONS, now);
    breaker.record(permit, success, &OPTIONS, now);
}

/// A breaker that opened at `now`.
fn open(now: Instant) -> Breaker {
    let mut breaker = Breaker::default();
    (0..5).for_each(|_| send(&mut breaker, false, now));
    assert_eq!(breaker.circuit(now), Circuit::Open);
    breaker
}

#[test]
fn consecutive_failures_open_the_circuit() {
    let (mut breaker, now) = (Breaker::default(), Instant::now());
    for _ in 0..4 {
        send(&mut breaker, false, now);
    }
    send(&mut breaker, true, now);
    for _ in 0..4 {
        send(&mut breaker, false, now);
    }
    assert!(breaker.admits(&OPTIONS, now), "a success starts the count over");
    assert!(!breaker.is_healthy(), "the last one failed");
    assert_eq!(breaker.retry_at(&OPTIONS), None);
    send(&mut breaker, false, now);
    assert!(!breaker.admits(&OPTIONS, now));
    assert_eq!(breaker.retry_at(&OPTIONS), Some(now + OPTIONS.backoff));
}

#[test]
fn a_ratio_of_failures_opens_the_circuit() {
    let (mut breaker, start) = (Breaker::default(), Instant::now());
    for step in 0..19 {
        send(&mut breaker, step % 2 == 0, start + Duration::from_millis(step * 10));
        assert!(breaker.admits(&OPTIONS, start), "too few outcomes");
    }
    send(&mut breaker, false, start + Duration::from_millis(200));
    assert_eq!(breaker.circuit(start), Circuit::Open);
}

#[test]
fn old_failures_leave_the_window() {
    let (mut breaker, start) = (Breaker::default(), Instant::now());
    for step in 0..9 {
        send(&mut breaker, false, start);
        send(&mut breaker, true, start + Duration::from_millis(step));
    }
    let later = start + Duration::from_secs(20);
    for _ in 0..10 {
        send(&mut breaker, false, later);
        send(&mut breaker, true, later);
        send(&mut breaker, true, later);
    }
    assert_eq!(breaker.circuit(later), Circuit::Closed);
}

#[test]
fn one_probe_passes_at_a_time_and_backoff_doubles_up_to_its_maximum() {
    let mut now = Instant::now();
    let mut breaker = open(now);
    let mut backoff = OPTIONS.backoff;
    for _ in 0..10 {
        assert!(!breaker.admits(&OPTIONS, now + backoff.mul_f64(0.99)));
        now += backoff;
        assert!(breaker.admits(&OPTIONS, now));
        let permit = breaker.start(&OPTIONS, now);
        assert!(!breaker.admits(&OPTIONS, now), "the probe is in flight");
        breaker.record(permit, false, &OPTIONS, now);
        backoff = (backoff * 2).min(OPTIONS.max_backoff);
        assert_eq!(breaker.retry_at(&OPTIONS), Some(now + backoff));
    }
    assert_eq!(backoff, OPTIONS.max_backoff);
    now += backoff;
    assert!(!breaker.is_healthy());
    send(&mut breaker, true, now);
    assert_eq!(breaker.circuit(now), Circuit::Closed);
    assert!(breaker.is_healthy());
}

#[test]
fn a_probe_succeeds_as_soon_as_its_answer_begins() {
    let start = Instant::now();
    let mut breaker = open(start);
    let now = start + OPTIONS.backoff;
    let (probe, beside) = (breaker.start(&OPTIONS, now), breaker.start(&OPTIONS, now));
    breaker.answered(beside, now);
    assert!(!breaker.admits(&OPTIONS, now), "a request beside the probe has no say");
    breaker.answered(probe, now);
    assert_eq!(breaker.circuit(now), Circuit::Closed);
    // How it ends, minutes later, is one outcome of a closed circuit that nobody waits for.
    breaker.record(probe, false, &OPTIONS, now + OPTIONS.probe_timeout);
    assert!(breaker.is_healthy());
}

#[test]
fn a_circuit_that_opens_again_soon_keeps_its_backoff() {
    let start = Instant::now();
    let mut breaker = open(start);
    let closed = start + OPTIONS.backoff;
    send(&mut breaker, true, closed);
    (0..5).for_each(|_| send(&mut breaker, false, closed));
    assert_eq!(breaker.retry_at(&OPTIONS), Some(closed + OPTIONS.backoff * 2));
    let closed = closed + OPTIONS.backoff * 2;
    send(&mut breaker, true, closed);
    let later = closed + OPTIONS.reset_after;
    (0..5).for_each(|_| send(&mut breaker, false, later));
    assert_eq!(breaker.retry_at(&OPTIONS), Some(later + OPTIONS.backoff));
}

#[test]
fn outcomes_of_earlier_requests_are_ignored() {
    let start = Instant::now();
    let mut breaker = Breaker::default();
    let early = breaker.start(&OPTIONS, start);
    (0..5).for_each(|_| send(&mut breaker, false, start));
    breaker.record(early, true, &OPTIONS, start);
    assert_eq!(breaker.circuit(start), Circuit::Open, "a late success does not close it");
    let now = start + OPTIONS.backoff;
    let probe = breaker.start(&OPTIONS, now);
    let beside = breaker.start(&OPTIONS, now);
    breaker.record(early, false, &OPTIONS, now);
    breaker.record(beside, false, &OPTIONS, now);
    breaker.record(probe, true, &OPTIONS, now);
    assert_eq!(breaker.circuit(now), Circuit::Closed);
}

#[test]
fn a_cancelled_or_lost_probe_is_replaced() {
    let start = Instant::now();
    let mut breaker = open(start);
    let now = start + OPTIONS.backoff;
    let probe = breaker.start(&OPTIONS, now);
    breaker.cancel(probe, now);
    assert!(breaker.admits(&OPTIONS, now));
    let lost = breaker.start(&OPTIONS, now);
    assert!(!breaker.admits(&OPTIONS, now));
    let later = now + OPTIONS.probe_timeout;
    assert!(breaker.admits(&OPTIONS, later));
    let second = breaker.start(&OPTIONS, later);
    breaker.record(lost, false, &OPTIONS, later);
    breaker.record(second, true, &OPTIONS, later);
    assert_eq!(breaker.circuit(later), Circuit::Closed);
}

#[test]
fn a_reset_closes_the_circuit_and_ignores_earlier_requests() {
    let now = Instant::now();
    let mut breaker = open(now);
    breaker.reset();
    assert!(breaker.admits(&OPTIONS, now));
    let mut breaker = Breaker::default();
    let early: Vec<Permit> = (0..9).map(|_| breaker.start(&OPTIONS, now)).collect();
    breaker.reset();
    for permit in early {
        breaker.record(permit, false, &OPTIONS, now);
    }
    assert_eq!(breaker.circuit(now), Circuit::Closed);
}

proptest! {
    /// Whatever the order of events: a worker that only fails is sent at most the requests that open the circuit, and
    /// after that one probe per backoff.
    #[test]
    fn a_failing_worker_gets_few_requests(gaps in prop::collection::vec(0u64..200, 1..2000)) {
        let start = Instant::now();
        let (mut breaker, mut now, mut sent) = (Breaker::default(), start, 0u32);
        for gap in gaps {
            now += Duration::from_millis(gap);
            if breaker.admits(&OPTIONS, now) {
                send(&mut breaker, false, now);
                sent += 1;
            }
        }
        let elapsed = now.duration_since(start).as_secs_f64();
        // Probes at 0.5, 1.5, 3.5, ... 31.5 s, then every 30 s.
        let probes = (elapsed / 0.5 + 1.0).log2().min(6.0) + elapsed / 30.0;
        prop_assert!(f64::from(sent) <= 5.0 + probes, "{sent} in {elapsed} s");
    }

    /// A closed circuit opens only after failures, and an open one closes only after a successful probe.
    #[test]
    fn transitions_follow_the_outcomes(events in prop::collection::vec((0u64..2000, 0u8..4, 0usize..8), 0..400)) {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        let mut permits: Vec<Permit> = Vec::new();
        for (gap, kind, at) in events {
            now += Duration::from_millis(gap);
            let before = breaker.circuit(now);
            match kind {
                0 | 1 if breaker.admits(&OPTIONS, now) => permits.push(breaker.start(&OPTIONS, now)),
                2 | 3 if at < permits.len() => {
                    let permit = permits.swap_remove(at);
                    breaker.record(permit, kind == 2, &OPTIONS, now);
                }
                _ => {}
            }
            match (before, breaker.circuit(now)) {
                (Circuit::Closed, Circuit::Open) => prop_assert_eq!(kind, 3),
                (Circuit::HalfOpen, Circuit::Closed) => prop_assert_eq!(kind, 2),
                (Circuit::Open, after) => prop_assert_eq!(after, Circuit::Open),
                (Circuit::Closed, after) => prop_assert_eq!(after, Circuit::Closed),
                (Circuit::HalfOpen, _) => {}
            }
            prop_assert_eq!(breaker.admits(&OPTIONS, now), breaker.retry_at(&OPTIONS).is_none_or(|at| at <= now));
        }
    }
}
