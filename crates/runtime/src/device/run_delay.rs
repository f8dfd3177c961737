//! Run-queue delay of a process's threads. On a busy machine, work is slow without being hung.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Time that each thread of a process was runnable but not running. Empty on systems other than Linux, where wall
/// time alone decides.
#[derive(Default)]
pub(crate) struct RunDelays {
    by_thread: HashMap<String, Duration>,
}

impl RunDelays {
    /// Of this process.
    pub(crate) fn now() -> RunDelays {
        RunDelays::read(Path::new("/proc/self/task"))
    }

    /// Of the process `id`; empty if it has ended.
    pub(crate) fn of_process(id: u32) -> RunDelays {
        RunDelays::read(&Path::new("/proc").join(id.to_string()).join("task"))
    }

    fn read(tasks: &Path) -> RunDelays {
        let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
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
impl RunDelays {
    /// Threads with these delays.
    pub(crate) fn of_threads(threads: &[(&str, Duration)]) -> RunDelays {
        RunDelays { by_thread: threads.iter().map(|&(thread, delay)| (thread.to_owned(), delay)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_delay_of_any_thread_counts_and_new_threads_count_in_full() {
        let delays = |of: &[(&str, u64)]| {
            let threads: Vec<_> = of.iter().map(|&(thread, ns)| (thread, Duration::from_nanos(ns))).collect();
            RunDelays::of_threads(&threads)
        };
        let earlier = delays(&[("1", 500), ("2", 100), ("3", 900)]);
        assert_eq!(delays(&[("1", 600), ("2", 400)]).longest_since(&earlier), Duration::from_nanos(300));
        assert_eq!(delays(&[("1", 600), ("4", 700)]).longest_since(&earlier), Duration::from_nanos(700));
        assert_eq!(RunDelays::default().longest_since(&earlier), Duration::ZERO);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_threads_of_a_child_are_read_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("`sleep` is there");
        let id = child.id();
        let (own, alive) = (RunDelays::now(), RunDelays::of_process(id));
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert_eq!(alive.by_thread.keys().collect::<Vec<_>>(), [&id.to_string()]);
        assert!(own.by_thread.contains_key(&std::process::id().to_string()));
        assert!(RunDelays::of_process(id).by_thread.is_empty());
    }

    #[test]
    fn the_run_delay_is_the_second_number() {
        assert_eq!(run_delay("725717500 375930850 178\n"), Some(Duration::from_nanos(375_930_850)));
        assert_eq!(run_delay("725717500"), None);
    }
}
