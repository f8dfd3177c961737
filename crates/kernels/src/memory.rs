//! Memory that is free, given back to the system: glibc keeps it, and a model that was unloaded would seem to stay.

/// Gives free memory back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back() {
    unsafe extern "C" {
        // SAFETY: the signature is that of `malloc.h`; it locks each arena and touches free pages alone.
        safe fn malloc_trim(pad: usize) -> i32;
    }
    malloc_trim(0);
}

/// Other allocators give back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}
