//! Products with AMX tiles of bytes, for blocks of 16 rows. Dot products are integers, and all else is computed as with
//! vectors, so the results are the same bit for bit.

use std::arch::asm;
use std::arch::x86_64::{
    __m512, _mm512_load_si512, _mm512_loadu_ps, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_storeu_si512,
};
use std::marker::PhantomData;

use super::avx512::{GroupFactors, VECTOR, add_scaled, joined, load, nibbles, values};
use super::codes::Codes;
use super::codes_avx512::has_vectors;
use super::format::{CodeWidth, QuantFormat};
use super::panel::Panel;
use super::rows::{BLOCK, QuantizedRows, SomeRows};
use super::{GROUP, PANEL};
use crate::buffer::Buffer;
use crate::detect::has_amx_int8;
use crate::isa::Isa;
use crate::tile_config::TileConfig;

/// This thread's tiles, configured for groups of one size, until it is dropped. Not `Send`.
pub(super) struct ByteTiles {
    before: TileConfig,
    /// Codes of a panel, a byte each.
    codes: Buffer<u8>,
    /// Scale and minimum of each group of a panel.
    factors: Buffer<f32>,
    here: PhantomData<*const ()>,
}

/// Dot products of a group of 16 rows and 16 columns, with high and low bytes.
#[repr(C, align(64))]
struct Dots([[[i32; PANEL]; BLOCK]; 2]);

impl ByteTiles {
    /// Configures the tiles, if there are any. Tiles that are in use keep their configuration and lose their content.
    pub(super) fn of(isa: Isa, format: QuantFormat) -> Option<ByteTiles> {
        if isa != Isa::Amx || !has_amx_int8() || !has_vectors(isa) {
            return None;
        }
        let mut config = TileConfig::full();
        for tile in [4, 5] {
            config.set(tile, BLOCK as u8, format.group as u16);
        }
        for tile in [6, 7] {
            config.set(tile, (format.group / 4) as u8, VECTOR as u16);
        }
        // SAFETY: the processor has tiles, and the process may use them.
        let before = unsafe {
            let before = TileConfig::current();
            config.load();
            before
        };
        Some(ByteTiles { before, codes: Buffer::default(), factors: Buffer::default(), here: PhantomData })
    }

    /// Multiplies the rows of some whole blocks with a panel of the format of the tiles.
    pub(super) fn multiply(
        &mut self,
        panel: &Panel<'_>,
        rows: &QuantizedRows,
        blocks: std::ops::Range<usize>,
        put: &mut impl FnMut(usize, &[f32; PANEL]),
    ) {
        // SAFETY: these tiles exist only where the instructions do.
        unsafe {
            self.unpack(panel);
            let codes = match panel.format.width {
                CodeWidth::Four => &self.codes,
                CodeWidth::Eight => panel.codes,
            };
            for block in blocks {
                let own = rows.some::<BLOCK>(block * BLOCK);
                let sums = match panel.format.group {
                    GROUP => products::<1>(self, codes, own),
                    _ => products::<2>(self, codes, own),
                };
                for (row, sums) in sums.into_iter().enumerate() {
                    put(block * BLOCK + row, &values(sums));
                }
            }
        }
    }

    /// Unpacks codes of four bits, and scales and minimums.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn unpack(&mut self, panel: &Panel<'_>) {
        let groups = panel.codes.len() / panel.format.group_bytes();
        self.factors.grow(groups * 2 * PANEL);
        let mut factors = GroupFactors::of(panel);
        for to in self.factors.as_chunks_mut::<{ 2 * PANEL }>().0.iter_mut().take(groups) {
            let [scale, minimum] = factors.next();
            // SAFETY: 32 values are two vectors.
            unsafe {
                _mm512_storeu_ps(to.as_mut_ptr(), scale);
                _mm512_storeu_ps(to.as_mut_ptr().add(PANEL), minimum);
            }
        }
        if panel.format.width == CodeWidth::Eight {
            return;
        }
        self.codes.grow(2 * panel.codes.len());
        let groups = self.codes.as_chunks_mut::<{ 8 * VECTOR }>().0.iter_mut();
        for (to, from) in groups.zip(panel.codes.as_chunks::<{ 4 * VECTOR }>().0) {
            for (at, from) in from.as_chunks::<VECTOR>().0.iter().enumerate() {
                for (half, codes) in nibbles(load(from)).into_iter().enumerate() {
                    let to: &mut [u8] = &mut to[(4 * half + at) * VECTOR..][..VECTOR];
                    // SAFETY: 64 bytes are one vector.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), codes) };
                }
            }
        }
    }
}

