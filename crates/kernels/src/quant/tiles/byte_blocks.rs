//! Products of rows of 8 bits with super-blocks. Dot products are integers, and all else is computed as with vectors, so the
//! results are the same bit for bit.

use std::arch::asm;
use std::arch::x86_64::{_mm512_add_epi32, _mm512_loadu_ps, _mm512_slli_epi32, _mm512_storeu_ps};

use super::super::avx512::prefetch;
use super::super::avx512_blocks::Factors;
use super::super::codes::ByteBlock;
use super::super::format::{CodeWidth, QuantFormat};
use super::super::panel::Panel;
use super::super::rows::{ByteBlocks, TILE_ROWS};
use super::super::{BLOCK, GROUP, PANEL};
use super::byte_tiles::{ByteTiles, Dots, ROW};
use super::planes::{PARTS, PLANE, shift, unpack};
use super::{Part, TileProducts, pieces};
use crate::isa::Isa;

/// Inputs of a part.
const INPUTS: usize = BLOCK / PARTS;

impl TileProducts for ByteBlock {
    const PART: usize = 2;

    fn unit(isa: Isa, format: QuantFormat) -> Option<ByteTiles> {
        format.is_super().then(|| ByteTiles::of(isa, INPUTS)).flatten()
    }

    fn add(
        unit: &mut ByteTiles,
        panel: &Panel<'_>,
        rows: &ByteBlocks,
        part: &Part<'_>,
        sums: &mut [[f32; PANEL]],
    ) {
        const FOUR: u32 = shift(CodeWidth::Four);
        const EIGHT: u32 = shift(CodeWidth::Eight);
        // SAFETY: these tiles exist only where the instructions do.
        unsafe {
            match (panel.format.width, panel.format.group, panel.format.has_minimums) {
                (CodeWidth::Four, ..) => add::<FOUR, 8, true>(unit, panel, rows, part, sums),
                (_, GROUP, true) => add::<EIGHT, 8, true>(unit, panel, rows, part, sums),
                (_, GROUP, false) => add::<EIGHT, 8, false>(unit, panel, rows, part, sums),
                (.., true) => add::<EIGHT, 16, true>(unit, panel, rows, part, sums),
                (.., false) => add::<EIGHT, 16, false>(unit, panel, rows, part, sums),
            }
        }
    }
}

/// Adds the products of the rows of some tiles to the sums. Tiles and vectors take turns: a tile that is loaded waits for the
/// stores before it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add<const SHIFT: u32, const COUNT: usize, const MINIMUMS: bool>(
    tiles: &mut ByteTiles,
    panel: &Panel<'_>,
    rows: &ByteBlocks,
    part: &Part<'_>,
    sums: &mut [[f32; PANEL]],
) {
    let ByteTiles { planes, dots, .. } = tiles;
    let [dots, _] = &mut **dots;
    planes.grow(2 * PLANE);
    let both: &mut [u8; 2 * PLANE] = &mut planes.as_chunks_mut().0[0];
    let mut next = pieces(part.next, part.blocks.len() * part.tiles.len() * TILE_ROWS);
    for block in part.blocks.clone() {
        if MINIMUMS {
            unpack::<false>(panel, block, both);
        } else {
            unpack::<true>(panel, block, both);
        }
        let factors = Factors::<COUNT>::of(panel, block);
        for (tile, sums) in part.tiles.clone().step_by(2).zip(sums.chunks_mut(2 * TILE_ROWS)) {
            let first = rows.tile(tile).block(block);
            let second = if tile + 1 < part.tiles.end { rows.tile(tile + 1).block(block) } else { &[] };
            if second.is_empty() {
                multiply_1x2(first, both, dots);
            } else {
                multiply_2x2([first, second], both, dots);
            }
            for (number, (row, sum)) in first.iter().zip(&mut *sums).enumerate() {
                prefetch(next.next().unwrap_or_default());
                finish::<SHIFT, COUNT, MINIMUMS>(&factors, row, [0, 1], number, dots, sum);
            }
            for (number, (row, sum)) in second.iter().zip(sums.iter_mut().skip(TILE_ROWS)).enumerate() {
                prefetch(next.next().unwrap_or_default());
                finish::<SHIFT, COUNT, MINIMUMS>(&factors, row, [2, 3], number, dots, sum);
            }
        }
    }
}

