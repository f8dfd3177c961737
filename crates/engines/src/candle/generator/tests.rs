//! Steps with a KV cache against the forward pass without one, on both paths.

use sconce_core::engine::Encoder;
use sconce_core::placement::Dtype;
use sconce_testkit::compare::{largest, max_difference};

use crate::candle::encoder::CandleEncoder;
use crate::candle::layers::ForwardPath;
use crate::candle::load::Loader;
use crate::candle::tests::{cpu, every_kind};
use crate::candle::{CandleEngine, logits_head};
use crate::description::Description;
use crate::step::BLOCK_SIZE;
use crate::step::testing::{
    Stepped, description, refuses_steps_outside_blocks, run, scattered, tokens, uncached,
};
use crate::weights::GeneratedTensors;

const PATHS: [ForwardPath; 2] = [ForwardPath::Fused, ForwardPath::Portable];

fn decoder(path: ForwardPath, d: &Description, dtype: Dtype) -> CandleEncoder {
    let engine = CandleEngine::new(2);
    let mut encoder = engine.build_on(path, d, &GeneratedTensors, &cpu(dtype)).expect("it loads");
    assert!(encoder.generator().is_none());
    let loader = Loader::new(&GeneratedTensors, candle_core::Device::Cpu, dtype);
    encoder.logits = Some(logits_head(&encoder.transformer, &loader).expect("it is generated"));
    encoder
}

/// The logits of `ids`, computed alone in steps of `chunk` tokens, in blocks of its own.
fn stepped(encoder: &CandleEncoder, ids: &[u32], chunk: usize) -> Vec<f32> {
    let generator = encoder.generator().expect("it generates");
    let blocks = ids.len().div_ceil(BLOCK_SIZE);
    generator.reserve(blocks + 3).expect("memory");
    let mut sequence = Stepped::new(ids.to_vec(), scattered(blocks, 3));
    run(generator, &mut [&mut sequence], &vec![chunk; ids.len().div_ceil(chunk)]);
    sequence.logits.concat()
}

#[test]
fn steps_equal_the_forward_pass_on_both_paths() {
    for model_type in ["llama", "mistral", "qwen2", "qwen3"] {
        let d = description(model_type);
        let ids = tokens(90, model_type);
        for path in PATHS {
            let encoder = decoder(path, &d, Dtype::F32);
            let wanted: Vec<f64> = uncached(&d, &encoder, &ids).concat();
            for chunk in [1, 7, 50, 90] {
                let apart = max_difference(&stepped(&encoder, &ids, chunk), &wanted);
                assert!(apart < 1e-4, "{model_type} {path:?} in steps of {chunk}: {apart}");
            }
        }
    }
}

#[test]
fn the_steps_of_every_decoder_are_the_same_on_both_paths_and_in_chunks() {
    let decoders = every_kind().into_iter().filter(|(name, _)| name.ends_with("-generate"));
    for (name, d) in decoders.map(|(name, d)| (name, d.twin())) {
        let ids = tokens(70, name);
        let wanted = stepped(&decoder(ForwardPath::Fused, &d, Dtype::F32), &ids, 70);
        for (path, chunk) in [(ForwardPath::Fused, 7), (ForwardPath::Portable, 50), (PATHS[1], 1)] {
            let apart = max_difference(&stepped(&decoder(path, &d, Dtype::F32), &ids, chunk), &wanted);
            assert!(apart < 1e-4, "{name} {path:?} in steps of {chunk}: {apart}");
        }
    }
}

/// The largest distance of a row of logits from the reference, as twins are judged.
fn distance(logits: &[f32], reference: &[f32], width: usize) -> f64 {
    let rows = logits.chunks_exact(width).zip(reference.chunks_exact(width));
    let row = |(row, reference): (&[f32], &[f32])| {
        let apart: f64 = row.iter().zip(reference).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        apart / reference.iter().map(|b| 2.0 * f64::from(*b).powi(2)).sum::<f64>()
    };
    largest(rows.map(row))
}

