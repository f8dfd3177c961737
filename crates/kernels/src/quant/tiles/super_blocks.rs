//! Products with super-blocks. Scales of groups are integers, so a block is one integer product.

use std::arch::asm;
use std::arch::x86_64::{
    __m512, _mm512_add_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_slli_epi32, _mm512_storeu_ps,
};

use super::super::avx512::{BlockTotals, block_factors, prefetch_after, super_factors};
use super::super::codes::RowBlock;
use super::super::format::{CodeWidth, QuantFormat};
use super::super::panel::Panel;
use super::super::rows::{QuantizedRows, TILE_ROWS};
use super::super::{BLOCK, GROUP, PANEL};
use super::byte_tiles::{ByteTiles, Dots, ROW};
use super::planes::{PLANE, shift, unpack};
use super::{Part, TileProducts};
use crate::isa::Isa;

/// Inputs of a tile.
const INPUTS: usize = 64;

/// The factors of a super-block of `COUNT` groups.
#[derive(Clone, Copy)]
struct Factors<const COUNT: usize> {
    /// Those of its scales and minimums.
    block: [__m512; 2],
    /// The minimum of each group.
    minimums: [__m512; COUNT],
}

/// Dot products that are to be scaled.
#[derive(Clone, Copy)]
struct Pending<'a> {
    block: usize,
    rows: &'a [RowBlock],
    /// The tile of the sums.
    tile: usize,
}

impl TileProducts for RowBlock {
    // Products are finished while the next ones are computed, which a part would interrupt.
    const PART: usize = usize::MAX;

    fn unit(isa: Isa, format: QuantFormat) -> Option<ByteTiles> {
        format.is_super().then(|| ByteTiles::of(isa, INPUTS)).flatten()
    }

    fn add(
        unit: &mut ByteTiles,
        panel: &Panel<'_>,
        rows: &QuantizedRows,
        part: &Part<'_>,
        sums: &mut [[f32; PANEL]],
    ) {
        // SAFETY: these tiles exist only where the instructions do.
        unsafe {
            match (panel.format.width, panel.format.group) {
                (CodeWidth::Four, _) => add::<{ shift(CodeWidth::Four) }, 8>(unit, panel, rows, part, sums),
                (_, GROUP) => add::<{ shift(CodeWidth::Eight) }, 8>(unit, panel, rows, part, sums),
                _ => add::<{ shift(CodeWidth::Eight) }, 16>(unit, panel, rows, part, sums),
            }
        }
    }
}

/// Adds a product to an accumulator: of high bytes with both planes, then of low bytes.
macro_rules! add_product {
    ($instruction:literal) => {
        // SAFETY: this thread's tiles are configured and loaded.
        unsafe { asm!($instruction, options(nostack, nomem, preserves_flags)) }
    };
}

