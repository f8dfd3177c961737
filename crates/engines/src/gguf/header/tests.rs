//! Valid headers are read whole; invalid ones are rejected with the value.

use std::fs;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sconce_testkit::draws::{Draws, fuzz_inputs};
use sconce_testkit::gguf::{self, Tensor, Value};
use sconce_testkit::goldens;

use super::super::config::hub_config;
use super::super::metadata::Value as Found;
use super::*;

fn parse(bytes: &[u8]) -> Parsed<Header> {
    Header::parse(bytes, bytes.len() as u64)
}

fn tensor(name: &str, sizes: &[u64], kind: u32, length: usize) -> Tensor {
    Tensor { name: name.to_owned(), sizes: sizes.to_vec(), kind, bytes: vec![7; length] }
}

/// A file with every shape of value and two tensors.
fn valid() -> Vec<u8> {
    let texts = ["", "a", "né"].map(str::to_owned).to_vec();
    let metadata = [
        ("general.architecture", Value::String("bert".to_owned())),
        ("bert.block_count", Value::U32(6)),
        ("bert.attention.layer_norm_epsilon", Value::F32(1e-12)),
        ("bert.attention.causal", Value::Bool(false)),
        ("split.count", Value::U16(1)),
        ("split.tensors.count", Value::I32(2)),
        ("tokenizer.ggml.tokens", Value::Strings(texts)),
        ("tokenizer.ggml.token_type", Value::I32s(vec![1, -3, 2])),
    ];
    gguf::file(&metadata, &[tensor("a.weight", &[32, 2], 8, 68), tensor("b.bias", &[3], 0, 12)])
}

#[test]
fn a_valid_header_is_read() {
    let bytes = valid();
    let header = parse(&bytes).expect("a valid file");
    let metadata = &header.metadata;
    assert_eq!(metadata.string("general.architecture"), Some("bert"));
    assert_eq!(metadata.integer("bert.block_count"), Some(6));
    let epsilon = metadata.get("bert.attention.layer_norm_epsilon").and_then(Found::as_f64);
    assert_eq!(epsilon, Some(1e-12));
    assert_eq!(metadata.get("bert.attention.causal").and_then(Found::as_bool), Some(false));
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Found::as_strings);
    assert_eq!(tokens.expect("strings").iter().collect::<Vec<_>>(), ["", "a", "né"]);
    let types = metadata.get("tokenizer.ggml.token_type").and_then(Found::as_numbers);
    let types: Vec<_> = types.expect("numbers").iter().collect();
    assert_eq!(types, [1, -3, 2].map(Found::Signed));
    let [a, b] = &header.tensors[..] else { panic!("two tensors") };
    assert_eq!(
        (a.shape.as_slice(), a.stored, a.length, a.values()),
        (&[2, 32][..], StoredType::Q8_0, 68, 64)
    );
    assert_eq!((b.shape.as_slice(), b.stored, b.length), (&[3][..], StoredType::F32, 12));
    assert_eq!(b.start - a.start, 96);
    assert_eq!(b.start + b.length, bytes.len() as u64);
    let older = [&b"GGUF\x02"[..], &bytes[5..]].concat();
    assert_eq!(parse(&older), Ok(header));
}

#[test]
fn a_truncated_file_is_rejected_at_every_byte() {
    let bytes = valid();
    for end in 0..bytes.len() {
        assert!(parse(&bytes[..end]).is_err(), "{end} bytes");
    }
}

/// Rejects `bytes` with an error that contains `expected`.
fn rejects(bytes: &[u8], expected: &str) {
    let error = parse(bytes).expect_err(expected);
    assert!(error.contains(expected), "`{error}` does not contain `{expected}`");
}

