//! Tests of generation: steps with a KV cache against the forward pass without one. Tests of quantized weights.

mod invariance;

use std::cell::RefCell;
use std::collections::HashMap;

use half::f16;
use sconce_core::batch::{Batch, OutputKind};
use sconce_core::card::KvCacheDtype;
use sconce_core::engine::Encoder;
use sconce_core::placement::Dtype;
use sconce_testkit::compare::{largest, max_difference};
use serde_json::json;

use super::encoder::{LoadedOutput, NativeEncoder};
use super::*;
use crate::gguf::blocks::StoredType;
use crate::step::BLOCK_SIZE;
use crate::step::testing::{
    Stepped, description, refuses_steps_outside_blocks, run, scattered, step, tokens, uncached,
};
use crate::stored_tensor::StoredTensor;
use crate::testing::card;
use crate::weights::{seed, uniform};

/// How a decoder computes: the dtype of its weights, and the instruction set.
#[derive(Clone, Copy, Debug)]
struct Kernels {
    dtype: Dtype,
    isa: Isa,
}

impl Kernels {
    fn of(dtype: Dtype) -> Kernels {
        Kernels { dtype, isa: Isa::best() }
    }

    /// Those of weights in bf16 that are widened: on processors without products of bf16.
    fn widened() -> Kernels {
        let isa = Isa::available().into_iter().rfind(|isa| Bf16::of(*isa).is_none());
        Kernels { dtype: Dtype::Bf16, isa: isa.expect("plain code needs no instructions") }
    }

    fn all() -> [Kernels; 5] {
        let [f32, bf16, int8, int4] = [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4].map(Kernels::of);
        [f32, bf16, Kernels::widened(), int8, int4]
    }
}

/// All kernels, with every dtype of the KV cache.
fn variants(d: &Description) -> impl Iterator<Item = (Kernels, Description)> {
    let dtypes = [KvCacheDtype::Auto, KvCacheDtype::Q8_0];
    let with = |kv_cache_dtype| Description { kv_cache_dtype, ..d.clone() };
    dtypes.into_iter().flat_map(move |cache| Kernels::all().map(|kernels| (kernels, with(cache))))
}

fn decoder(d: &Description, Kernels { dtype, isa }: Kernels) -> NativeEncoder {
    let engine = NativeEngine { isa, ..NativeEngine::new(2) };
    engine.encoder(d, &GeneratedTensors, dtype, LoadedOutput::Logits).expect("it loads")
}

#[test]
fn steps_with_a_cache_equal_the_forward_pass_without_one() {
    for model_type in ["llama", "mistral", "qwen2", "qwen3"] {
        let d = description(model_type);
        let (f32, bf16) = (Kernels::of(Dtype::F32), Kernels::of(Dtype::Bf16));
        for (kernels, tolerance) in [(f32, 2e-4), (bf16, 0.15), (Kernels::widened(), 0.15)] {
            let encoder = decoder(&d, kernels);
            let generator = encoder.generator().expect("it is a decoder");
            assert_eq!(generator.cache_layout().block_size, BLOCK_SIZE);
            generator.reserve(16).expect("memory");
            let ids = tokens(70, model_type);
            let wanted = uncached(&d, &encoder, &ids);
            let blocks = scattered(5, 4);
            for steps in [&[70][..], &[33, 1, 36], &[1; 70], &[15, 1, 1, 16, 31, 6]] {
                let mut sequence = Stepped::new(ids.clone(), blocks.clone());
                run(generator, &mut [&mut sequence], steps);
                for (got, wanted) in sequence.logits.iter().flatten().zip(wanted.iter().flatten()) {
                    let near = (f64::from(*got) - wanted).abs() < tolerance;
                    assert!(near, "{model_type} {kernels:?} {steps:?}: {got} for {wanted}");
                }
            }
        }
    }
}

