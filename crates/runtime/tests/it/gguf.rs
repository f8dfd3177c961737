//! GGUF files as models: cards from metadata, and the vectors of the same model as safetensors.

use std::fs;
use std::path::PathBuf;

use sconce::card::{self, CardError, Overrides};
use sconce::{ModelSource, PoolingMode, Task};
use sconce_core::card::Format;
use sconce_core::engine::ModelSpec;
use sconce_core::placement::{Dtype, EngineId};
use sconce_engines::gguf::header::{Header, TensorInfo};
use sconce_testkit::compare::largest;
use sconce_testkit::gguf::{self, Tensor};
use sconce_testkit::goldens::{self, Golden, apart};

use crate::decoders;
use crate::support::{Home, INTERPRETERS, load_on, texts, worst};

const TOLERANCE: f64 = 1e-4;

/// Decoders that are also goldens of safetensors.
const GENERATE: [&str; 14] = [
    "llama",
    "smollm3",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "phi",
    "stablelm",
    "stablelm-parallel",
    "falcon",
    "falcon-new",
    "gpt-neox",
    "mixtral",
    "qwen3-moe",
];

fn file(name: &str) -> PathBuf {
    goldens::folder("gguf").join(name)
}

fn embedder() -> Overrides {
    Overrides { pooling: Some(PoolingMode::Mean), normalize: Some(true), ..Overrides::default() }
}

fn spec(name: &str) -> ModelSpec {
    card::read(name, &file(name), &embedder()).expect("the golden is a model")
}

#[test]
fn a_bert_embeds_as_its_model_of_the_hub_does() {
    let golden = Golden::read("tiny-bert", "golden.safetensors");
    let home = Home::new();
    for engine in INTERPRETERS {
        let model = home.model(&file("tiny-bert.gguf")).normalize(true).max_length(128).engine(engine);
        let got = model.open().expect("opens").embed(&texts("tiny-bert")).expect("embeds");
        let got: Vec<f32> = got.iter().flatten().copied().collect();
        let off = apart(&got, golden.numbers("embed"));
        assert!(off < TOLERANCE, "{engine} is off by {off}");
    }
}

#[test]
fn hidden_states_are_those_of_the_model_of_the_hub() {
    for (name, hub) in [("tiny-nomic.gguf", "tiny-nomic"), ("tiny-qwen3.gguf", "tiny-qwen3")] {
        let golden = Golden::read(hub, "golden.safetensors");
        for engine in INTERPRETERS {
            let encoder = load_on(engine, &spec(name), Dtype::F32).expect("the golden loads");
            let worst = worst(&golden, encoder.as_ref());
            assert!(worst < TOLERANCE, "{engine} {name} is off by {worst}");
        }
    }
}

#[test]
fn logits_are_those_of_the_model_of_the_hub() {
    for name in GENERATE {
        let hub = format!("tiny-{name}-generate");
        let golden = Golden::read(&hub, "golden.safetensors");
        for (context, lengths) in decoders::contexts(&hub) {
            let overrides = Overrides { max_length: Some(context), ..Overrides::default() };
            let path = file(&format!("tiny-{name}-generate.gguf"));
            let spec = card::read(name, &path, &overrides).expect("the golden is a model");
            assert_eq!(spec.card.task.value, Task::Generate);
            for engine in INTERPRETERS {
                let encoder = load_on(engine, &spec, Dtype::F32).expect("the golden loads");
                let worst =
                    decoders::worst(&golden, encoder.as_ref(), 512, |length| lengths.contains(&length));
                assert!(worst < TOLERANCE, "{engine} {name} of {context} is off by {worst}");
            }
        }
    }
}

