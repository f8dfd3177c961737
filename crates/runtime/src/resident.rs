//! How much memory this process has, as the system tells it.

use std::fs;
use std::process::Command;

use crate::runtime::Runtime;

/// Bytes of main memory that this process has now; none where the system does not tell.
pub fn resident() -> Option<u64> {
    resident_of(std::process::id())
}

/// Bytes of main memory that the process of this id has now.
pub(crate) fn resident_of(id: u32) -> Option<u64> {
    if let Ok(text) = fs::read_to_string(format!("/proc/{id}/status")) {
        return kilobytes(&text, "VmRSS:");
    }
    let told = Command::new("ps").args(["-o", "rss=", "-p", &id.to_string()]).output().ok()?;
    let kilobytes: u64 = String::from_utf8(told.stdout).ok()?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Has the allocator keep one arena for each core, so that memory that is freed leaves the process. It holds for the
/// whole process, and for arenas that are yet to be made: call it early.
pub fn limit_arenas() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    sconce_engines::limit_arenas(u16::try_from(cores).unwrap_or(u16::MAX).max(2));
}

/// The most that it had since this was last asked; none where the system does not keep it.
pub fn peak() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    // The system forgets the most when told this number.
    fs::write("/proc/self/clear_refs", "5").ok()?;
    kilobytes(&text, "VmHWM:")
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let count: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(count * 1024)
}

impl Runtime {
    /// Bytes of main memory that the children have which prove placements for this runtime now.
    pub fn prover_resident(&self) -> u64 {
        self.inner.prover.resident()
    }

    /// Waits until what was dropped is unloaded, and gives what is free back to the system.
    pub fn release_free_memory(&self) {
        self.inner.executors.settle();
        sconce_engines::release_free_memory();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_shows_and_what_is_given_back_does_too() {
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
