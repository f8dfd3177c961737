//! The time limit of a probe case: time that its threads wait for a CPU does not count.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::device::RunDelays;

/// Upper bound of the elapsed time, in multiples of the limit.
const MAX_EXTENSION: u32 = 4;

/// Waits for a result within `limit`, and longer by the run-queue delay since the start. `delays` reads the delays of the
/// process that computes the result.
pub(super) fn receive<T>(
    results: &Receiver<T>,
    limit: Duration,
    delays: impl Fn() -> RunDelays,
) -> Result<T, RecvTimeoutError> {
    let (started, earlier) = (Instant::now(), delays());
    let mut deadline = limit;
    loop {
        match results.recv_timeout(deadline.saturating_sub(started.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {
                deadline = extended(limit, delays().longest_since(&earlier));
                if started.elapsed() >= deadline {
                    return Err(RecvTimeoutError::Timeout);
                }
            }
            received => return received,
        }
    }
}

/// `limit`, extended by the run-queue `delay`.
fn extended(limit: Duration, delay: Duration) -> Duration {
    limit.saturating_add(delay).min(limit.saturating_mul(MAX_EXTENSION))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    #[test]
    fn the_limit_is_extended_by_the_run_delay_up_to_a_bound() {
        let seconds = Duration::from_secs;
        assert_eq!(extended(seconds(60), Duration::ZERO), seconds(60));
        assert_eq!(extended(seconds(60), seconds(45)), seconds(105));
        assert_eq!(extended(seconds(60), seconds(600)), seconds(240));
        assert_eq!(extended(Duration::MAX, seconds(1)), Duration::MAX);
    }

    /// Receives a result that is never sent, from a process whose one thread waits for a CPU for `share` of the time.
    fn time_of_a_hang(share: f64) -> Duration {
        let (_sender, results) = mpsc::channel::<()>();
        let started = Instant::now();
        let delays = || RunDelays::of_threads(&[("1", started.elapsed().mul_f64(share))]);
        assert_eq!(receive(&results, LIMIT, delays), Err(RecvTimeoutError::Timeout));
        started.elapsed()
    }

    #[test]
    fn a_hang_ends_at_the_limit_and_later_if_its_threads_wait() {
        let idle = time_of_a_hang(0.0);
        assert!(idle >= LIMIT, "{idle:?}");
        let half = time_of_a_hang(0.5);
        assert!(half >= LIMIT * 3 / 2, "{half:?}");
        let starved = time_of_a_hang(1.0);
        assert!(starved >= MAX_EXTENSION * LIMIT, "{starved:?}");
    }

    #[test]
    fn a_result_after_the_limit_counts_if_its_threads_waited() {
        let (sender, results) = mpsc::channel();
        let started = Instant::now();
        let late = thread::spawn(move || {
            thread::sleep(LIMIT * 3 / 2);
            // Without the extension there is no receiver.
            sender.send(7)
        });
        let delays = || RunDelays::of_threads(&[("1", started.elapsed())]);
        assert_eq!(receive(&results, LIMIT, delays), Ok(7));
        assert!(started.elapsed() > LIMIT);
        assert_eq!(late.join().expect("it sends"), Ok(()));
    }
}