/// Multiplies a super-block of two tiles of rows with both planes.
#[inline(always)]
fn multiply_2x2([first, second]: [&[ByteBlock]; 2], planes: &[u8; 2 * PLANE], to: &mut Dots) {
    // SAFETY: this thread's tiles are configured. A tile has memory for 16 rows, each with 256 codes, and a part of a plane is 16
    // rows of 64 bytes.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, nomem, preserves_flags)
        );
        for part in 0..PARTS {
            asm!(
                "tileloadd tmm4, [{first} + {distance}*1]",
                "tileloadd tmm6, [{high} + {line}*1]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{low} + {line}*1]",
                "tdpbssd tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{second} + {distance}*1]",
                "tdpbssd tmm2, tmm5, tmm6",
                "tdpbssd tmm3, tmm5, tmm7",
                first = in(reg) first[0].codes[part * INPUTS / 4..].as_ptr(),
                second = in(reg) second[0].codes[part * INPUTS / 4..].as_ptr(),
                distance = in(reg) size_of::<ByteBlock>(),
                high = in(reg) planes[part * INPUTS * PANEL..].as_ptr(),
                low = in(reg) planes[PLANE + part * INPUTS * PANEL..].as_ptr(),
                line = in(reg) ROW,
                options(nostack, readonly, preserves_flags)
            );
        }
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

/// Multiplies a super-block of a tile of rows with both planes.
#[inline(always)]
fn multiply_1x2(rows: &[ByteBlock], planes: &[u8; 2 * PLANE], to: &mut Dots) {
    // SAFETY: as above.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem, preserves_flags));
        for part in 0..PARTS {
            asm!(
                "tileloadd tmm4, [{rows} + {distance}*1]",
                "tileloadd tmm6, [{high} + {line}*1]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{low} + {line}*1]",
                "tdpbssd tmm1, tmm4, tmm7",
                rows = in(reg) rows[0].codes[part * INPUTS / 4..].as_ptr(),
                distance = in(reg) size_of::<ByteBlock>(),
                high = in(reg) planes[part * INPUTS * PANEL..].as_ptr(),
                low = in(reg) planes[PLANE + part * INPUTS * PANEL..].as_ptr(),
                line = in(reg) ROW,
                options(nostack, readonly, preserves_flags)
            );
        }
        asm!(
            "tilestored [{first} + {line}*1], tmm0",
            "tilestored [{second} + {line}*1], tmm1",
            first = in(reg) to.0[0].as_mut_ptr(),
            second = in(reg) to.0[1].as_mut_ptr(),
            line = in(reg) ROW,
            options(nostack, preserves_flags)
        );
    }
}

/// Joins and scales the dot products of a row, and adds them to its sums. They are in the accumulators `[high, low]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn finish<const SHIFT: u32, const COUNT: usize, const MINIMUMS: bool>(
    factors: &Factors<COUNT>,
    row: &ByteBlock,
    [high, low]: [usize; 2],
    number: usize,
    dots: &Dots,
    sum: &mut [f32; PANEL],
) {
    let total = _mm512_add_epi32(_mm512_slli_epi32::<SHIFT>(dots.row(high, number)), dots.row(low, number));
    // SAFETY: 16 values are one vector.
    unsafe {
        let before = _mm512_loadu_ps(sum.as_ptr());
        _mm512_storeu_ps(sum.as_mut_ptr(), factors.add::<MINIMUMS>(total, row, before));
    }
}
