//! Every family of the registry against its goldens, on both interpreters: full and long texts, batches, dtypes.

use sconce_core::engine::Encoder;
use sconce_core::placement::{Dtype, EngineId};
use sconce_engines::families::FAMILIES;
use sconce_testkit::compare::largest;
use sconce_testkit::goldens::{self, Golden, apart};

use crate::support::{INTERPRETERS, load_on, spec, tokens, worst};

/// Every golden of the registry.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.goldens).copied()
}

/// Every engine with every golden that `tests/it/families.rs` does not hold it to.
fn cells() -> impl Iterator<Item = (EngineId, &'static str)> {
    let new = || names().filter(|name| !goldens::TINY.contains(name));
    INTERPRETERS.into_iter().flat_map(move |engine| new().map(move |name| (engine, name)))
}

fn encoder(engine: EngineId, name: &str) -> Box<dyn Encoder> {
    load_on(engine, &spec(name), Dtype::F32).expect("the golden loads")
}

fn golden(name: &str) -> Golden {
    Golden::read(name, "golden.safetensors")
}

/// The lengths `L` for which there are the last rows, `tail.L`.
fn tails(golden: &Golden) -> impl Iterator<Item = usize> {
    [300, 2100].into_iter().filter(|length| golden.has(&format!("tail.{length}")))
}

#[test]
fn every_family_has_a_golden() {
    for family in FAMILIES {
        let goldens = [family.goldens, family.generation_goldens].concat();
        assert!(!goldens.is_empty(), "{}", family.name);
        for name in goldens {
            assert!(goldens::folder(name).join("golden.safetensors").is_file(), "{name}");
        }
    }
    assert!(goldens::TINY.iter().all(|name| names().any(|known| known == *name)));
}

#[test]
fn hidden_states_are_those_of_the_reference() {
    for (engine, name) in cells() {
        let golden = golden(name);
        let worst = worst(&golden, encoder(engine, name).as_ref());
        println!("{engine} {name}: {worst:.1e}");
        assert!(worst < 1e-4, "{engine} {name} is off by {worst}");
    }
}

#[test]
fn every_length_is_right_in_mixed_batches() {
    for (engine, name) in cells() {
        let golden = golden(name);
        let (ids, means) = (golden.ids("ids"), golden.rows("mean"));
        let width = means[0].len();
        let encoder = encoder(engine, name);
        let mean = |values: &[f32]| -> Vec<f32> {
            let count = (values.len() / width) as f32;
            (0..width).map(|d| values.iter().skip(d).step_by(width).sum::<f32>() / count).collect()
        };
        // Every length once, each batch mixing short with long.
        for first in 1..=20 {
            let lengths: Vec<usize> = (0..8).map(|n| first + 20 * (n * 3 % 8)).collect();
            let sequences: Vec<&[u32]> = lengths.iter().map(|&length| &ids[..length]).collect();
            for (length, values) in lengths.iter().zip(tokens(encoder.as_ref(), &sequences, None)) {
                let off = apart(&mean(&values), means[length - 1]);
                assert!(off < 1e-4, "{engine} {name} at length {length} is off by {off}");
            }
        }
    }
}

#[test]
fn a_text_alone_equals_the_same_text_among_others() {
    for (engine, name) in cells() {
        let ids = golden(name).ids("ids");
        let encoder = encoder(engine, name);
        let sequences: Vec<&[u32]> = [3, 200, 1, 64, 319, 33].iter().map(|&length| &ids[..length]).collect();
        let together = tokens(encoder.as_ref(), &sequences, None);
        for (ids, together) in sequences.iter().zip(together) {
            let alone: Vec<f64> =
                tokens(encoder.as_ref(), &[ids], None).remove(0).into_iter().map(f64::from).collect();
            let off = apart(&together, &alone);
            assert!(off <= 2e-5, "{engine} {name}: {} tokens differ by {off}", ids.len());
        }
    }
}

#[test]
fn positions_are_right_far_out() {
    for (engine, name) in cells() {
        let golden = golden(name);
        let ids = golden.ids("ids");
        for length in tails(&golden) {
            let want = golden.numbers(&format!("tail.{length}"));
            let got = tokens(encoder(engine, name).as_ref(), &[&ids[..length]], None).remove(0);
            let off = apart(&got[got.len() - want.len()..], want);
            println!("{engine} {name} at {length}: {off:.1e}");
            assert!(off < 1e-4, "{engine} {name} at {length} is off by {off}");
        }
    }
}

#[test]
fn half_precision_stays_near_at_every_length_and_far_out() {
    for (engine, name) in cells() {
        let golden = golden(name);
        let (ids, width) = (golden.ids("ids"), golden.rows("mean")[0].len());
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let encoder = match load_on(engine, &spec(name), dtype) {
                Ok(encoder) => encoder,
                Err(obstacle) => {
                    assert!(engine == EngineId::Native && obstacle.code() == "op_missing", "{obstacle}");
                    continue;
                }
            };
            let mut far = 0.0f64;
            let whole = golden.lengths().into_iter().map(|length| (length, format!("hidden.{length}")));
            for (length, tensor) in
                whole.chain(tails(&golden).map(|length| (length, format!("tail.{length}"))))
            {
                let got = tokens(encoder.as_ref(), &[&ids[..length]], None).remove(0);
                let want = golden.numbers(&tensor);
                let got = &got[got.len() - want.len()..];
                let cosines = got.chunks(width).zip(want.chunks(width)).map(|(a, b)| goldens::cosine(a, b));
                far = largest(cosines.map(|cosine| 1.0 - cosine).chain([far]));
            }
            println!("{engine} {name} {dtype}: 1-cos {far:.1e}");
            let allowed = if dtype == Dtype::F16 { 1e-4 } else { 1e-3 };
            assert!(far < allowed, "{engine} {name} {dtype}: 1-cos {far}");
        }
    }
}
