//! Which instructions there are for products of bytes.

use crate::detect::{has_amx_int8, has_avx512_vnni};
use crate::isa::Isa;

/// Whether there are vectors with dot products of bytes.
pub(super) fn has_vectors(isa: Isa) -> bool {
    (Isa::Avx512..=Isa::Amx).contains(&isa) && has_avx512_vnni()
}

/// Whether there are tiles of bytes.
pub(super) fn has_tiles(isa: Isa) -> bool {
    isa == Isa::Amx && has_amx_int8() && has_vectors(isa)
}
