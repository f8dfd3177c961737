//! Main memory that this process may use: the machine's memory or the cgroup limit.

use std::fs;
use std::path::Path;

use super::roots::Roots;

/// Main memory in bytes; 0 if unknown.
pub(super) fn detect(roots: &Roots) -> u64 {
    let total = fs::read_to_string(roots.proc.join("meminfo")).map_or(0, |text| parse_meminfo(&text));
    match cgroup_limit(roots) {
        Some(limit) if limit < total => limit,
        Some(_) | None => total,
    }
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn parse_meminfo(text: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_ascii_whitespace().next())
        .and_then(|count| count.parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes.saturating_mul(1024))
}

/// The lowest limit of this process's cgroup and its ancestors.
fn cgroup_limit(roots: &Roots) -> Option<u64> {
    let text = fs::read_to_string(roots.proc.join("self/cgroup")).unwrap_or_default();
    let groups = parse_cgroup(&text);
    let top = roots.sys.join("fs/cgroup");
    let unified = limits(&top, &groups.unified, "memory.max");
    let memory = limits(&top.join("memory"), &groups.memory, "memory.limit_in_bytes");
    unified.into_iter().chain(memory).min()
}

/// Limits of a cgroup and its ancestors. Without a cgroup namespace, a container sees the host's path but not its folders:
/// then only the root counts.
fn limits(top: &Path, group: &str, file: &str) -> Vec<u64> {
    Path::new(group)
        .ancestors()
        .filter_map(|part| fs::read_to_string(top.join(part).join(file)).ok())
        .filter_map(|text| parse_limit(&text))
        .collect()
}

/// A limit in bytes. `None` for `max`.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Paths of this process's cgroups, relative to the mount point.
#[derive(Debug, Default, PartialEq)]
struct Groups {
    /// cgroup v2.
    unified: String,
    /// cgroup v1, memory controller.
    memory: String,
}

/// Parses `/proc/self/cgroup`.
fn parse_cgroup(text: &str) -> Groups {
    let mut groups = Groups::default();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        // Outside of its cgroup namespace a process gets a path with `..`: only the root is visible.
        let path = if path.split('/').any(|part| part == "..") { "" } else { path.trim_start_matches('/') };
        if number == "0" && controllers.is_empty() {
            path.clone_into(&mut groups.unified);
        } else if controllers.split(',').any(|controller| controller == "memory") {
            path.clone_into(&mut groups.memory);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::super::linux::tests::Machine;
    use super::*;

    const MEMINFO: &str = "MemTotal:       16384000 kB\nMemFree:         1000 kB\n";
    const TOTAL: u64 = 16_384_000 * 1024;

    #[test]
    fn meminfo_is_read_in_bytes_and_broken_text_is_zero() {
        assert_eq!(parse_meminfo(MEMINFO), TOTAL);
        assert_eq!(parse_meminfo("MemTotal: 18446744073709551615 kB"), u64::MAX);
        for text in ["", "MemTotal:", "MemTotal: x kB", "MemTotal: -1 kB", "MemFree: 1 kB"] {
            assert_eq!(parse_meminfo(text), 0, "{text}");
        }
    }

    #[test]
    fn both_versions_of_control_groups_are_found() {
        let text = "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/user.slice/app:1\n\nnonsense\n";
        let groups = Groups { unified: "user.slice/app:1".into(), memory: "docker/abc".into() };
        assert_eq!(parse_cgroup(text), groups);
        assert_eq!(parse_cgroup("0::/../../outside"), Groups::default());
    }

    #[test]
    fn the_lowest_limit_up_the_tree_counts() {
        let machine = Machine::with(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        assert_eq!(detect(&machine.roots()), 1 << 30);
    }

    #[test]
    fn the_first_version_of_control_groups_is_respected() {
        let machine = Machine::with(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "4:memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
        ]);
        assert_eq!(detect(&machine.roots()), 2 << 30);
    }

    #[test]
    fn no_limit_or_a_higher_one_leaves_what_the_machine_has() {
        for limit in ["max", "9223372036854771712", "", "-1"] {
            let machine = Machine::with(&[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/memory.max", limit),
            ]);
            assert_eq!(detect(&machine.roots()), TOTAL, "{limit}");
        }
    }

    #[test]
    fn a_machine_without_these_files_has_no_known_memory() {
        assert_eq!(detect(&Machine::with(&[]).roots()), 0);
    }
}
