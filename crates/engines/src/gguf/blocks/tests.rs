//! Every format against golden bytes and values.

use std::fs;

use safetensors::SafeTensors;
use sconce_testkit::goldens;

use super::*;

/// Calls `check` with every format, its golden bytes and their values.
fn each_format(check: impl Fn(StoredType, &[u8], &[f32])) {
    let file =
        fs::read(goldens::folder("gguf-blocks").join("blocks.safetensors")).expect("the golden is there");
    let golden = SafeTensors::deserialize(&file).expect("the golden is whole");
    for stored in StoredType::ALL {
        let data =
            |part: &str| golden.tensor(&format!("{stored}.{part}")).expect("a golden of every format").data();
        let values = data("values").as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b));
        check(stored, data("bytes"), &values.collect::<Vec<_>>());
    }
}

/// Whether all bits are equal; NaN has no defined bits.
fn same(a: &[f32], b: &[f32]) -> bool {
    let equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    a.len() == b.len() && a.iter().zip(b).all(equal)
}

#[test]
fn values_equal_the_golden_bit_for_bit() {
    each_format(|stored, bytes, values| {
        assert!(values.len() >= 8 * stored.block_length(), "{stored}");
        assert_eq!(stored.bytes_of(values.len()), Some(bytes.len()), "{stored}");
        let found = stored.dequantize(bytes);
        let wrong = found.iter().zip(values).position(|(a, b)| !same(&[*a], &[*b]));
        assert!(same(&found, values), "{stored}: value {wrong:?} differs");
    });
}

#[test]
fn every_byte_of_a_block_counts() {
    each_format(|stored, bytes, values| {
        // The last block has ordinary scales.
        let (size, length) = (stored.block_bytes(), stored.block_length());
        let (block, values) = (&bytes[bytes.len() - size..], &values[values.len() - length..]);
        for bit in 0..8 * size {
            let mut changed = block.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!same(&stored.dequantize(&changed), values), "{stored}: bit {bit} has no effect");
        }
    });
}

#[test]
fn a_shifted_block_boundary_shows() {
    each_format(|stored, bytes, values| {
        let shifted = stored.dequantize(&bytes[1..]);
        assert_eq!(shifted.len(), values.len() - stored.block_length(), "{stored}");
        assert!(!same(&shifted, &values[..shifted.len()]), "{stored}");
    });
}

#[test]
fn sizes_are_whole_blocks() {
    assert_eq!(StoredType::Q4_K.bytes_of(512), Some(288));
    assert_eq!(StoredType::Q4_K.bytes_of(511), None);
    assert_eq!(StoredType::F16.bytes_of(3), Some(6));
    assert_eq!(StoredType::F32.bytes_of(usize::MAX), None);
    assert_eq!(StoredType::BF16.to_string(), "BF16");
    assert_eq!(StoredType::of(16), None);
    assert_eq!(StoredType::describe(16), "IQ2_XXS (16)");
    assert_eq!(StoredType::describe(99), "99");
}
