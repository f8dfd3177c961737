//! Block formats: how values are stored, and their conversion to f32.

mod i_quants;
mod k_quants;
mod legacy;
mod scale;

use std::fmt;

use half::{bf16, f16};
use sconce_kernels::quant::{CodeWidth, QuantFormat, QuantRow};

/// How the values of a tensor are stored: floats, or blocks of quantized values with their scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(non_camel_case_types, reason = "the names of the format")]
pub enum StoredType {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// 4 bits and a scale per 32 values.
    Q4_0,
    /// 4 bits, a scale and a minimum per 32 values.
    Q4_1,
    /// 5 bits and a scale per 32 values.
    Q5_0,
    /// 5 bits, a scale and a minimum per 32 values.
    Q5_1,
    /// 8 bits and a scale per 32 values.
    Q8_0,
    /// 2 bits, in super-blocks of 256 values.
    Q2_K,
    /// 3 bits, in super-blocks of 256 values.
    Q3_K,
    /// 4 bits, in super-blocks of 256 values.
    Q4_K,
    /// 5 bits, in super-blocks of 256 values.
    Q5_K,
    /// 6 bits, in super-blocks of 256 values.
    Q6_K,
    /// 4-bit indices of 16 uneven levels, and a scale per 32 values.
    IQ4_NL,
    /// 4-bit indices of 16 uneven levels, in super-blocks of 256 values.
    IQ4_XS,
}

impl StoredType {
    /// All types.
    pub const ALL: [StoredType; 15] = [
        StoredType::F32,
        StoredType::F16,
        StoredType::BF16,
        StoredType::Q4_0,
        StoredType::Q4_1,
        StoredType::Q5_0,
        StoredType::Q5_1,
        StoredType::Q8_0,
        StoredType::Q2_K,
        StoredType::Q3_K,
        StoredType::Q4_K,
        StoredType::Q5_K,
        StoredType::Q6_K,
        StoredType::IQ4_NL,
        StoredType::IQ4_XS,
    ];

    /// The type's number in GGUF files.
    fn number(self) -> u32 {
        match self {
            StoredType::F32 => 0,
            StoredType::F16 => 1,
            StoredType::BF16 => 30,
            StoredType::Q4_0 => 2,
            StoredType::Q4_1 => 3,
            StoredType::Q5_0 => 6,
            StoredType::Q5_1 => 7,
            StoredType::Q8_0 => 8,
            StoredType::Q2_K => 10,
            StoredType::Q3_K => 11,
            StoredType::Q4_K => 12,
            StoredType::Q5_K => 13,
            StoredType::Q6_K => 14,
            StoredType::IQ4_NL => 20,
            StoredType::IQ4_XS => 23,
        }
    }

    /// The type with this number in GGUF files.
    pub fn of(number: u32) -> Option<StoredType> {
        StoredType::ALL.into_iter().find(|stored| stored.number() == number)
    }

    /// The name of a number in GGUF files, known or not.
    pub(super) fn describe(number: u32) -> String {
        const OTHERS: [(u32, &str); 18] = [
            (9, "Q8_1"),
            (15, "Q8_K"),
            (16, "IQ2_XXS"),
            (17, "IQ2_XS"),
            (18, "IQ3_XXS"),
            (19, "IQ1_S"),
            (21, "IQ3_S"),
            (22, "IQ2_S"),
            (24, "I8"),
            (25, "I16"),
            (26, "I32"),
            (27, "I64"),
            (28, "F64"),
            (29, "IQ1_M"),
            (34, "TQ1_0"),
            (35, "TQ2_0"),
            (39, "MXFP4"),
            (40, "NVFP4"),
        ];
        let name = OTHERS.iter().find(|(other, _)| *other == number).map(|(_, name)| *name);
        name.map_or_else(|| number.to_string(), |name| format!("{name} ({number})"))
    }

    /// Values in a block.
    pub fn block_length(self) -> usize {
        match self {
            StoredType::F32 | StoredType::F16 | StoredType::BF16 => 1,
            StoredType::Q4_0
            | StoredType::Q4_1
            | StoredType::Q5_0
            | StoredType::Q5_1
            | StoredType::Q8_0
            | StoredType::IQ4_NL => legacy::LENGTH,
            StoredType::Q2_K
            | StoredType::Q3_K
            | StoredType::Q4_K
            | StoredType::Q5_K
            | StoredType::Q6_K
            | StoredType::IQ4_XS => k_quants::LENGTH,
        }
    }

