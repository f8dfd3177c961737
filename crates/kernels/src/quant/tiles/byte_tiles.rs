//! A thread's AMX tiles, configured for products of bytes.

use std::arch::asm;
use std::arch::x86_64::{__m512i, _mm512_load_si512};
use std::marker::PhantomData;

use super::super::PANEL;
use super::super::instructions::has_tiles;
use super::super::rows::TILE_ROWS;
use crate::buffer::Buffer;
use crate::isa::Isa;
use crate::tile_config::TileConfig;

/// Bytes of a row of a tile.
pub(super) const ROW: usize = 64;

/// This thread's tiles, configured until it is dropped. Not `Send`.
pub(in super::super) struct ByteTiles {
    before: TileConfig,
    /// Unpacked codes: both planes of a block, or some groups.
    pub(super) planes: Buffer<u8>,
    /// Accumulators that are stored, of two turns.
    pub(super) dots: Box<[Dots; 2]>,
    here: PhantomData<*const ()>,
}

/// The contents of four accumulators: dot products of 16 rows and 16 columns.
#[repr(C, align(64))]
pub(super) struct Dots(pub(super) [[[i32; PANEL]; TILE_ROWS]; 4]);

impl Dots {
    pub(super) const ZEROS: Dots = Dots([[[0; PANEL]; TILE_ROWS]; 4]);

    /// A row of an accumulator.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn row(&self, accumulator: usize, row: usize) -> __m512i {
        Dots::load(&self.0[accumulator][row])
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn load(row: &[i32; PANEL]) -> __m512i {
        // SAFETY: 16 values are one vector, and rows are aligned.
        unsafe { _mm512_load_si512(row.as_ptr().cast()) }
    }
}

impl ByteTiles {
    /// Configures the tiles, if there are any: four accumulators, two tiles for 16 rows, and two for the columns of a panel. The
    /// last four have `inputs` inputs. Tiles that are in use keep their configuration and lose their content.
    pub(super) fn of(isa: Isa, inputs: usize) -> Option<ByteTiles> {
        if !has_tiles(isa) {
            return None;
        }
        let mut config = TileConfig::full();
        (4..6).for_each(|tile| config.set(tile, TILE_ROWS as u8, inputs as u16));
        (6..8).for_each(|tile| config.set(tile, inputs as u8 / 4, ROW as u16));
        // SAFETY: the processor has tiles, and the process may use them.
        let before = unsafe {
            let before = TileConfig::current();
            config.load();
            before
        };
        Some(ByteTiles {
            before,
            planes: Buffer::default(),
            dots: Box::new([Dots::ZEROS; 2]),
            here: PhantomData,
        })
    }

    /// Stores the accumulators.
    #[inline(always)]
    pub(super) fn store(&self, to: &mut Dots) {
        // SAFETY: this thread's tiles are configured; each destination has 16 rows of 64 bytes.
        unsafe {
            asm!(
                "tilestored [{first} + {line}*1], tmm0",
                "tilestored [{second} + {line}*1], tmm1",
                "tilestored [{third} + {line}*1], tmm2",
                "tilestored [{fourth} + {line}*1], tmm3",
                first = in(reg) to.0[0].as_mut_ptr(),
                second = in(reg) to.0[1].as_mut_ptr(),
                third = in(reg) to.0[2].as_mut_ptr(),
                fourth = in(reg) to.0[3].as_mut_ptr(),
                line = in(reg) ROW,
                options(nostack, preserves_flags)
            );
        }
    }
}

impl Drop for ByteTiles {
    fn drop(&mut self) {
        // SAFETY: the processor has tiles.
        unsafe { self.before.load() };
    }
}
