//! A real model against sentence-transformers on 2,000 real texts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use sconce::{Dtype, EngineId, Model};
use sconce_testkit::compare::smallest;
use sconce_testkit::goldens::{Golden, apart, cosine};
use serde_json::Value;

use crate::support::{Home, INTERPRETERS, load_on, spec};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn open(home: &Home, engine: EngineId, dtype: Dtype) -> Model {
    let folder = workspace().join("target/parts/minilm");
    assert!(folder.is_dir(), "no MiniLM in `target/parts`: fetch it with `scripts/parts minilm`");
    home.model(&folder).engine(engine).dtype(dtype).open().expect("MiniLM opens")
}

pub(crate) fn texts() -> Vec<String> {
    let lines = fs::read_to_string(workspace().join("benches/texts.jsonl")).expect("the texts are there");
    let text = |line: &str| {
        let value: Value = serde_json::from_str(line).expect("a line is JSON");
        value["text"].as_str().expect("a line has a text").to_owned()
    };
    lines.lines().map(text).collect()
}

/// The least cosine with the reference over every `step`th text.
fn least(engine: EngineId, dtype: Dtype, step: usize) -> f64 {
    let reference = Golden::read("minilm", "reference.safetensors");
    let wanted: Vec<&[f64]> = reference.rows("embed").into_iter().step_by(step).collect();
    let texts: Vec<String> = texts().into_iter().step_by(step).collect();
    assert_eq!(texts.len(), wanted.len());
    let home = Home::new();
    let model = open(&home, engine, dtype);
    let started = Instant::now();
    let got = model.embed(&texts).expect("embeds");
    let seconds = started.elapsed().as_secs_f64();
    let least = smallest(got.iter().zip(wanted).map(|(got, want)| cosine(got, want)));
    let far = 1.0 - least;
    println!("{engine} {dtype}: least cosine 1 - {far:.1e} over {} texts in {seconds:.1} s", texts.len());
    assert!(got.placements.iter().all(|placement| placement.dtype == dtype && placement.engine == engine));
    least
}

#[test]
fn two_thousand_texts_in_f32_are_those_of_sentence_transformers() {
    let least = least(EngineId::Candle, Dtype::F32, 1);
    assert!(least >= 0.99999, "{least}");
}

#[test]
fn texts_in_f32_on_our_kernels_are_too() {
    let least = least(EngineId::Native, Dtype::F32, 10);
    assert!(least >= 0.99999, "{least}");
}

#[test]
fn texts_in_f16_stay_near() {
    let least = least(EngineId::Candle, Dtype::F16, 10);
    assert!(least >= 0.9999, "{least}");
}

#[test]
fn texts_in_bf16_stay_near() {
    let least = least(EngineId::Candle, Dtype::Bf16, 10);
    assert!(least >= 0.999, "{least}");
}

#[test]
fn two_thousand_texts_on_matrix_tiles_stay_near() {
    if let Err(obstacle) = load_on(EngineId::Native, &spec("tiny-bert"), Dtype::Bf16) {
        println!("{obstacle}");
        return;
    }
    let least = least(EngineId::Native, Dtype::Bf16, 1);
    assert!(least >= 0.9999, "{least}");
}

#[test]
fn a_text_embeds_alike_alone_and_in_a_batch() {
    let home = Home::new();
    for engine in INTERPRETERS {
        alike(&open(&home, engine, Dtype::F32));
    }
}

fn alike(model: &Model) {
    let texts: Vec<String> = texts().into_iter().step_by(67).take(30).collect();
    let together = model.embed(&texts).expect("embeds");
    for (text, together) in texts.iter().zip(&together) {
        let together: Vec<f64> = together.iter().map(|&x| f64::from(x)).collect();
        let off = apart(&model.embed(&[text]).expect("embeds")[0], &together);
        assert!(off <= 1e-5, "{text:.30} differs by {off}");
    }
}