#[test]
fn errors_name_the_value() {
    rejects(b"GGML\x03\0\0\0", "not `GGUF`");
    rejects(b"GGUF\x01\0\0\0", "version 1 is not read");
    rejects(b"GGUF\0\0\0\x03", "version 3 in big-endian order");
    let with = |tensors: &[Tensor]| gguf::file(&[], tensors);
    rejects(&with(&[tensor("a", &[33], 8, 34)]), "rows of 33 values are no whole blocks of 32 (Q8_0)");
    rejects(&with(&[tensor("a", &[256], 16, 66)]), "tensor `a`: its type IQ2_XXS (16) is not read");
    rejects(&with(&[tensor("a", &[4], 99, 16)]), "its type 99 is not read; known: F32, F16, BF16");
    rejects(&with(&[tensor("a", &[0, 4], 0, 16)]), "its shape [0, 4] has no values");
    rejects(&with(&[tensor("a", &[1 << 32, 1 << 32], 0, 16)]), "has too many values");
    rejects(&with(&[tensor("a", &[1 << 30, 1 << 30], 0, 16)]), "beyond the file");
    rejects(&with(&[tensor("a", &[u64::MAX / 4], 0, 16)]), "beyond the file");
    rejects(&with(&[tensor("a", &[1; 5], 0, 4)]), "5 dimensions");
    rejects(&with(&[tensor("a", &[], 0, 4)]), "0 dimensions");
    rejects(&with(&[tensor("a", &[1], 0, 4), tensor("a", &[1], 0, 4)]), "the tensor `a` occurs twice");
    rejects(&with(&[tensor("a", &[16], 0, 4), tensor("b", &[8], 0, 32)]), "the tensors `a` and `b` overlap");
    rejects(&with(&[tensor(&"a".repeat(257), &[1], 0, 4)]), "a tensor name of 257 bytes");
    let key = |name: &str, value: Value| gguf::file(&[(name, value)], &[]);
    rejects(&key("general.alignment", Value::U32(24)), "`general.alignment` is no power of two");
    rejects(&key("general.alignment", Value::U32(0)), "`general.alignment` is no power of two");
    rejects(&key(&"k".repeat(1 << 16), Value::U32(0)), "a key of 65536 bytes");
    let twice = [("k", Value::U32(0)), ("k", Value::U32(1))];
    rejects(&gguf::file(&twice, &[]), "the key `k` occurs twice");
}

/// A header with one key whose value has these bytes.
fn with_value(bytes: &[u8]) -> Vec<u8> {
    let counts = [0_u64, 1].map(u64::to_le_bytes).concat();
    [b"GGUF\x03\0\0\0", &counts[..], &gguf::string("k"), bytes].concat()
}

#[test]
fn values_that_no_file_can_hold_are_rejected() {
    let array =
        |kind: u32, count: u64| [&[9, 0, 0, 0][..], &kind.to_le_bytes(), &count.to_le_bytes()].concat();
    rejects(&with_value(&array(9, 1)), "key `k`: an array of arrays");
    rejects(&with_value(&array(13, 1)), "an array of the unknown type 13");
    rejects(&with_value(&array(8, u64::MAX)), "exceeds the file");
    rejects(&with_value(&array(12, u64::MAX / 8)), "exceeds the file");
    rejects(&with_value(&array(0, 1 << 40)), "an array of length 1099511627776");
    rejects(&with_value(&[13, 0, 0, 0, 0]), "unknown value type 13");
    rejects(&with_value(&[7, 0, 0, 0, 2]), "a boolean of value 2");
    rejects(&with_value(&[&[8, 0, 0, 0][..], &[0xff; 8]].concat()), "exceeds the file");
    rejects(&with_value(&[&[8, 0, 0, 0, 1][..], &[0; 7], &[0xff]].concat()), "is not UTF-8");
    let halves = [array(8, 2), gguf::string("a"), vec![1, 0, 0, 0, 0, 0, 0, 0, 0xc3]].concat();
    rejects(&with_value(&halves), "not UTF-8");
    let split =
        [array(8, 2), vec![1, 0, 0, 0, 0, 0, 0, 0, 0xc3], vec![1, 0, 0, 0, 0, 0, 0, 0, 0xa9]].concat();
    rejects(&with_value(&split), "ends within a character");
}