#[test]
fn a_sequence_has_the_same_logits_alone_in_a_mixed_batch_and_in_other_blocks() {
    let models = ["llama", "qwen3"].map(|model_type| (model_type, description(model_type)));
    for (model_type, (kernels, d)) in
        models.iter().flat_map(|(model_type, d)| variants(d).map(move |variant| (model_type, variant)))
    {
        let encoder = decoder(&d, kernels);
        let generator = encoder.generator().expect("it is a decoder");
        generator.reserve(32).expect("memory");
        let all = [40, 7, 33].map(|count| tokens(count, &format!("{model_type} {count}")));
        let alone = all.clone().map(|ids| {
            let mut sequence = Stepped::new(ids, vec![0, 1, 2]);
            run(generator, &mut [&mut sequence], &[5, 5, 1, 1, 9, 19]);
            sequence.logits
        });
        let mut together = [(0, 5), (1, 9), (2, 20)]
            .map(|(index, first): (usize, u32)| Stepped::new(all[index].clone(), scattered(3, first)));
        let [one, two, three] = &mut together;
        run(generator, &mut [one, two, three], &[5, 5, 1, 1, 9, 19]);
        for (sequence, alone) in together.iter().zip(&alone) {
            assert_eq!(sequence.logits, *alone, "{model_type} {kernels:?}");
        }
    }
}

#[test]
fn a_sequence_has_the_same_logits_however_its_prompt_is_split() {
    let d = description("qwen3");
    for (kernels, d) in variants(&d) {
        let encoder = decoder(&d, kernels);
        let generator = encoder.generator().expect("it is a decoder");
        generator.reserve(16).expect("memory");
        let ids = tokens(150, "split");
        let of = |steps: &[usize]| {
            let mut sequence = Stepped::new(ids.clone(), (0..10).collect());
            run(generator, &mut [&mut sequence], steps);
            sequence.logits
        };
        let whole = of(&[150]);
        for steps in [&[1; 150][..], &[149, 1], &[64, 1, 1, 40, 44], &[7, 16, 33, 94]] {
            assert_eq!(of(steps), whole, "{kernels:?} {steps:?}");
        }
    }
}

/// A decoder whose heads and blocks are whole panels.
fn paneled() -> Description {
    let config = json!({
        "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 160, "vocab_size": 101,
        "max_position_embeddings": 1024, "hidden_act": "silu", "rope_theta": 10000.0,
    });
    describe(&card(config)).expect("the family is known")
}

#[test]
fn tokens_are_computed_by_their_kind_alone_in_a_batch_and_again() {
    let d = paneled();
    for (kernels, d) in variants(&d) {
        let encoder = decoder(&d, kernels);
        let generator = encoder.generator().expect("it is a decoder");
        generator.reserve(64).expect("memory");
        let ids = tokens(90, "kinds");
        let sequence =
            |first: u32, prompt: usize| Stepped { prompt, ..Stepped::new(ids.clone(), scattered(6, first)) };
        let mut wanted = sequence(0, 70);
        run(generator, &mut [&mut wanted], &[[70].as_slice(), &[1; 20]].concat());
        // A sequence that lost its blocks is computed again in steps that hold both kinds, beside others.
        for steps in [&[90][..], &[33, 57], &[69, 2, 19]] {
            let (mut again, mut other) = (sequence(10, 70), sequence(20, 12));
            run(generator, &mut [&mut other, &mut again], steps);
            assert_eq!(again.logits, wanted.logits, "{kernels:?} {steps:?}");
        }
        let mut prompt = sequence(0, 90);
        run(generator, &mut [&mut prompt], &[90]);
        assert_eq!(
            prompt.logits[70..] != wanted.logits[70..],
            generator.cache_layout().separates_prompts,
            "{kernels:?}: another kernel"
        );
    }
}

#[test]
fn a_long_prompt_that_is_split_over_threads_has_the_logits_of_its_chunks() {
    let d = paneled();
    for (kernels, d) in variants(&d) {
        let encoder = decoder(&d, kernels);
        let generator = encoder.generator().expect("it is a decoder");
        generator.reserve(48).expect("memory");
        let ids = tokens(700, "long");
        let of = |steps: &[usize]| {
            let mut sequence = Stepped::new(ids.clone(), scattered(44, 0));
            run(generator, &mut [&mut sequence], steps);
            sequence.logits
        };
        let whole = of(&[700]);
        assert!(of(&[100; 7]) == whole && of(&[300, 1, 399]) == whole, "{kernels:?}");
    }
}

