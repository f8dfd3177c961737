//! Products of rows of 8 bits with formats whose groups have factors of their own: a tile multiplies a group of 32 inputs.
//! Dot products are integers, and all else is computed as with vectors, so the results are the same bit for bit.

use std::arch::asm;
use std::arch::x86_64::{
    _mm512_loadu_ps, _mm512_set1_epi8, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_storeu_si512,
    _mm512_sub_epi8,
};

use super::super::avx512::{halves, prefetch, vectors};
use super::super::avx512_groups::add_group;
use super::super::byte_codes::RowGroup;
use super::super::format::{CodeWidth, QuantFormat};
use super::super::panel::Panel;
use super::super::rows::{ByteRows, TILE_ROWS};
use super::super::{GROUP, PANEL, RUN, VECTOR};
use super::byte_tiles::{ByteTiles, Dots, ROW};
use super::{Part, TileProducts, pieces};
use crate::isa::Isa;

/// Groups that tiles multiply at a time.
const TOGETHER: usize = 4;
/// Bytes of the unpacked codes of a group.
const BYTES: usize = GROUP * PANEL;

impl TileProducts for RowGroup {
    const PART: usize = 8;

    fn unit(isa: Isa, _: QuantFormat) -> Option<ByteTiles> {
        ByteTiles::of(isa, GROUP)
    }

    fn add(
        unit: &mut ByteTiles,
        panel: &Panel<'_>,
        rows: &ByteRows,
        part: &Part<'_>,
        sums: &mut [[f32; PANEL]],
    ) {
        const FOUR: usize = CodeWidth::Four.run_bytes();
        const SIX: usize = CodeWidth::Six.run_bytes();
        const EIGHT: usize = CodeWidth::Eight.run_bytes();
        // SAFETY: these tiles exist only where the instructions do.
        unsafe {
            match (panel.format.width, panel.format.has_minimums) {
                (CodeWidth::Four, false) => add::<FOUR, false>(unit, panel, rows, part, sums),
                (CodeWidth::Four, true) => add::<FOUR, true>(unit, panel, rows, part, sums),
                (CodeWidth::Six, false) => add::<SIX, false>(unit, panel, rows, part, sums),
                (CodeWidth::Six, true) => add::<SIX, true>(unit, panel, rows, part, sums),
                (CodeWidth::Eight, false) => add::<EIGHT, false>(unit, panel, rows, part, sums),
                (CodeWidth::Eight, true) => add::<EIGHT, true>(unit, panel, rows, part, sums),
            }
        }
    }
}

/// Adds the products of the rows of some tiles to the sums, with a panel whose runs have `RUN_BYTES` bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add<const RUN_BYTES: usize, const MINIMUMS: bool>(
    tiles: &mut ByteTiles,
    panel: &Panel<'_>,
    rows: &ByteRows,
    part: &Part<'_>,
    sums: &mut [[f32; PANEL]],
) {
    let ByteTiles { planes, dots, .. } = tiles;
    planes.grow(part.blocks.len() * BYTES);
    let stored = panel.group_codes(part.blocks.clone());
    let codes = unpack::<RUN_BYTES, MINIMUMS>(panel, stored, planes).as_chunks().0;
    let mut next = pieces(part.next, part.tiles.len());
    for (tile, sums) in part.tiles.clone().zip(sums.as_chunks_mut().0) {
        let next = next.next().unwrap_or_default();
        let rows = rows.tile(tile).padded(part.blocks.clone());
        add_tile::<MINIMUMS>((panel, part.blocks.start), codes, rows, sums, dots, next);
    }
}

/// Adds the products of a tile of rows with some groups, of which `first` is the first one, to the sums. While tiles multiply some
/// groups, vectors scale the products with those before.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add_tile<const MINIMUMS: bool>(
    (panel, first): (&Panel<'_>, usize),
    codes: &[[u8; BYTES]],
    rows: &[[RowGroup; TILE_ROWS]],
    sums: &mut [[f32; PANEL]; TILE_ROWS],
    dots: &mut [Dots; 2],
    next: &[u8],
) {
    let mut totals = [_mm512_setzero_ps(); TILE_ROWS];
    for (total, sum) in totals.iter_mut().zip(&*sums) {
        // SAFETY: 16 values are one vector.
        *total = unsafe { _mm512_loadu_ps(sum.as_ptr()) };
    }
    let [mut own, mut done] = dots.each_mut();
    let mut next = pieces(next, codes.len());
    let mut parts = codes.chunks(TOGETHER).zip(rows.chunks(TOGETHER));
    let (mut group, mut before): (usize, &[[RowGroup; TILE_ROWS]]) = (first, &[]);
    loop {
        let now = parts.next();
        if let Some((codes, rows)) = now {
            multiply::<MINIMUMS>(codes, rows, own);
        }
        for (rows, dots) in before.iter().zip(&done.0) {
            let scale = halves(panel.scales, group);
            let minimum = if MINIMUMS { halves(panel.minimums, group) } else { scale };
            for (number, total) in totals.iter_mut().enumerate() {
                let dots = Dots::load(&dots[number]);
                *total = add_group::<MINIMUMS>(*total, dots, [scale, minimum], &rows[number]);
            }
            prefetch(next.next().unwrap_or_default());
            group += 1;
        }
        let Some((_, rows)) = now else { break };
        before = rows;
        std::mem::swap(&mut own, &mut done);
    }
    for (sum, total) in sums.iter_mut().zip(&totals) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(sum.as_mut_ptr(), *total) };
    }
}

