//! Next tokens of a real quantized model beside those of llama.cpp, on the same tokens.

use std::path::PathBuf;
use std::{env, fs};

use sconce::card::{self, Overrides};
use sconce_core::engine::ModelSpec;
use sconce_core::placement::{Dtype, EngineId};
use sconce_testkit::compare::largest;
use sconce_testkit::{goldens, parts};
use serde::Deserialize;

use crate::decoders::logits;
use crate::support::load_on;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<String>,
    texts: Vec<Text>,
}

/// A prompt and its continuation by llama.cpp.
#[derive(Deserialize)]
struct Text {
    ids: Vec<u32>,
    /// The two most likely next tokens after each token.
    top: Vec<[u32; 2]>,
    /// The largest difference of a logit between CPU variants of llama.cpp.
    apart: Vec<f32>,
}

/// The most likely token, and by how much its logit exceeds the next.
fn top(logits: &[f32]) -> (u32, f32) {
    let (mut first, mut second) = ((0, f32::NEG_INFINITY), f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(logits) {
        if logit > first.1 {
            (first, second) = ((token, logit), first.1);
        } else if logit > second {
            second = logit;
        }
    }
    (first.0, first.1 - second)
}

/// The golden of `scripts/goldens/llama_cpp.py`: the committed one, or the file in `SCONCE_LLAMA_CPP_GOLDEN`.
fn golden() -> Golden {
    let smollm2 = || goldens::folder("llama-cpp").join("smollm2.json");
    let path = env::var_os("SCONCE_LLAMA_CPP_GOLDEN").map_or_else(smollm2, PathBuf::from);
    serde_json::from_slice(&fs::read(path).expect("it is there")).expect("it is whole")
}

/// The model of the golden: that of `scripts/parts smollm2`, or the file in `SCONCE_LLAMA_CPP_MODEL`.
fn model() -> ModelSpec {
    let smollm2 = || parts::folder("smollm2").join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let file = env::var_os("SCONCE_LLAMA_CPP_MODEL").map_or_else(smollm2, PathBuf::from);
    card::read("model", &file, &Overrides::default()).expect("it is a model")
}

#[test]
fn next_tokens_are_those_of_f32_where_llama_cpp_is_sure() {
    let golden = golden();
    assert_eq!((golden.prompts.len(), golden.texts.len()), (20, 20));
    let spec = model();
    let sequences: Vec<&[u32]> = golden.texts.iter().map(|text| &text.ids[..]).collect();
    let longest = sequences.iter().map(|ids| ids.len()).max().unwrap_or(0);
    let tops = |engine, dtype| -> Vec<(u32, f32)> {
        let encoder = load_on(engine, &spec, dtype).expect("it loads");
        let rows = logits(encoder.as_ref(), &sequences, 24, longest);
        rows.iter().flatten().map(|row| top(row)).collect()
    };
    let reference = tops(EngineId::Candle, Dtype::F32);
    let apart: Vec<f32> = golden.texts.iter().flat_map(|text| &text.apart).copied().collect();
    assert_eq!(reference.len(), apart.len());
    // Returns the number of equal tokens, and the first that is not allowed. Others are allowed where the reference is
    // nearly undecided.
    let check = |name: &str, tokens: &mut dyn Iterator<Item = u32>| {
        let (mut same, mut wrong) = (0, None);
        for ((number, token), ((wanted, gap), apart)) in tokens.enumerate().zip(reference.iter().zip(&apart))
        {
            same += usize::from(*wanted == token);
            if *wanted != token && *gap >= 2.0 * apart {
                wrong.get_or_insert(format!("{token} for {wanted} at {number}, {gap} apart of {apart}"));
            }
        }
        println!("{name}: {same} of {} next tokens are those of the reference", reference.len());
        (same, wrong)
    };
    let (same_of_llama, of_llama) =
        check("llama.cpp", &mut golden.texts.iter().flat_map(|text| &text.top).map(|top| top[0]));
    for dtype in [Dtype::F32, Dtype::Int4] {
        let native = tops(EngineId::Native, dtype);
        let (same, wrong) = check(&format!("native {dtype}"), &mut native.iter().map(|(token, _)| *token));
        assert_eq!(wrong, None, "native {dtype}");
        // Quantized, both round activations to 8 bits. Which of two nearly equal tokens wins is chance: counts of equal
        // roundings differ by a few of a thousand.
        let least = if dtype == Dtype::F32 { reference.len() } else { same_of_llama };
        let least = (995 * least).div_ceil(1000);
        assert!(same >= least, "native {dtype}: {same}, llama.cpp: {same_of_llama}");
    }
    assert_eq!(of_llama, None, "llama.cpp");
}

#[test]
fn candle_multiplies_by_the_blocks_of_the_file() {
    let (golden, spec) = (golden(), model());
    let sequences: Vec<&[u32]> = golden.texts.iter().take(2).map(|text| &text.ids[..30]).collect();
    let rows = |dtype| -> Vec<Vec<f32>> {
        let encoder = load_on(EngineId::Candle, &spec, dtype).expect("it loads");
        logits(encoder.as_ref(), &sequences, 24, 30).concat()
    };
    let (wanted, got) = (rows(Dtype::F32), rows(Dtype::Int4));
    // Candle rounds activations to 8 bits on the CPU. Logits of other weights would be apart by their whole size.
    let apart = |(got, wanted): (&Vec<f32>, &Vec<f32>)| {
        let apart: f64 = got.iter().zip(wanted).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        apart / wanted.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>()
    };
    let apart: Vec<f64> = got.iter().zip(&wanted).map(apart).collect();
    let mean = apart.iter().sum::<f64>() / apart.len() as f64;
    println!("candle int4: mean {mean:.1e}, largest {:.1e}", largest(apart.iter().copied()));
    assert!(mean > 0.0 && mean < 0.01 && largest(apart.into_iter()) < 0.05, "{mean}");
    let same = got.iter().zip(&wanted).filter(|(got, wanted)| top(got).0 == top(wanted).0).count();
    assert!(10 * same >= 9 * wanted.len(), "{same} of {} next tokens", wanted.len());
}