/// A golden whose matrices are quantized to `Q4_0` or `Q8_0`, where rows are whole blocks.
fn quantized(name: &str, dtype: Dtype) -> Vec<u8> {
    let path = file(name);
    let (whole, header) =
        (fs::read(&path).expect("the golden is there"), Header::read(&path).expect("a file"));
    let tensor = |info: &TensorInfo| {
        let bytes = &whole[info.start as usize..][..info.length as usize];
        let row = info.shape[info.shape.len() - 1];
        // Rotary factors and routers are never quantized.
        let is_matrix = info.shape.len() > 1 && row.is_multiple_of(32) && !info.name.contains("gate_inp");
        let (kind, bytes) = match (is_matrix, dtype) {
            (false, _) => (0, bytes.to_vec()),
            (true, Dtype::Int4) => (
                2,
                blocks(bytes, 7.0, |codes| {
                    let code = |code: f32| (code + 8.0) as u8;
                    codes[..16]
                        .iter()
                        .zip(&codes[16..])
                        .map(|(low, high)| code(*low) | code(*high) << 4)
                        .collect()
                }),
            ),
            (true, _) => {
                (8, blocks(bytes, 127.0, |codes| codes.iter().map(|code| *code as i8 as u8).collect()))
            }
        };
        let sizes = info.shape.iter().rev().map(|size| *size as u64).collect();
        Tensor { name: info.name.clone(), sizes, kind, bytes }
    };
    let tensors: Vec<Tensor> = header.tensors.iter().map(tensor).collect();
    // The header up to the first tensor is metadata.
    let first = gguf::string(&tensors[0].name);
    let metadata = whole.windows(first.len()).position(|bytes| bytes == first).expect("it is named");
    let rest = gguf::file(&[], &tensors)[24..].to_vec();
    // Data starts at a multiple of 32 bytes.
    let infos: usize =
        tensors.iter().map(|tensor| 8 + tensor.name.len() + 4 + 8 * tensor.sizes.len() + 4 + 8).sum();
    let mut bytes = [&whole[..metadata], &rest[..infos]].concat();
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(&rest[(24 + infos).next_multiple_of(32) - 24..]);
    bytes
}

/// Blocks of 32 values: an f16 scale that is a power of two, and the codes, at most `max_code`, as `pack` stores them.
fn blocks(bytes: &[u8], max_code: f32, pack: impl Fn(&[f32]) -> Vec<u8>) -> Vec<u8> {
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let block = |values: &[f32]| {
        let most = largest(values.iter().map(|value| f64::from(value.abs()))) as f32;
        let power = ((most / max_code).log2().ceil() as i32).clamp(-14, 15);
        let codes: Vec<f32> = values.iter().map(|value| (value / 2_f32.powi(power)).round()).collect();
        let scale = (((power + 15) as u16) << 10).to_le_bytes();
        [&scale[..], &pack(&codes)].concat()
    };
    values.chunks_exact(32).flat_map(block).collect()
}

#[test]
fn quantized_weights_of_every_layout_compute_as_the_same_weights_in_f32() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    for (name, dtype) in GENERATE.into_iter().flat_map(|name| [(name, Dtype::Int8), (name, Dtype::Int4)]) {
        fs::write(&path, quantized(&format!("tiny-{name}-generate.gguf"), dtype)).expect("writes");
        let overrides = Overrides { max_length: Some(128), ..Overrides::default() };
        let spec = card::read(name, &path, &overrides).expect("it is a model");
        assert_eq!(spec.card.weights[0].stored, dtype, "{name}");
        let ids: Vec<u32> = (0..60).map(|n| n * 37 % 128).collect();
        let logits = |engine, dtype| {
            let encoder = load_on(engine, &spec, dtype).expect("it loads");
            decoders::logits(encoder.as_ref(), &[&ids], 64, 60).remove(0)
        };
        let (wanted, got) = (logits(EngineId::Candle, Dtype::F32), logits(EngineId::Native, dtype));
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>();
        let error = |(got, wanted): (&Vec<f32>, &Vec<f32>)| {
            let error = square(&mut got.iter().zip(wanted).map(|(x, y)| x - y));
            (error / square(&mut wanted.iter().copied())).sqrt()
        };
        // The median: rounded activations can send a token to another expert.
        let mut errors: Vec<f64> = got.iter().zip(&wanted).map(error).collect();
        errors.sort_by(f64::total_cmp);
        let error = errors[errors.len() / 2];
        println!("{name} {dtype}: {error:.4}");
        // Activations are rounded to 8 bits.
        assert!(error < 0.05, "{name} {dtype} is off by {error}");
    }
}

