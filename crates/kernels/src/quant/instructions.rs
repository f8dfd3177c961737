//! Which instructions there are for products of bytes.

use crate::detect::{has_amx_int8, has_avx_vnni, has_avx2_f16c, has_avx512_vnni};
use crate::isa::Isa;

/// Whether there are vectors of 256 bits.
pub(super) fn has_short_vectors(isa: Isa) -> bool {
    (Isa::Avx2..=Isa::Amx).contains(&isa) && has_avx2_f16c()
}

/// Whether there are vectors of 256 bits with dot products of bytes.
pub(super) fn has_byte_vectors(isa: Isa) -> bool {
    (Isa::AvxVnni..=Isa::Amx).contains(&isa) && has_avx_vnni()
}

/// Whether there are vectors of 512 bits with dot products of bytes.
pub(super) fn has_vectors(isa: Isa) -> bool {
    (Isa::Avx512..=Isa::Amx).contains(&isa) && has_avx512_vnni()
}

/// Whether there are tiles of bytes.
pub(super) fn has_tiles(isa: Isa) -> bool {
    isa == Isa::Amx && has_amx_int8() && has_vectors(isa)
}