#[test]
fn counts_beyond_the_file_are_rejected() {
    let counts = |tensors: u64, keys: u64| {
        [b"GGUF\x03\0\0\0", &tensors.to_le_bytes()[..], &keys.to_le_bytes(), &[0; 64]].concat()
    };
    rejects(&counts(0, u64::MAX), "18446744073709551615 metadata keys");
    rejects(&counts(0, 1000), "the number of metadata keys 1000");
    rejects(&counts(u64::MAX, 0), "18446744073709551615 tensors");
    rejects(&counts(1000, 0), "the number of tensors 1000");
}

/// An array of `count` empty strings.
fn empty_strings(count: u64) -> Vec<u8> {
    let mut bytes = [&[9, 0, 0, 0, 8, 0, 0, 0][..], &count.to_le_bytes()].concat();
    bytes.resize(bytes.len() + 8 * count as usize, 0);
    bytes
}

#[test]
fn the_largest_header_is_rejected_within_a_tenth_of_a_second() {
    let most = 1 << 21;
    rejects(&with_value(&empty_strings(most + 1)), "its arrays have 2097153 strings");
    // A second key, whose length exceeds the file, after as many strings as are read.
    let mut bytes = with_value(&empty_strings(most));
    bytes[16] = 2;
    bytes.extend([0xff; 64]);
    let measure = || {
        let start = Instant::now();
        rejects(&bytes, "a key of 18446744073709551615 bytes");
        start.elapsed()
    };
    // Other processes may take the CPU meanwhile.
    let best = (0..5).map(|_| measure()).min().expect("five measurements");
    assert!(best < Duration::from_millis(100), "{best:?}");
}

#[test]
fn mutated_headers_of_models_never_panic() {
    let folder = goldens::folder("gguf");
    let files = fs::read_dir(folder).expect("goldens").map(|file| fs::read(file.expect("a file").path()));
    // Headers, with the length of their file.
    let corpus: Vec<(Vec<u8>, u64)> = files
        .map(|bytes| {
            let mut bytes = bytes.expect("it is read");
            let length = bytes.len() as u64;
            let header = parse(&bytes).expect("it is valid");
            bytes.truncate(header.tensors.iter().map(|tensor| tensor.start).min().unwrap_or(length) as usize);
            (bytes, length)
        })
        .collect();
    let (mut draws, mut read) = (Draws(5), 0);
    for _ in 0..fuzz_inputs(20_000) {
        let (mut bytes, length) = corpus[draws.below(corpus.len())].clone();
        let other = draws.below(corpus.len());
        draws.mutate(&mut bytes, &corpus[other].0);
        if let Ok(header) = Header::parse(&bytes[..], length) {
            read += 1;
            let end = header.tensors.iter().map(|tensor| tensor.start + tensor.length).max();
            assert!(end.unwrap_or(0) <= length);
            let _ = hub_config(&[header], &|_| None);
        }
    }
    assert!(read > 0, "no mutated header is valid");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_mutated_header_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = valid();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(header) = parse(&bytes) {
            let end = header.tensors.iter().map(|tensor| tensor.start + tensor.length).max();
            prop_assert!(end.unwrap_or(0) <= bytes.len() as u64);
            let held: u64 = header.tensors.iter().map(|tensor| tensor.length).sum();
            prop_assert!(held <= bytes.len() as u64);
        }
    }

    #[test]
    fn random_lengths_are_rejected_without_allocating_them(
        at in 8..200_usize,
        value in any::<u64>(),
    ) {
        let mut bytes = valid();
        let end = (at + 8).min(bytes.len());
        bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        let _ = parse(&bytes);
    }
}
