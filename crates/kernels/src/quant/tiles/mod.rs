//! Products of formats with super-blocks, with AMX tiles of bytes: up to 16 rows at a time. Dot products are integers, and all
//! else is computed as with vectors, so the results are the same bit for bit. Formats whose groups have factors of their own
//! would need a tile per group; vectors are as fast.

mod byte_blocks;
mod byte_tiles;
mod planes;
mod super_blocks;

pub(super) use byte_blocks::multiply as multiply_bytes;
pub(super) use byte_tiles::ByteTiles;
pub(super) use super_blocks::multiply;
