//! Resident memory of processes.

use std::fs;
use std::process::Command;

/// Resident set size of this process in bytes. `None` if the system does not report it.
pub fn resident() -> Option<u64> {
    resident_of(std::process::id())
}

/// Resident set size of a process in bytes.
pub(crate) fn resident_of(id: u32) -> Option<u64> {
    if let Ok(text) = fs::read_to_string(format!("/proc/{id}/status")) {
        return kilobytes(&text, "VmRSS:");
    }
    let output = Command::new("ps").args(["-o", "rss=", "-p", &id.to_string()]).output().ok()?;
    let kilobytes: u64 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
    Some(kilobytes * 1024)
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
    kilobytes(&text, "VmHWM:")
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let count: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(count * 1024)
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
