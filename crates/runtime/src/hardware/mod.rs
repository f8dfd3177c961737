//! Detects the hardware without opening a device: from system files, and vendor tools under a time limit. Cargo features
//! play no part: a GPU that this build can't use is listed too.

mod cpu;
mod linux;
mod macos;
mod memory;
mod roots;
mod run;

use std::thread;

use sconce_core::hardware::Hardware;

/// Detects the hardware of this machine. It never fails: unknown facts are empty, and each tool reports its outcome.
pub fn detect() -> Hardware {
    let mut hardware = if cfg!(target_os = "macos") {
        macos::detect(&run::run_tool)
    } else {
        linux::detect(&roots::Roots::default(), &run::run_tool)
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
