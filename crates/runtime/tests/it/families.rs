//! Every family against the hidden states that transformers gives, and every golden against being blind.

use sconce::card::{self, Overrides};
use sconce_core::batch::{Batch, Output, Want};
use sconce_core::device::Device;
use sconce_core::engine::{Encoder, Engine, Subject};
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_engines::candle::CandleEngine;
use sconce_testkit::goldens::{self, Golden, TINY, apart};

fn subject(name: &str) -> Subject {
    card::read(name, &goldens::folder(name), &Overrides::default()).expect("the golden is a model")
}

fn load(subject: &Subject, dtype: Dtype) -> Box<dyn Encoder> {
    let weights = subject.card.weights[0].name.clone();
    let placement = Placement { engine: EngineId::Candle, device: Device::Cpu, weights, dtype };
    CandleEngine::new(2).load(subject, &placement).expect("the golden loads")
}

fn tokens(encoder: &mut dyn Encoder, sequences: &[&[u32]], types: Option<&[u32]>) -> Vec<Vec<f32>> {
    let mut batch = Batch::new(Want::Tokens);
    for ids in sequences {
        batch.push(ids, types.unwrap_or(&vec![0; ids.len()]), 0);
    }
    let Output::Tokens(rows) = encoder.encode(&batch).expect("the batch is computed") else {
        panic!("asked for tokens");
    };
    let mut values = rows.values.as_slice();
    let mut split = |ids: &&[u32]| {
        let (own, rest) = values.split_at(ids.len() * rows.width);
        values = rest;
        own.to_vec()
    };
    sequences.iter().map(|ids| split(ids)).collect()
}

/// The largest difference over every hidden state that the golden has.
fn worst(golden: &Golden, encoder: &mut dyn Encoder) -> f64 {
    let ids = golden.ids("ids");
    let lengths = golden.lengths();
    let singles = lengths.iter().map(|&length| {
        let got = tokens(encoder, &[&ids[..length]], None).remove(0);
        apart(&got, golden.numbers(&format!("hidden.{length}")))
    });
    let mut worst = singles.fold(0.0, f64::max);
    if golden.has("types") {
        let got = tokens(encoder, &[&ids[..64]], Some(&golden.ids("types"))).remove(0);
        worst = worst.max(apart(&got, golden.numbers("hidden.types")));
    }
    if golden.has("ids.pad") {
        let got = tokens(encoder, &[&golden.ids("ids.pad")], None).remove(0);
        worst = worst.max(apart(&got, golden.numbers("hidden.pad")));
    }
    worst
}

#[test]
fn hidden_states_are_those_of_transformers() {
    for name in TINY {
        let golden = Golden::read(name, "golden.safetensors");
        let worst = worst(&golden, load(&subject(name), Dtype::F32).as_mut());
        println!("{name}: {worst:.1e}");
        assert!(worst < 1e-4, "{name} is off by {worst}");
    }
}

#[test]
fn every_length_from_1_to_512_is_right_alone_and_in_mixed_batches() {
    for name in TINY {
        let golden = Golden::read(name, "golden.safetensors");
        let ids = golden.ids("ids");
        let means = golden.rows("mean");
        let mut encoder = load(&subject(name), Dtype::F32);
        let mean = |values: &[f32]| -> Vec<f32> {
            let count = values.len() / 32;
            (0..32).map(|d| values.iter().skip(d).step_by(32).sum::<f32>() / count as f32).collect()
        };
        // Every length once, each batch mixing short with long.
        for first in 1..=32 {
            let lengths: Vec<usize> = (0..16).map(|n| first + 32 * (n * 7 % 16)).collect();
            let sequences: Vec<&[u32]> = lengths.iter().map(|&length| &ids[..length]).collect();
            for (length, values) in lengths.iter().zip(tokens(encoder.as_mut(), &sequences, None)) {
                let off = apart(&mean(&values), means[length - 1]);
                assert!(off < 1e-4, "{name} at length {length} is off by {off}");
            }
        }
    }
}

#[test]
fn a_text_alone_equals_the_same_text_in_a_batch() {
    for name in TINY {
        let ids = Golden::read(name, "golden.safetensors").ids("ids");
        let mut encoder = load(&subject(name), Dtype::F32);
        let sequences: Vec<&[u32]> = [3, 200, 1, 64, 511, 33].iter().map(|&length| &ids[..length]).collect();
        let together = tokens(encoder.as_mut(), &sequences, None);
        for (ids, together) in sequences.iter().zip(together) {
            let alone: Vec<f64> =
                tokens(encoder.as_mut(), &[ids], None).remove(0).into_iter().map(f64::from).collect();
            let off = apart(&together, &alone);
            assert!(off <= 1e-5, "{name}: {} tokens differ by {off}", ids.len());
        }
    }
}

#[test]
fn half_precision_stays_near_at_every_length() {
    for name in TINY {
        let golden = Golden::read(name, "golden.safetensors");
        let ids = golden.ids("ids");
        for (dtype, allowed) in [(Dtype::F16, 1e-4), (Dtype::Bf16, 1e-2)] {
            let mut encoder = load(&subject(name), dtype);
            for length in golden.lengths() {
                let got = tokens(encoder.as_mut(), &[&ids[..length]], None).remove(0);
                let want = golden.rows(&format!("hidden.{length}"));
                let far =
                    got.chunks(32).zip(want).map(|(a, b)| 1.0 - goldens::cosine(a, b)).fold(0.0, f64::max);
                assert!(far < allowed, "{name} {dtype} at length {length}: 1-cos {far}");
            }
        }
    }
}