/// Adds the products of the rows of some tiles to the sums. While tiles multiply, vectors scale the previous products.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add<const SHIFT: u32, const COUNT: usize>(
    tiles: &mut ByteTiles,
    panel: &Panel<'_>,
    rows: &QuantizedRows,
    own: &Part<'_>,
    sums: &mut [[f32; PANEL]],
) {
    let mut planes = std::mem::take(&mut tiles.planes);
    planes.grow(2 * PLANE);
    let both: &mut [u8; 2 * PLANE] = &mut planes.as_chunks_mut().0[0];
    // Those of this block and of the previous one.
    let none = _mm512_setzero_ps();
    let mut factors = [Factors { block: [none; 2], minimums: [none; COUNT] }; 2];
    let mut dots = Dots::ZEROS;
    let mut pending = Pending { block: 0, rows: &[], tile: 0 };
    for block in own.blocks.clone() {
        prefetch_after(panel.block_codes(block));
        unpack::<false>(panel, block, both);
        let current = &mut factors[block % 2];
        current.block = block_factors(panel, block);
        for (group, minimum) in current.minimums.iter_mut().enumerate() {
            (_, *minimum) = super_factors(panel, block * COUNT + group);
        }
        for (tile, number) in own.tiles.clone().enumerate() {
            let rows = rows.tile(number).block(block);
            let before = &factors[pending.block % 2];
            start(tiles);
            for part in 0..BLOCK / INPUTS {
                load(tiles, rows, both, part);
                // A row for each product.
                let mut finish = |row: usize| {
                    finish::<SHIFT, COUNT>(sums, before, &pending, 4 * part + row, &dots);
                };
                add_product!("tdpbssd tmm0, tmm4, tmm6");
                finish(0);
                add_product!("tdpbssd tmm1, tmm4, tmm7");
                finish(1);
                add_product!("tdpbssd tmm2, tmm5, tmm6");
                finish(2);
                add_product!("tdpbssd tmm3, tmm5, tmm7");
                finish(3);
            }
            tiles.store(&mut dots);
            pending = Pending { block, rows, tile };
        }
    }
    for row in 0..TILE_ROWS {
        let factors = &factors[pending.block % 2];
        finish::<SHIFT, COUNT>(sums, factors, &pending, row, &dots);
    }
    tiles.planes = planes;
}

/// Sets the accumulators to zero.
#[inline(always)]
fn start(_: &ByteTiles) {
    // SAFETY: this thread's tiles are configured.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, preserves_flags)
        );
    }
}

/// Loads 64 inputs: the high and the low bytes of each row, and both planes.
#[inline(always)]
fn load(_: &ByteTiles, rows: &[RowBlock], planes: &[u8; 2 * PLANE], part: usize) {
    let row = &rows[0];
    // SAFETY: this thread's tiles are configured. A tile has memory for 16 rows, each with 256 high and low bytes. A tile of a
    // plane has 16 rows of 64 bytes.
    unsafe {
        asm!(
            "tileloadd tmm4, [{high_bytes} + {distance}*1]",
            "tileloadd tmm6, [{high} + {line}*1]",
            "tileloadd tmm7, [{low} + {line}*1]",
            "tileloadd tmm5, [{low_bytes} + {distance}*1]",
            high_bytes = in(reg) row.high[part * INPUTS / 4..].as_ptr(),
            low_bytes = in(reg) row.low[part * INPUTS / 4..].as_ptr(),
            distance = in(reg) size_of::<RowBlock>(),
            high = in(reg) planes[part * INPUTS * PANEL..].as_ptr(),
            low = in(reg) planes[PLANE + part * INPUTS * PANEL..].as_ptr(),
            line = in(reg) ROW,
            options(nostack, readonly, preserves_flags)
        );
    }
}

/// Joins and scales the dot products of a row, and adds them to its sums.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn finish<const SHIFT: u32, const COUNT: usize>(
    sums: &mut [[f32; PANEL]],
    factors: &Factors<COUNT>,
    pending: &Pending<'_>,
    number: usize,
    dots: &Dots,
) {
    let Some(row) = pending.rows.get(number) else { return };
    let sum = &mut sums[pending.tile * TILE_ROWS + number];
    let high = _mm512_slli_epi32::<SHIFT>(dots.row(0, number));
    let low = _mm512_slli_epi32::<SHIFT>(dots.row(2, number));
    let high = _mm512_add_epi32(high, dots.row(1, number));
    let low = _mm512_add_epi32(low, dots.row(3, number));
    let mut minimum = _mm512_setzero_ps();
    for (group, by) in factors.minimums.iter().enumerate() {
        minimum = _mm512_fmadd_ps(*by, _mm512_set1_ps(row.sum(BLOCK / COUNT, group)), minimum);
    }
    let totals = BlockTotals { high, low, minimum };
    // SAFETY: 16 values are one vector.
    unsafe {
        let before = _mm512_loadu_ps(sum.as_ptr());
        _mm512_storeu_ps(sum.as_mut_ptr(), totals.added_to(before, factors.block, row.scale));
    }
}
