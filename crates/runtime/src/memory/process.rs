//! Resident memory of processes.

use std::fs;

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// Resident set size of this process in bytes. `None` if the system does not report it.
pub fn resident() -> Option<u64> {
    resident_of(std::process::id())
}

/// Resident set size of a process in bytes.
pub(crate) fn resident_of(id: u32) -> Option<u64> {
    let (id, mut system) = (Pid::from_u32(id), System::new().ok()?);
    let memory = ProcessRefreshKind::nothing().with_memory().without_tasks();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[id]), true, memory);
    system.process(id).map(sysinfo::Process::memory).filter(|&bytes| bytes > 0)
}

/// Available main memory in bytes, of the machine and of this process's cgroup. `None` if the system does not report it.
pub fn available() -> Option<u64> {
    let mut system = System::new().ok()?;
    system.refresh_memory();
    let limit = system.cgroup_limits().map_or(u64::MAX, |limits| limits.free_memory);
    Some(system.available_memory().min(limit)).filter(|&bytes| bytes > 0)
}

/// Limits the allocator to one arena per core, so that freed memory returns to the system. It applies to the whole process
/// and to arenas created later: call it early.
pub fn limit_arenas() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    sconce_engines::limit_arenas(u16::try_from(cores).unwrap_or(u16::MAX).max(2));
}

/// Peak resident set size since the last call, in bytes. `None` if the system does not report it.
pub fn peak() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    // 5 resets the peak.
    fs::write("/proc/self/clear_refs", "5").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocated_and_released_memory_shows() {
        let before = resident().expect("this system tells");
        // Small pieces, which an allocator keeps for later.
        let pieces: Vec<Vec<u8>> = (0..40_000).map(|n| vec![n as u8; 2000]).collect();
        let between = resident().expect("this system tells");
        assert!(between > before + (60 << 20), "{before} {between}");
        drop(pieces);
        sconce_engines::release_free_memory();
        let after = resident().expect("this system tells");
        assert!(after + (40 << 20) < between, "{between} {after}");
    }
}
