//! Returns free heap memory to the system: glibc keeps it, which would make an unloaded model seem to stay.

/// Returns free heap memory to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn release_free_memory() {
    unsafe extern "C" {
        // SAFETY: the signature is that of `malloc.h`; it locks each arena and touches free pages alone.
        safe fn malloc_trim(pad: usize) -> i32;
    }
    malloc_trim(0);
}

/// Other allocators return memory on their own.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn release_free_memory() {}

/// Limits glibc to `count` arenas. By default it makes eight per core, and each keeps memory of finished threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn limit_arenas(count: u16) {
    const M_ARENA_MAX: i32 = -8;
    unsafe extern "C" {
        // SAFETY: the signature is that of `malloc.h`; it sets one number under the allocator's own lock.
        safe fn mallopt(parameter: i32, value: i32) -> i32;
    }
    mallopt(M_ARENA_MAX, i32::from(count));
}

/// Other allocators have no arenas.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn limit_arenas(_count: u16) {}
