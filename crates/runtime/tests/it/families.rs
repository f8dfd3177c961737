//! Every family against the hidden states of transformers.

use sconce_core::engine::Encoder;
use sconce_core::placement::{Dtype, EngineId};
use sconce_testkit::compare::largest;
use sconce_testkit::goldens::{self, Golden, TINY, apart};

use crate::support::{INTERPRETERS, load_on, spec, tokens, worst};

/// Every engine with every family.
fn cells() -> impl Iterator<Item = (EngineId, &'static str)> {
    INTERPRETERS.into_iter().flat_map(|engine| TINY.map(|name| (engine, name)))
}

fn encoder(engine: EngineId, name: &str) -> Box<dyn Encoder> {
    load_on(engine, &spec(name), Dtype::F32).expect("the golden loads")
}

#[test]
fn hidden_states_are_those_of_transformers() {
    for (engine, name) in cells() {
        let golden = Golden::read(name, "golden.safetensors");
        let worst = worst(&golden, encoder(engine, name).as_ref());
        println!("{engine} {name}: {worst:.1e}");
        assert!(worst < 1e-4, "{engine} {name} is off by {worst}");
    }
}

#[test]
fn every_length_from_1_to_512_is_right_alone_and_in_mixed_batches() {
    for (engine, name) in cells() {
        let golden = Golden::read(name, "golden.safetensors");
        let ids = golden.ids("ids");
        let means = golden.rows("mean");
        let encoder = encoder(engine, name);
        let mean = |values: &[f32]| -> Vec<f32> {
            let count = values.len() / 32;
            (0..32).map(|d| values.iter().skip(d).step_by(32).sum::<f32>() / count as f32).collect()
        };
        // Every length once, each batch mixing short with long.
        for first in 1..=32 {
            let lengths: Vec<usize> = (0..16).map(|n| first + 32 * (n * 7 % 16)).collect();
            let sequences: Vec<&[u32]> = lengths.iter().map(|&length| &ids[..length]).collect();
            for (length, values) in lengths.iter().zip(tokens(encoder.as_ref(), &sequences, None)) {
                let off = apart(&mean(&values), means[length - 1]);
                assert!(off < 1e-4, "{engine} {name} at length {length} is off by {off}");
            }
        }
    }
}

#[test]
fn a_text_alone_equals_the_same_text_in_a_batch() {
    for (engine, name) in cells() {
        let ids = Golden::read(name, "golden.safetensors").ids("ids");
        let encoder = encoder(engine, name);
        let sequences: Vec<&[u32]> = [3, 200, 1, 64, 511, 33].iter().map(|&length| &ids[..length]).collect();
        let together = tokens(encoder.as_ref(), &sequences, None);
        for (ids, together) in sequences.iter().zip(together) {
            let alone: Vec<f64> =
                tokens(encoder.as_ref(), &[ids], None).remove(0).into_iter().map(f64::from).collect();
            let off = apart(&together, &alone);
            assert!(off <= 1e-5, "{engine} {name}: {} tokens differ by {off}", ids.len());
        }
    }
}

#[test]
fn half_precision_stays_near_at_every_length() {
    for (engine, name) in cells() {
        let golden = Golden::read(name, "golden.safetensors");
        let ids = golden.ids("ids");
        for (dtype, allowed) in [(Dtype::F16, 1e-4), (Dtype::Bf16, 1e-2)] {
            let encoder = match load_on(engine, &spec(name), dtype) {
                Ok(encoder) => encoder,
                Err(obstacle) => {
                    println!("{engine} {dtype}: {obstacle}");
                    assert!(engine == EngineId::Native && obstacle.code() == "op_missing", "{obstacle}");
                    continue;
                }
            };
            for length in golden.lengths() {
                let got = tokens(encoder.as_ref(), &[&ids[..length]], None).remove(0);
                let want = golden.rows(&format!("hidden.{length}"));
                let far = largest(got.chunks(32).zip(want).map(|(a, b)| 1.0 - goldens::cosine(a, b)));
                assert!(far < allowed, "{engine} {name} {dtype} at length {length}: 1-cos {far}");
            }
        }
    }
}
