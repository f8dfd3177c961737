//! What this machine has, seen without opening a device: the system's files, and the vendors' tools under a
//! time limit. No cargo feature is asked: a GPU that this build can't drive is listed all the same.

mod cpu;
mod linux;
mod macos;
mod memory;
mod run;

use std::thread;

use sconce_core::hardware::Hardware;

/// What this machine has. Never fails: what can't be seen is left empty, and each tool says what came of it.
pub fn detect() -> Hardware {
    let mut hardware = if cfg!(target_os = "macos") {
        macos::detect(&run::ask)
    } else {
        linux::detect(&linux::Roots::default(), &run::ask)
    };
    if hardware.os.is_empty() {
        std::env::consts::OS.clone_into(&mut hardware.os);
    }
    std::env::consts::ARCH.clone_into(&mut hardware.arch);
    hardware.cpu.cores = thread::available_parallelism().map_or(1, usize::from);
    hardware
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_and_a_system() {
        let hardware = detect();
        assert!(hardware.cpu.cores >= 1);
        assert!(hardware.os.starts_with(std::env::consts::OS), "{hardware:?}");
        assert_eq!(hardware.arch, std::env::consts::ARCH);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_memory_and_a_named_processor() {
        let hardware = detect();
        assert!(hardware.memory > 1 << 20, "{hardware:?}");
        assert!(!hardware.cpu.model.is_empty(), "{hardware:?}");
    }
}