#[test]
fn twins_of_quantized_models_have_the_kernels_of_the_model() {
    for (hidden, head_dim, intermediate) in [(576, 64, 1536), (2048, 128, 5632), (2560, 80, 6912)] {
        let config = json!({
            "model_type": "llama", "num_hidden_layers": 2, "hidden_size": hidden, "head_dim": head_dim,
            "num_attention_heads": hidden / head_dim, "num_key_value_heads": hidden / head_dim,
            "intermediate_size": intermediate, "vocab_size": 64, "max_position_embeddings": 512,
        });
        let d = describe(&card(config)).expect("the family is known");
        let separates = |d: &Description| {
            let encoder = decoder(d, Kernels::of(Dtype::Int4));
            encoder.generator().expect("it is a decoder").cache_layout().separates_prompts
        };
        assert_eq!(separates(&d.twin()), separates(&d), "{hidden} {head_dim}");
    }
}

#[test]
fn a_copied_block_continues_like_its_source() {
    for (kernels, d) in variants(&description("llama")) {
        let encoder = decoder(&d, kernels);
        let generator = encoder.generator().expect("it is a decoder");
        generator.reserve(8).expect("memory");
        let ids = tokens(30, "copied");
        let mut whole = Stepped::new(ids.clone(), vec![0, 1]);
        run(generator, &mut [&mut whole], &[20]);
        generator.copy(&[(1, 6)]).expect("blocks");
        let mut copy = Stepped { done: 20, ..Stepped::new(ids, vec![0, 6]) };
        run(generator, &mut [&mut whole, &mut copy], &[10]);
        assert_eq!(whole.logits[20..], copy.logits[..]);
    }
}

#[test]
fn a_quantized_cache_takes_half_the_memory_and_changes_little() {
    let d = paneled();
    let quantized = Description { kv_cache_dtype: KvCacheDtype::Q8_0, ..d.clone() };
    let ids = tokens(90, "quantized cache");
    let run_on = |d: &Description, dtype| {
        let encoder = decoder(d, Kernels::of(dtype));
        let generator = encoder.generator().expect("it is a decoder");
        generator.reserve(6).expect("memory");
        let mut sequence = Stepped::new(ids.clone(), scattered(6, 0));
        run(generator, &mut [&mut sequence], &[70, 1, 1, 18]);
        (sequence.logits, generator.cache_layout().block_bytes)
    };
    let (wanted, bytes) = run_on(&d, Dtype::F32);
    let (got, quantized_bytes) = run_on(&quantized, Dtype::F32);
    assert_eq!(quantized_bytes * 64, bytes * 17);
    let (got, wanted) = (got.concat(), wanted.concat());
    let (off, most) = (max_difference(&got, &wanted), largest(wanted.iter().map(|x| x.abs())));
    assert!(off > 0.0 && off < 0.02 * most, "{off} of {most}");
    let (_, bytes) = run_on(&d, Dtype::Bf16);
    assert_eq!(quantized_bytes * 32, bytes * 17);
}

#[test]
fn steps_outside_their_blocks_are_refused() {
    let d = description("llama");
    let encoder = decoder(&d, Kernels::of(Dtype::F32));
    let generator = encoder.generator().expect("it is a decoder");
    refuses_steps_outside_blocks(generator);
    let plain = NativeEngine::new(1).encoder(&d, &GeneratedTensors, Dtype::F32, LoadedOutput::Hidden);
    assert!(plain.expect("f32").generator().is_none());
}

/// Generated weights whose output matrix equals the token embeddings, as one tensor or as two.
struct Tied {
    token_embeddings: String,
    is_one_tensor: bool,
}

impl Tensors for Tied {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let is_output = ["lm_head.weight", "embed_out.weight"].contains(&name);
        GeneratedTensors.shape(name).filter(|_| !(is_output && self.is_one_tensor))
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let name = if name == "lm_head.weight" { &self.token_embeddings } else { name };
        GeneratedTensors.read(name, shape)
    }

    fn generated(&self) -> bool {
        true
    }
}