#[test]
fn half_precision_and_quantized_weights_stay_near() {
    for model_type in ["llama", "qwen3"] {
        let d = description(model_type);
        let ids = tokens(60, model_type);
        let wanted = stepped(&decoder(ForwardPath::Fused, &d, Dtype::F32), &ids, 60);
        let dtypes = [Dtype::F16, Dtype::Bf16, Dtype::Int4, Dtype::Int8];
        for (dtype, path) in dtypes.into_iter().flat_map(|dtype| PATHS.map(|path| (dtype, path))) {
            let encoder = decoder(path, &d, dtype);
            let is_quantized = encoder.logits.as_ref().is_some_and(|head| head.matrix.is_quantized());
            assert_eq!(is_quantized, !dtype.is_float());
            let distance = distance(&stepped(&encoder, &ids, 25), &wanted, d.vocabulary);
            println!("{model_type} {path:?} {dtype}: {distance:.1e}");
            // Activations are rounded to 8 bits for quantized weights.
            let allowed = if is_quantized { 2e-3 } else { 1e-3 };
            assert!(distance < allowed, "{model_type} {path:?} {dtype}: {distance}");
            assert!(distance > 0.0, "{dtype} rounds");
        }
    }
}

#[test]
fn a_sequence_has_the_same_logits_alone_and_in_a_mixed_batch() {
    for (model_type, path) in ["llama", "mistral"].into_iter().flat_map(|name| PATHS.map(|path| (name, path)))
    {
        let encoder = decoder(path, &description(model_type), Dtype::F32);
        let generator = encoder.generator().expect("it generates");
        // The last sequence has blocks beyond those that the first steps allocate.
        generator.reserve(300).expect("memory");
        let mut sequences = [(40, 5), (7, 9), (33, 20), (90, 280)].map(|(count, first)| {
            let ids = tokens(count, &format!("{model_type} {count}"));
            Stepped::new(ids, scattered(count.div_ceil(BLOCK_SIZE), first))
        });
        let [one, two, three, four] = &mut sequences;
        run(generator, &mut [one, two], &[5, 5]);
        run(generator, &mut [one, two, three, four], &[5, 1, 1, 9, 19, 33, 40, 40]);
        for sequence in sequences {
            assert_eq!(sequence.done, sequence.ids.len());
            let apart = max_difference(&sequence.logits.concat(), &stepped(&encoder, &sequence.ids, 90));
            assert!(apart < 2e-5, "{model_type} {path:?} {} tokens: {apart}", sequence.ids.len());
            generator.reserve(300).expect("memory");
        }
    }
}

#[test]
fn a_copied_block_continues_like_its_source() {
    for path in PATHS {
        let encoder = decoder(path, &description("llama"), Dtype::F32);
        let generator = encoder.generator().expect("it generates");
        generator.reserve(80).expect("memory");
        let ids = tokens(30, "copied");
        let mut whole = Stepped::new(ids.clone(), vec![0, 1]);
        run(generator, &mut [&mut whole], &[20]);
        // Beyond the blocks that are allocated first.
        generator.copy(&[(1, 79), (79, 6)]).expect("blocks");
        let mut copies = [79, 6].map(|last| Stepped { done: 20, ..Stepped::new(ids.clone(), vec![0, last]) });
        run(generator, &mut [&mut whole], &[10]);
        for copy in &mut copies {
            run(generator, &mut [copy], &[10]);
            assert_eq!(whole.logits[20..], copy.logits[..], "{path:?}");
        }
    }
}

#[test]
fn steps_outside_their_blocks_are_refused() {
    let encoder = decoder(ForwardPath::Fused, &description("llama"), Dtype::F32);
    let generator = encoder.generator().expect("it generates");
    refuses_steps_outside_blocks(generator);
    let layout = generator.cache_layout();
    // Keys and values of two layers with two KV heads of 20 values.
    assert_eq!((layout.block_size, layout.block_bytes), (16, 2 * 2 * 16 * 2 * 20 * 4));
}
