//! Memory that is free, given back to the system: glibc keeps it, and a model that was unloaded would seem to stay.

/// Gives free memory back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn release_free_memory() {
    unsafe extern "C" {
        // SAFETY: the signature is that of `malloc.h`; it locks each arena and touches free pages alone.
        safe fn malloc_trim(pad: usize) -> i32;
    }
    malloc_trim(0);
}

/// Other allocators give back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn release_free_memory() {}

/// Limits glibc to `count` arenas. By default it makes eight for each core, and each keeps memory of threads that are
/// gone, so that the size of a process says little about the models that it holds.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn limit_arenas(count: u16) {
    const M_ARENA_MAX: i32 = -8;
    unsafe extern "C" {
        // SAFETY: the signature is that of `malloc.h`; it sets one number under the allocator's own lock.
        safe fn mallopt(parameter: i32, value: i32) -> i32;
    }
    mallopt(M_ARENA_MAX, i32::from(count));
}

/// Other allocators have no such limit.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn limit_arenas(_count: u16) {}
