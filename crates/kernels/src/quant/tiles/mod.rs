//! Products of formats with super-blocks, with AMX tiles of bytes: up to 16 rows at a time. Dot products are integers, and all
//! else is computed as with vectors, so the results are the same bit for bit. Formats whose groups have factors of their own
//! would need a tile per group; vectors are as fast.

mod planes;
mod super_blocks;

use std::arch::asm;
use std::arch::x86_64::{__m512i, _mm512_load_si512};
use std::marker::PhantomData;
use std::ops::Range;

use super::PANEL;
use super::codes_avx512::has_vectors;
use super::format::QuantFormat;
use super::panel::Panel;
use super::rows::{QuantizedRows, TILE_ROWS};
use crate::buffer::Buffer;
use crate::detect::has_amx_int8;
use crate::isa::Isa;
use crate::tile_config::TileConfig;

/// Bytes of a row of a tile.
const ROW: usize = 64;

/// Whether there are tiles of bytes.
pub(super) fn has_tiles(isa: Isa) -> bool {
    isa == Isa::Amx && has_amx_int8() && has_vectors(isa)
}

/// This thread's tiles, configured for `height` rows, until it is dropped. Not `Send`.
pub(super) struct ByteTiles {
    before: TileConfig,
    /// Rows of a tile.
    height: usize,
    /// Both planes of a block.
    planes: Buffer<u8>,
    /// Products of each row of each tile.
    sums: Buffer<f32>,
    here: PhantomData<*const ()>,
}

/// The contents of four accumulators: dot products of 16 rows and 16 columns.
#[repr(C, align(64))]
struct Dots([[[i32; PANEL]; TILE_ROWS]; 4]);

impl Dots {
    const ZEROS: Dots = Dots([[[0; PANEL]; TILE_ROWS]; 4]);

    /// A row of an accumulator.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn row(&self, accumulator: usize, row: usize) -> __m512i {
        // SAFETY: 16 values are one vector, and rows are aligned.
        unsafe { _mm512_load_si512(self.0[accumulator][row].as_ptr().cast()) }
    }
}

impl ByteTiles {
    /// Configures the tiles, if there are any. Tiles that are in use keep their configuration and lose their content.
    pub(super) fn of(isa: Isa, format: QuantFormat, height: usize) -> Option<ByteTiles> {
        if !format.is_super() || !has_tiles(isa) {
            return None;
        }
        let mut config = TileConfig::full();
        (0..6).for_each(|tile| config.set(tile, height as u8, ROW as u16));
        // SAFETY: the processor has tiles, and the process may use them.
        let before = unsafe {
            let before = TileConfig::current();
            config.load();
            before
        };
        Some(ByteTiles {
            before,
            height,
            planes: Buffer::default(),
            sums: Buffer::default(),
            here: PhantomData,
        })
    }

    /// Multiplies the rows of some tiles of the height with a panel of the format.
    pub(super) fn multiply(
        &mut self,
        panel: &Panel<'_>,
        rows: &QuantizedRows,
        tiles: Range<usize>,
        put: &mut impl FnMut(usize, &[f32; PANEL]),
    ) {
        let size = tiles.len() * TILE_ROWS * PANEL;
        self.sums.grow(size);
        self.sums[..size].fill(0.0);
        // SAFETY: these tiles exist only where the instructions do.
        unsafe { super_blocks::multiply(self, panel, rows, tiles.clone()) };
        for (tile, sums) in tiles.zip(self.sums.as_chunks::<{ TILE_ROWS * PANEL }>().0) {
            for (row, sums) in sums.as_chunks().0.iter().enumerate().take(self.height) {
                put(tile * TILE_ROWS + row, sums);
            }
        }
    }

    /// Stores the accumulators.
    #[inline(always)]
    fn store(&self, to: &mut Dots) {
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
