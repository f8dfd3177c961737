//! Tile operations on tiles of 16 rows by 64 bytes: with Intel AMX, or emulated with AVX-512 bf16 vectors.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

use super::emulated::Sums;
use crate::detect;
use crate::isa::Isa;
use crate::tile_config::TileConfig;

/// Proof that this process may use bf16 tiles or vectors, and 512-bit vectors.
#[derive(Clone, Copy, Debug)]
pub struct Bf16 {
    tiles: bool,
}

/// Proof that this thread's tiles are configured. Not `Send`.
pub struct Tiles {
    emulated: Option<Box<Sums>>,
    here: PhantomData<*const ()>,
}

impl Bf16 {
    /// The proof for `isa`, if the processor has it and the system permits it.
    pub fn of(isa: Isa) -> Option<Bf16> {
        match isa {
            Isa::Amx => detect::has_amx().then_some(Bf16 { tiles: true }),
            Isa::Avx512Bf16 => detect::has_avx512_bf16().then_some(Bf16 { tiles: false }),
            Isa::Plain | Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Other => None,
        }
    }

    /// The instruction set.
    pub fn isa(self) -> Isa {
        if self.tiles { Isa::Amx } else { Isa::Avx512Bf16 }
    }

    /// The proof for AMX tiles, which compute 16 rows as fast as one.
    pub fn on_tiles(isa: Isa) -> Option<Bf16> {
        Bf16::of(isa).filter(|unit| unit.tiles)
    }

    /// Runs `work` with this thread's tiles configured, and releases them afterwards; reentrant.
    pub fn with_tiles<T>(self, work: impl FnOnce(&Tiles) -> T) -> T {
        thread_local! {
            static SET_UP: Cell<bool> = const { Cell::new(false) };
        }
        struct Release;
        impl Drop for Release {
            fn drop(&mut self) {
                SET_UP.set(false);
                // SAFETY: it is made lower only, where the instruction exists.
                unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
            }
        }
        if !self.tiles {
            return work(&Tiles { emulated: Some(Box::default()), here: PhantomData });
        }
        if SET_UP.get() {
            return work(&Tiles { emulated: None, here: PhantomData });
        }
        // SAFETY: the proof guarantees that the instruction exists.
        unsafe { TileConfig::full().load() };
        SET_UP.set(true);
        let _release = Release;
        work(&Tiles { emulated: None, here: PhantomData })
    }
}

impl Tiles {
    /// Sets the four accumulator tiles to zero.
    #[inline(always)]
    pub(super) fn zero(&self) {
        if let Some(sums) = &self.emulated {
            return sums.zero();
        }
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

    /// Loads the first two accumulators from 16 rows side by side, and the other two from the rows below if `all`.
    ///
    /// # Safety
    /// `from` leads 16 rows of 128 bytes, `stride` bytes apart; 32 of them where `all`.
    #[inline(always)]
    pub(super) unsafe fn load(&self, from: *const f32, stride: usize, all: bool) {
        if let Some(sums) = &self.emulated {
            // SAFETY: as lower.
            return unsafe { sums.load(from, stride, if all { 2 } else { 1 }) };
        }
        // SAFETY: the caller guarantees the memory, `self` for the tiles.
        unsafe {
            asm!(
                "tileloadd tmm0, [{from} + {stride}*1]",
                "tileloadd tmm1, [{beside} + {stride}*1]",
                from = in(reg) from, beside = in(reg) from.add(16), stride = in(reg) stride,
                options(nostack, readonly, preserves_flags)
            );
            if all {
                let lower = from.byte_add(16 * stride);
                asm!(
                    "tileloadd tmm2, [{from} + {stride}*1]",
                    "tileloadd tmm3, [{beside} + {stride}*1]",
                    from = in(reg) lower, beside = in(reg) lower.add(16), stride = in(reg) stride,
                    options(nostack, readonly, preserves_flags)
                );
            }
        }
    }

    /// Multiplies two tiles of rows by two tiles of columns into the four accumulators.
    ///
    /// # Safety
    /// `a` and `b` lead 16 rows of 64 bytes, `stride` bytes apart; `left` and `right` lead 1024 bytes.
    #[inline(always)]
    pub(super) unsafe fn multiply_2x2(
        &self,
        a: *const u16,
        b: *const u16,
        stride: usize,
        left: *const u16,
        right: *const u16,
    ) {
        if let Some(sums) = &self.emulated {
            // SAFETY: as lower.
            return unsafe { sums.add(&[a, b], stride, [left, right]) };
        }
        // SAFETY: the caller guarantees the memory, `self` for the tiles.
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

    /// Multiplies one tile of rows by two tiles of columns into the first two accumulators.
    ///
    /// # Safety
    /// As for `multiply_2x2`.
    #[inline(always)]
    pub(super) unsafe fn multiply_1x2(
        &self,
        a: *const u16,
        stride: usize,
        left: *const u16,
        right: *const u16,
    ) {
        if let Some(sums) = &self.emulated {
            // SAFETY: as lower.
            return unsafe { sums.add(&[a], stride, [left, right]) };
        }
        // SAFETY: the caller guarantees the memory, `self` for the tiles.
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

    /// Stores the first two accumulators side by side, and the other two below them if `all`.
    ///
    /// # Safety
    /// `to` leads 16 rows of 128 bytes, `stride` bytes apart; 32 of them where `all`.
    #[inline(always)]
    pub(super) unsafe fn store(&self, to: *mut f32, stride: usize, all: bool) {
        if let Some(sums) = &self.emulated {
            // SAFETY: as lower.
            return unsafe { sums.store(to, stride, if all { 2 } else { 1 }) };
        }
        // SAFETY: the caller guarantees the memory, `self` for the tiles.
        unsafe {
            asm!(
                "tilestored [{to} + {stride}*1], tmm0",
                "tilestored [{beside} + {stride}*1], tmm1",
                to = in(reg) to, beside = in(reg) to.add(16), stride = in(reg) stride,
                options(nostack, preserves_flags)
            );
            if all {
                let lower = to.byte_add(16 * stride);
                asm!(
                    "tilestored [{to} + {stride}*1], tmm2",
                    "tilestored [{beside} + {stride}*1], tmm3",
                    to = in(reg) lower, beside = in(reg) lower.add(16), stride = in(reg) stride,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}
