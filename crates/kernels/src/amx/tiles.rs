//! Asking for tiles, and the five instructions that work on them.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Proof that this process may use tiles for bf16, and the 512-bit vectors that go with them.
#[derive(Clone, Copy, Debug)]
pub struct Amx(());

/// Proof that this thread's tiles are set up; it stays on the thread.
#[derive(Debug)]
pub struct Tiles(PhantomData<*const ()>);

/// What the processor is told about the eight tiles: 16 rows of 64 bytes each.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const ARCH_PRCTL: i64 = 158;
const REQUEST_PERMISSION: i64 = 0x1023;
const TILE_DATA: i64 = 18;

impl Amx {
    /// The proof, if the processor has tiles and the system lets this process use them; asked for once.
    pub fn get() -> Option<Amx> {
        static GRANTED: OnceLock<bool> = OnceLock::new();
        GRANTED.get_or_init(|| has_tiles() && permission()).then_some(Amx(()))
    }

    /// Runs `work` with this thread's tiles set up, and frees them afterwards.
    pub fn with_tiles<T>(self, work: impl FnOnce(&Tiles) -> T) -> T {
        struct Release;
        impl Drop for Release {
            fn drop(&mut self) {
                // SAFETY: an `Amx` exists only where the instruction does.
                unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
            }
        }
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        configuration.row_bytes[..8].fill(64);
        configuration.rows[..8].fill(16);
        // SAFETY: an `Amx` exists only where the instruction does; the 64 bytes read are the structure's.
        unsafe {
            asm!("ldtilecfg [{0}]", in(reg) &raw const configuration, options(nostack, readonly, preserves_flags));
        }
        let _release = Release;
        work(&Tiles(PhantomData))
    }
}

fn has_tiles() -> bool {
    let vectors = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bf16")
        && is_x86_feature_detected!("fma");
    let leaf = __cpuid_count(7, 0);
    let (bf16, tiles) = (leaf.edx & (1 << 22) != 0, leaf.edx & (1 << 24) != 0);
    cfg!(target_os = "linux") && vectors && bf16 && tiles
}

/// Asks Linux for the state that tiles need; it is granted to the whole process.
fn permission() -> bool {
    let result: i64;
    // SAFETY: the system call takes two numbers and touches no memory of ours; rcx and r11 are its to change.
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

impl Tiles {
    /// Sets the four tiles of sums to zero.
    #[inline(always)]
    pub(super) fn zero(&self) {
        // SAFETY: `Tiles` exists only on a thread whose tiles are set up.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem, preserves_flags)
            );
        }
    }

    /// Adds two tiles of rows times two tiles of columns to the four sums.
    ///
    /// # Safety
    /// `a` and `b` lead 16 rows of 64 bytes, `stride` bytes apart; `left` and `right` lead 1024 bytes.
    #[inline(always)]
    pub(super) unsafe fn four(
        &self,
        a: *const u16,
        b: *const u16,
        stride: usize,
        left: *const u16,
        right: *const u16,
    ) {
        // SAFETY: the caller vouches for the memory, `self` for the tiles.
        unsafe {
            asm!(
                "tileloaddt1 tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{left} + {step}*1]",
                "tileloadd tmm7, [{right} + {step}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloaddt1 tmm5, [{b} + {stride}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                a = in(reg) a, b = in(reg) b, stride = in(reg) stride,
                left = in(reg) left, right = in(reg) right, step = in(reg) 64usize,
                options(nostack, readonly, preserves_flags)
            );
        }
    }

    /// Adds one tile of rows times two tiles of columns to the first two sums.
    ///
    /// # Safety
    /// As for `four`; `step` is the distance of the rows of `left` and `right`, in bytes.
    #[inline(always)]
    pub(super) unsafe fn two(&self, a: *const u16, stride: usize, left: *const u16, right: *const u16) {
        // SAFETY: the caller vouches for the memory, `self` for the tiles.
        unsafe {
            asm!(
                "tileloaddt1 tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{left} + {step}*1]",
                "tileloadd tmm7, [{right} + {step}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                a = in(reg) a, stride = in(reg) stride,
                left = in(reg) left, right = in(reg) right, step = in(reg) 64usize,
                options(nostack, readonly, preserves_flags)
            );
        }
    }

    /// Stores the first two sums side by side, and the other two below them where `all`.
    ///
    /// # Safety
    /// `to` leads 16 rows of 128 bytes, `stride` bytes apart; 32 of them where `all`.
    #[inline(always)]
    pub(super) unsafe fn store(&self, to: *mut f32, stride: usize, all: bool) {
        // SAFETY: the caller vouches for the memory, `self` for the tiles.
        unsafe {
            asm!(
                "tilestored [{to} + {stride}*1], tmm0",
                "tilestored [{beside} + {stride}*1], tmm1",
                to = in(reg) to, beside = in(reg) to.add(16), stride = in(reg) stride,
                options(nostack, preserves_flags)
            );
            if all {
                let below = to.byte_add(16 * stride);
                asm!(
                    "tilestored [{to} + {stride}*1], tmm2",
                    "tilestored [{beside} + {stride}*1], tmm3",
                    to = in(reg) below, beside = in(reg) below.add(16), stride = in(reg) stride,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}