    /// Size of a block in bytes.
    pub fn block_bytes(self) -> usize {
        match self {
            StoredType::F32 => 4,
            StoredType::F16 | StoredType::BF16 => 2,
            StoredType::Q4_0 => legacy::Q4_0,
            StoredType::Q4_1 => legacy::Q4_1,
            StoredType::Q5_0 => legacy::Q5_0,
            StoredType::Q5_1 => legacy::Q5_1,
            StoredType::Q8_0 => legacy::Q8_0,
            StoredType::Q2_K => k_quants::Q2_K,
            StoredType::Q3_K => k_quants::Q3_K,
            StoredType::Q4_K => k_quants::Q4_K,
            StoredType::Q5_K => k_quants::Q5_K,
            StoredType::Q6_K => k_quants::Q6_K,
            StoredType::IQ4_NL => i_quants::IQ4_NL,
            StoredType::IQ4_XS => i_quants::IQ4_XS,
        }
    }

    /// Whether values are quantized, with scales.
    pub fn is_quantized(self) -> bool {
        self.block_length() > 1
    }

    /// Size of `values` values in bytes; none if they are no whole blocks or too many.
    pub fn bytes_of(self, values: usize) -> Option<usize> {
        let blocks = values / self.block_length();
        (blocks * self.block_length() == values).then(|| blocks.checked_mul(self.block_bytes()))?
    }

    /// The format of quantized values; none of floats.
    pub fn quant_format(self) -> Option<QuantFormat> {
        use CodeWidth::{Eight, Four, Six};
        Some(match self {
            StoredType::F32 | StoredType::F16 | StoredType::BF16 => return None,
            StoredType::Q4_0 => legacy::symmetric(Four, 8),
            StoredType::Q4_1 => legacy::with_minimum(Four),
            StoredType::Q5_0 => legacy::symmetric(Six, 16),
            StoredType::Q5_1 => legacy::with_minimum(Six),
            StoredType::Q8_0 | StoredType::IQ4_NL => legacy::symmetric(Eight, legacy::SIGNED),
            StoredType::Q2_K => k_quants::SIXTEEN_WITH_MINIMUMS,
            StoredType::Q3_K => k_quants::sixteen_groups(k_quants::Q3_ZERO),
            StoredType::Q4_K => k_quants::eight_with_minimums(Four),
            StoredType::Q5_K => k_quants::eight_with_minimums(Six),
            StoredType::Q6_K => k_quants::sixteen_groups(k_quants::Q6_ZERO),
            StoredType::IQ4_XS => i_quants::EIGHT_GROUPS,
        })
    }

    /// Appends the codes and scales of whole blocks to `to`. Floats have none.
    pub fn unpack(self, bytes: &[u8], to: &mut QuantRow) {
        let block = match self {
            StoredType::F32 | StoredType::F16 | StoredType::BF16 => return,
            StoredType::Q4_0 => legacy::q4_0,
            StoredType::Q4_1 => legacy::q4_1,
            StoredType::Q5_0 => legacy::q5_0,
            StoredType::Q5_1 => legacy::q5_1,
            StoredType::Q8_0 => legacy::q8_0,
            StoredType::Q2_K => k_quants::q2_k,
            StoredType::Q3_K => k_quants::q3_k,
            StoredType::Q4_K => k_quants::q4_k,
            StoredType::Q5_K => k_quants::q5_k,
            StoredType::Q6_K => k_quants::q6_k,
            StoredType::IQ4_NL => i_quants::iq4_nl,
            StoredType::IQ4_XS => i_quants::iq4_xs,
        };
        bytes.chunks_exact(self.block_bytes()).for_each(|bytes| block(bytes, to));
    }

    /// The values in f32. Bytes after the last whole block are ignored.
    pub fn dequantize(self, bytes: &[u8]) -> Vec<f32> {
        let halves = || bytes.as_chunks::<2>().0.iter();
        match (self, self.quant_format()) {
            (_, Some(format)) => {
                let mut values = Vec::with_capacity(bytes.len() / self.block_bytes() * self.block_length());
                let mut row = QuantRow::default();
                for block in bytes.chunks_exact(self.block_bytes()) {
                    row.clear();
                    self.unpack(block, &mut row);
                    row.dequantize(format, &mut values);
                }
                values
            }
            (StoredType::F16, None) => halves().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
            (StoredType::BF16, None) => halves().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
            (_, None) => bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

#[cfg(test)]
mod tests;