impl Drop for ByteTiles {
    fn drop(&mut self) {
        // SAFETY: the processor has tiles.
        unsafe { self.before.load() };
    }
}

/// The products of 16 rows with a panel, whose groups have `32 / PARTS` inputs. While tiles multiply a group, vectors scale
/// the previous one.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn products<const PARTS: usize>(
    tiles: &ByteTiles,
    codes: &[u8],
    rows: SomeRows<'_, BLOCK>,
) -> [__m512; BLOCK] {
    let mut sums = [_mm512_setzero_ps(); BLOCK];
    let mut buffers = [Dots([[[0; PANEL]; BLOCK]; 2]), Dots([[[0; PANEL]; BLOCK]; 2])];
    let bytes = GROUP / PARTS * PANEL;
    let groups = codes.len() / bytes;
    let factors = &tiles.factors.as_chunks::<{ 2 * PANEL }>().0[..groups];
    // A group is multiplied, stored and scaled in three turns.
    for turn in 0..groups + 2 {
        if let Some(codes) = codes.get(turn * bytes..(turn + 1) * bytes) {
            dots(tiles, rows.codes(turn / PARTS), turn % PARTS, codes, turn % 2 == 0);
        }
        if (1..=groups).contains(&turn) {
            store(tiles, &mut buffers[turn % 2], turn % 2 == 1);
        }
        let Some(group) = turn.checked_sub(2) else { continue };
        let (done, factors) = (&buffers[(turn + 1) % 2], factors[group].as_ptr());
        // SAFETY: 32 values are two vectors.
        let factors = unsafe { [_mm512_loadu_ps(factors), _mm512_loadu_ps(factors.add(PANEL))] };
        let (whole, half) = (group / PARTS, group % PARTS);
        let (totals, halves, scales) = (rows.sums(whole), rows.halves(whole), rows.scales(whole));
        for row in 0..BLOCK {
            // SAFETY: 16 values are one vector, and rows are aligned.
            let [high, low] =
                [0, 1].map(|part| unsafe { _mm512_load_si512(done.0[part][row].as_ptr().cast()) });
            let total = if PARTS == 1 { totals[row] } else { halves[row][half] };
            sums[row] = add_scaled(sums[row], joined([high, low]), factors, total, scales[row]);
        }
    }
    sums
}

/// Dot products of a part of a group of 32 inputs, in the accumulators of even or odd groups.
#[inline(always)]
fn dots(_: &ByteTiles, rows: &[Codes; BLOCK], part: usize, codes: &[u8], even: bool) {
    let row = rows.as_ptr().cast::<i32>();
    macro_rules! multiply {
        ($high:literal, $low:literal, $a:literal, $b:literal) => {
            // SAFETY: `ByteTiles` exists only while this thread's tiles are configured. Tiles 4 and 5 read 16 rows, 64 bytes
            // apart; tiles 6 and 7 read the codes.
            unsafe {
                asm!(
                    concat!("tileloadd ", $b, ", [{codes} + {line}*1]"),
                    concat!("tileloadd ", $a, ", [{high} + {line}*1]"),
                    concat!("tilezero ", $high),
                    concat!("tilezero ", $low),
                    concat!("tdpbsud ", $high, ", ", $a, ", ", $b),
                    concat!("tileloadd ", $a, ", [{low} + {line}*1]"),
                    concat!("tdpbsud ", $low, ", ", $a, ", ", $b),
                    codes = in(reg) codes.as_ptr(),
                    high = in(reg) row.add(4 * part), low = in(reg) row.add(8 + 4 * part),
                    line = in(reg) 64usize,
                    options(nostack, readonly, preserves_flags)
                );
            }
        };
    }
    if even {
        multiply!("tmm0", "tmm1", "tmm4", "tmm6");
    } else {
        multiply!("tmm2", "tmm3", "tmm5", "tmm7");
    }
}

/// Stores the dot products of an even or odd group.
#[inline(always)]
fn store(_: &ByteTiles, to: &mut Dots, even: bool) {
    macro_rules! store {
        ($high:literal, $low:literal) => {
            // SAFETY: as before; the destinations hold 16 rows of 64 bytes.
            unsafe {
                asm!(
                    concat!("tilestored [{to} + {line}*1], ", $high),
                    concat!("tilestored [{below} + {line}*1], ", $low),
                    to = in(reg) to.0[0].as_mut_ptr(), below = in(reg) to.0[1].as_mut_ptr(),
                    line = in(reg) 64usize,
                    options(nostack, preserves_flags)
                );
            }
        };
    }
    if even {
        store!("tmm0", "tmm1");
    } else {
        store!("tmm2", "tmm3");
    }
}
