//! Run-queue delay of this process's threads. On a busy machine, work is slow without being hung.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// Time that each thread of this process was runnable but not running. Empty on systems other than Linux, where wall
/// time alone decides.
#[derive(Default)]
pub(crate) struct RunDelays {
    by_thread: HashMap<String, Duration>,
}

impl RunDelays {
    pub(crate) fn now() -> RunDelays {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let delay = |task: fs::DirEntry| {
            let statistics = fs::read_to_string(task.path().join("schedstat")).ok()?;
            Some((task.file_name().into_string().ok()?, run_delay(&statistics)?))
        };
        RunDelays { by_thread: tasks.filter_map(delay).collect() }
    }

    /// The largest delay of any thread since `earlier`.
    pub(crate) fn longest_since(&self, earlier: &RunDelays) -> Duration {
        let since = |(thread, delay): (&String, &Duration)| {
            delay.saturating_sub(earlier.by_thread.get(thread).copied().unwrap_or_default())
        };
        self.by_thread.iter().map(since).max().unwrap_or_default()
    }
}

/// Run-queue delay from a `schedstat` file, its second field, in nanoseconds.
fn run_delay(statistics: &str) -> Option<Duration> {
    statistics.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_delay_of_any_thread_counts_and_new_threads_count_in_full() {
        let delays = |of: &[(&str, u64)]| RunDelays {
            by_thread: of.iter().map(|&(thread, ns)| (thread.to_owned(), Duration::from_nanos(ns))).collect(),
        };
        let earlier = delays(&[("1", 500), ("2", 100), ("3", 900)]);
        assert_eq!(delays(&[("1", 600), ("2", 400)]).longest_since(&earlier), Duration::from_nanos(300));
        assert_eq!(delays(&[("1", 600), ("4", 700)]).longest_since(&earlier), Duration::from_nanos(700));
        assert_eq!(RunDelays::default().longest_since(&earlier), Duration::ZERO);
    }

    #[test]
    fn the_run_delay_is_the_second_number() {
        assert_eq!(run_delay("725717500 375930850 178\n"), Some(Duration::from_nanos(375_930_850)));
        assert_eq!(run_delay("725717500"), None);
    }
}
