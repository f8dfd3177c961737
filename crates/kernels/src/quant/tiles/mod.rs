//! Products on AMX tiles of bytes, of up to 16 rows at a time. Dot products are integers, and all else is computed as with
//! vectors, so the results are the same bit for bit.

mod byte_blocks;
mod byte_groups;
mod byte_tiles;
mod planes;
mod super_blocks;

use std::ops::Range;
use std::slice::Chunks;

use super::format::QuantFormat;
use super::panel::Panel;
use super::rows::{BlockRows, QuantizedBlock};
use super::{PANEL, VECTOR};
use crate::isa::Isa;
pub(super) use byte_tiles::ByteTiles;

/// Rows in blocks that tiles multiply.
pub(super) trait TileProducts: QuantizedBlock {
    /// Blocks of a part of a panel: the rows of a part stay in the L1 cache for several panels.
    const PART: usize;

    /// Configures the tiles for products with this format, if there are any.
    fn unit(isa: Isa, format: QuantFormat) -> Option<ByteTiles>;

    /// Adds the products of the rows of some tiles with a part of a panel to their sums. There are sums for 16 rows of each
    /// tile.
    fn add(
        unit: &mut ByteTiles,
        panel: &Panel<'_>,
        rows: &BlockRows<Self>,
        part: &Part<'_>,
        sums: &mut [[f32; PANEL]],
    );
}

/// A part of a product.
pub(super) struct Part<'a> {
    pub(super) blocks: Range<usize>,
    /// Tiles of rows.
    pub(super) tiles: Range<usize>,
    /// The codes of the next part, to be prefetched.
    pub(super) next: &'a [u8],
}

/// Codes in at most `count` pieces of whole lines: few are prefetched at a time.
fn pieces(codes: &[u8], count: usize) -> Chunks<'_, u8> {
    codes.chunks(codes.len().div_ceil(count.max(1)).next_multiple_of(VECTOR).max(VECTOR))
}
