//! Detection of the processor's instructions, which includes Linux's permission to use AMX tiles.

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{has_amx, has_amx_int8, has_avx_vnni, has_avx2_f16c, has_avx512_bf16, has_avx512_vnni};

/// Whether the processor has dot products of bytes.
#[cfg(target_arch = "aarch64")]
pub(crate) fn has_dot_products() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

/// False: only x86-64 has AMX.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has_amx() -> bool {
    false
}

/// False: only x86-64 has AVX-512.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has_avx512_bf16() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;
    use std::sync::OnceLock;

    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;

    /// Whether the processor has AMX bf16 tiles and Linux lets this process use them.
    pub(crate) fn has_amx() -> bool {
        static GRANTED: OnceLock<bool> = OnceLock::new();
        *GRANTED.get_or_init(|| has_avx512_bf16() && has_tiles() && request_permission())
    }

    /// The same, with tiles of bytes as well.
    pub(crate) fn has_amx_int8() -> bool {
        static DETECTED: OnceLock<bool> = OnceLock::new();
        *DETECTED.get_or_init(|| has_amx() && __cpuid_count(7, 0).edx & (1 << 25) != 0)
    }

    /// Whether the processor has AVX-512 with bf16 dot products, and permutations of bytes.
    pub(crate) fn has_avx512_bf16() -> bool {
        static DETECTED: OnceLock<bool> = OnceLock::new();
        *DETECTED.get_or_init(has_vectors)
    }

    /// Whether the processor has AVX2 with fused multiply-add and conversion of f16.
    pub(crate) fn has_avx2_f16c() -> bool {
        static DETECTED: OnceLock<bool> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        })
    }

    /// Whether the processor has dot products of bytes without AVX-512.
    pub(crate) fn has_avx_vnni() -> bool {
        static DETECTED: OnceLock<bool> = OnceLock::new();
        *DETECTED.get_or_init(|| has_avx2_f16c() && is_x86_feature_detected!("avxvnni"))
    }

    /// Whether the processor has AVX-512 with dot products of bytes.
    pub(crate) fn has_avx512_vnni() -> bool {
        static DETECTED: OnceLock<bool> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
        })
    }

    fn has_vectors() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("fma")
    }

    fn has_tiles() -> bool {
        let leaf = __cpuid_count(7, 0);
        let (bf16, tiles) = (leaf.edx & (1 << 22) != 0, leaf.edx & (1 << 24) != 0);
        cfg!(target_os = "linux") && bf16 && tiles
    }

    /// Requests the tile data state from Linux, for the whole process.
    fn request_permission() -> bool {
        let result: i64;
        // SAFETY: the system call takes two integers and touches no memory; it may change rcx and r11.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => result,
                in("rdi") REQUEST_PERMISSION,
                in("rsi") TILE_DATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack)
            );
        }
        result == 0
    }
}