/// Writes codes as bytes; less the code of zero, as signed bytes, without minimums.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn unpack<'a, const RUN_BYTES: usize, const MINIMUMS: bool>(
    panel: &Panel<'_>,
    stored: &[u8],
    to: &'a mut [u8],
) -> &'a [u8] {
    let zero = _mm512_set1_epi8(panel.format.zero.cast_signed());
    let runs = stored.as_chunks::<RUN_BYTES>().0;
    let (to, _) = to.as_chunks_mut::<VECTOR>();
    for (run, to) in runs.iter().zip(to.as_chunks_mut::<{ RUN / 4 }>().0) {
        for (codes, to) in vectors(run).into_iter().zip(to) {
            let codes = if MINIMUMS { codes } else { _mm512_sub_epi8(codes, zero) };
            // SAFETY: 64 bytes are one vector.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), codes) };
        }
    }
    to[..runs.len() * RUN / 4].as_flattened()
}

/// Multiplies groups, each on an accumulator, with an instruction for signed or for unsigned codes.
macro_rules! multiply {
    ($instruction:literal, $codes:ident, $rows:ident, $to:ident) => {
        // SAFETY: this thread's tiles are configured for groups: 16 rows of 32 codes, and 8 rows of 64 bytes.
        unsafe {
            if $codes.len() == TOGETHER && $rows.len() == TOGETHER {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "tileloadd tmm4, [{rows} + {distance}*1]",
                    "tileloadd tmm6, [{codes} + {line}*1]",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{rows} + {distance}*1 + {step}]",
                    "tileloadd tmm7, [{codes} + {line}*1 + 512]",
                    concat!($instruction, " tmm1, tmm5, tmm7"),
                    "tileloadd tmm4, [{rows} + {distance}*1 + 2*{step}]",
                    "tileloadd tmm6, [{codes} + {line}*1 + 2*512]",
                    concat!($instruction, " tmm2, tmm4, tmm6"),
                    "tileloadd tmm5, [{rows} + {distance}*1 + 3*{step}]",
                    "tileloadd tmm7, [{codes} + {line}*1 + 3*512]",
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "tilestored [{to} + {line}*1], tmm0",
                    "tilestored [{to} + {line}*1 + 1024], tmm1",
                    "tilestored [{to} + {line}*1 + 2*1024], tmm2",
                    "tilestored [{to} + {line}*1 + 3*1024], tmm3",
                    step = const TILE_ROWS * size_of::<RowGroup>(),
                    rows = in(reg) $rows.as_ptr(),
                    distance = in(reg) size_of::<RowGroup>(),
                    codes = in(reg) $codes.as_ptr(),
                    to = in(reg) $to.0.as_mut_ptr(),
                    line = in(reg) ROW,
                    options(nostack, preserves_flags)
                );
            } else {
                for ((codes, rows), to) in $codes.iter().zip($rows).zip(&mut $to.0) {
                    asm!(
                        "tilezero tmm0",
                        "tileloadd tmm4, [{rows} + {distance}*1]",
                        "tileloadd tmm6, [{codes} + {line}*1]",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        "tilestored [{to} + {line}*1], tmm0",
                        rows = in(reg) rows.as_ptr(),
                        distance = in(reg) size_of::<RowGroup>(),
                        codes = in(reg) codes.as_ptr(),
                        to = in(reg) to.as_mut_ptr(),
                        line = in(reg) ROW,
                        options(nostack, preserves_flags)
                    );
                }
            }
        }
    };
}

/// Multiplies up to four groups.
#[inline(always)]
fn multiply<const MINIMUMS: bool>(codes: &[[u8; BYTES]], rows: &[[RowGroup; TILE_ROWS]], to: &mut Dots) {
    if MINIMUMS {
        multiply!("tdpbsud", codes, rows, to);
    } else {
        multiply!("tdpbssd", codes, rows, to);
    }
}