#[test]
fn tied_embeddings_are_read_from_the_output_matrix() {
    for (model_type, kernels) in [
        ("qwen3", Kernels::of(Dtype::F32)),
        ("qwen3", Kernels::of(Dtype::Bf16)),
        ("qwen3", Kernels::widened()),
        ("gemma2", Kernels::of(Dtype::F32)),
    ] {
        let d = description(model_type);
        let engine = NativeEngine { isa: kernels.isa, ..NativeEngine::new(2) };
        let logits = [true, false].map(|is_one_tensor| {
            let token_embeddings = format!("{}{}", d.names.prefixes[0], d.names.token_embeddings[0]);
            let tensors = Tied { token_embeddings, is_one_tensor };
            let encoder = engine.encoder(&d, &tensors, kernels.dtype, LoadedOutput::Logits);
            let encoder = encoder.expect("it loads");
            let generator = encoder.generator().expect("it is a decoder");
            generator.reserve(2).expect("memory");
            let mut sequence = Stepped::new(tokens(20, "tied"), vec![0, 1]);
            run(generator, &mut [&mut sequence], &[19, 1]);
            sequence.logits
        });
        assert_eq!(logits[0], logits[1], "{model_type} {kernels:?}");
    }
}

/// Records the shapes of the tensors that a model reads.
#[derive(Default)]
struct Recorded(RefCell<HashMap<String, Vec<usize>>>);

impl Tensors for Recorded {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        GeneratedTensors.shape(name)
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        self.0.borrow_mut().insert(name.to_owned(), shape.to_vec());
        GeneratedTensors.read(name, shape)
    }

    fn generated(&self) -> bool {
        true
    }
}

/// Trained weights: matrices in `Q8_0` with codes of all 256 levels, and other tensors in f32.
struct Quantized(HashMap<String, Vec<usize>>);

impl Tensors for Quantized {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.get(name).cloned()
    }

    fn stored(&self, name: &str) -> Result<Option<StoredTensor>, WeightsError> {
        let Some(shape) = self.0.get(name) else { return Ok(None) };
        let values = GeneratedTensors.read(name, shape)?;
        let stored =
            if shape.len() == 2 && !name.contains("embed") { StoredType::Q8_0 } else { StoredType::F32 };
        let bytes = if stored == StoredType::F32 {
            values.into_iter().flat_map(f32::to_le_bytes).collect()
        } else {
            let mut state = seed(name);
            let scale = f16::from_f32(1.7 / (shape[1] as f32).sqrt() / 127.0).to_le_bytes();
            let block = |_| {
                let codes = (0..32).map(|_| (uniform(&mut state) * 127.0) as i8 as u8);
                scale.into_iter().chain(codes).collect::<Vec<u8>>()
            };
            (0..values.len() / 32).flat_map(block).collect()
        };
        Ok(Some(StoredTensor { stored, shape: shape.clone(), bytes }))
    }
}

#[test]
fn trained_weights_of_fused_layouts_are_not_rounded() {
    let config = json!({
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
        "vocab_size": 101, "max_position_embeddings": 128,
    });
    let engine = NativeEngine::new(2);
    let mut batch = Batch::new(OutputKind::Tokens);
    batch.push(&tokens(40, "fused"), &[0; 40], 0);
    for (model_type, fused) in
        [("gpt_neox", "query_key_value"), ("falcon", "query_key_value"), ("new", "up_gate")]
    {
        let mut config = config.clone();
        config["model_type"] = model_type.into();
        if model_type == "new" {
            config["position_embedding_type"] = "rope".into();
        }
        let d = describe(&card(config)).expect("the family is known");
        let recorded = Recorded::default();
        engine.encoder(&d, &recorded, Dtype::F32, LoadedOutput::Hidden).expect("it is generated");
        let shapes = recorded.0.into_inner();
        assert!(shapes.keys().any(|name| name.contains(fused)), "{shapes:?}");
        let weights = Quantized(shapes);
        let hidden = |dtype| {
            let encoder = engine.encoder(&d, &weights, dtype, LoadedOutput::Hidden).expect("it loads");
            encoder.encode(&batch).expect("it is well formed").into_rows().values
        };
        let (wanted, got) = (hidden(Dtype::F32), hidden(Dtype::Int8));
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>();
        let error = square(&mut got.iter().zip(&wanted).map(|(x, y)| x - y));
        let error = (error / square(&mut wanted.iter().copied())).sqrt();
        println!("{model_type}: {error:.4}");
        assert!(error < 0.01, "{model_type} is off by {error}");
    }
}
