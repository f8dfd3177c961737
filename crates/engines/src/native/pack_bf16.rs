//! Weights in bf16: as tiles, or in panels that are widened for products in f32.

use sconce_kernels::bf16::{Bf16, MatrixBf16, STEP, narrow};
use sconce_kernels::gemm::PackedMatrixBf16;
use sconce_kernels::isa::Isa;
use sconce_kernels::team::Team;

use super::weights::{Packing, Table};
use crate::gguf::blocks::StoredType;
use crate::stored_tensor::StoredTensor;
use crate::weight::Weight;

/// Packs matrices as bf16 tiles.
pub(super) struct PackBf16(pub(super) Bf16, pub(super) Team);

impl Packing<MatrixBf16> for PackBf16 {
    fn matrix(&self, weight: Weight, outputs: usize, inputs: usize) -> MatrixBf16 {
        MatrixBf16::pack_rows((self.0, &self.1), outputs, inputs, |output, to| weight.row(output, to))
    }

    fn table(&self, rows: Vec<f32>) -> Table {
        table(rows)
    }

    fn half_table(&self, rows: &StoredTensor) -> Table {
        half_table(rows)
    }

    fn padded(&self, outputs: usize) -> usize {
        outputs.next_multiple_of(STEP)
    }

    fn part(&self, width: usize) -> usize {
        width.next_multiple_of(STEP)
    }
}

/// Packs matrices in bf16 for f32 kernels.
pub(super) struct PackWidened(pub(super) Isa, pub(super) Team);

impl Packing<PackedMatrixBf16> for PackWidened {
    fn matrix(&self, weight: Weight, outputs: usize, inputs: usize) -> PackedMatrixBf16 {
        PackedMatrixBf16::pack_rows((self.0, &self.1), outputs, inputs, |output, to| weight.row(output, to))
    }

    fn table(&self, rows: Vec<f32>) -> Table {
        table(rows)
    }

    fn half_table(&self, rows: &StoredTensor) -> Table {
        half_table(rows)
    }

    fn padded(&self, outputs: usize) -> usize {
        outputs
    }

    fn part(&self, width: usize) -> usize {
        width
    }
}

fn table(rows: Vec<f32>) -> Table {
    Table::Bf16(rows.into_iter().map(narrow).collect())
}

fn half_table(rows: &StoredTensor) -> Table {
    if rows.stored != StoredType::BF16 {
        return table(rows.dequantize());
    }
    let values = rows.bytes.as_chunks::<2>().0;
    Table::Bf16(values.iter().map(|&value| u16::from_le_bytes(value)).collect())
}