#[test]
fn facts_name_their_metadata_keys() {
    let overrides = Overrides { normalize: Some(true), ..Overrides::default() };
    let card = card::read("m", &file("tiny-bert.gguf"), &overrides).expect("a model").card;
    assert_eq!(
        (card.architecture.value.as_str(), card.architecture.source.as_str()),
        ("bert", "general.architecture")
    );
    assert_eq!(card.pooling.value.modes, [PoolingMode::Mean]);
    assert_eq!(card.pooling.source, "bert.pooling_type");
    assert_eq!((card.max_length.value, card.max_length.source.as_str()), (512, "bert.context_length"));
    let weights = &card.weights[0];
    assert_eq!((weights.name.as_str(), weights.format), ("tiny-bert.gguf", Format::Gguf));
    assert_eq!(weights.stored, Dtype::F32);
    assert_eq!(weights.values.map(|values| 4 * values), Some(weights.bytes));
    assert_eq!(weights.bytes_in(Dtype::Bf16), weights.bytes / 2);
}

#[test]
fn facts_that_no_key_states_are_asked_for() {
    let read = |overrides: &Overrides| card::read("m", &file("tiny-bert.gguf"), overrides);
    let error = read(&Overrides::default()).expect_err("no key for the normalization").to_string();
    assert!(error.contains("`tiny-bert.gguf` has no key for the normalization"), "{error}");
    assert!(error.contains("`--normalize true|false`"), "{error}");
    let rerank = Overrides { task: Some(Task::Rerank), ..embedder() };
    assert!(matches!(read(&rerank), Err(CardError::GgufTask(Task::Rerank))));
    let long = Overrides { max_length: Some(513), ..embedder() };
    assert!(matches!(read(&long), Err(CardError::MaxLength { asked: 513, positions: 512 })));
    let home = Home::new();
    let error =
        home.model(&file("tiny-qwen3.gguf")).overrides(embedder()).open().err().expect("no tokenizer");
    assert!(error.to_string().contains("the tokenizer `none`"), "{error}");
}

#[test]
fn a_folder_with_one_gguf_file_is_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::copy(file("tiny-bert.gguf"), folder.path().join("a.gguf")).expect("copies");
    let spec = card::read("m", folder.path(), &embedder()).expect("a model");
    assert_eq!(spec.files.weights["a.gguf"], [folder.path().join("a.gguf")]);
    fs::copy(file("tiny-bert.gguf"), folder.path().join("b.gguf")).expect("copies");
    let error = card::read("m", folder.path(), &embedder()).expect_err("two models").to_string();
    assert!(error.contains("a.gguf, b.gguf"), "{error}");
    let path = folder.path().join("a.gguf");
    let source = ModelSource::parse(&path.to_string_lossy(), None);
    assert_eq!((source.name().as_str(), &source), ("a", &ModelSource::Gguf(path)));
}

#[test]
fn no_byte_of_a_header_can_cause_a_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    let whole = fs::read(file("tiny-qwen3.gguf")).expect("the golden is there");
    for place in (0..24).chain((24..2500).step_by(7)) {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed[place] = byte;
            fs::write(&path, changed).expect("writes");
            let _ = card::read("m", &path, &embedder());
        }
    }
    fs::write(&path, &whole[..whole.len() - 1]).expect("writes");
    let error = card::read("m", &path, &embedder()).expect_err("truncated").to_string();
    assert!(error.contains("beyond the file of"), "{error}");
}
