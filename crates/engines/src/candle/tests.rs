//! The portable path, run on the CPU, against the fused one: every family, mixed and odd lengths.

use std::collections::BTreeSet;

use candle_core::Tensor;
use sconce_core::batch::{Batch, Output, OutputKind, Rows, Sequence};
use sconce_core::card::{ModelCard, Pooling, PoolingMode};
use sconce_core::device::Device;
use sconce_core::engine::{BatchLayout, Encoder};
use sconce_core::files::ModelFiles;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_kernels::attention::AttentionMask;
use sconce_testkit::compare::max_difference;
use serde_json::{Value, json};

use super::encoder::CandleEncoder;
use super::padded::PaddedAttention;
use super::{CandleEngine, ForwardPath};
use crate::describe::describe;
use crate::description::Description;
use crate::head_layout::HeadLayout;
use crate::loaded_head::LoadedHead;
use crate::positional::bias_table::BiasTable;
use crate::testing::{card, plain_pool};
use crate::weights::{GeneratedTensors, Tensors};
use crate::{families, probe};

/// The description of a model with this config.
fn described(config: Value) -> Description {
    describe(&card(config)).expect("the family is known")
}

fn config(model_type: &str, activation: &str) -> Value {
    json!({
        "model_type": model_type, "hidden_act": activation, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
        "pad_token_id": 1, "num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 3,
        "intermediate_size": 80, "vocab_size": 90, "max_position_embeddings": 140,
    })
}

fn description(model_type: &str, activation: &str) -> Description {
    described(config(model_type, activation))
}

/// A description of every golden of every family.
pub(super) fn every_kind() -> Vec<(&'static str, Description)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens");
    let read = |name: &&'static str| {
        let bytes = std::fs::read(folder.join(name).join("config.json")).expect("the golden has a config");
        (*name, described(serde_json::from_slice(&bytes).expect("JSON")))
    };
    let names = |family: &&'static families::Family| [family.goldens, family.generation_goldens].concat();
    families::FAMILIES.iter().flat_map(names).map(|name| read(&name)).collect()
}

pub(super) fn cpu(dtype: Dtype) -> Placement {
    Placement { engine: EngineId::Candle, device: Device::Cpu, weights: String::new(), dtype }
}

fn run(path: ForwardPath, description: &Description, dtype: Dtype, batch: &Batch) -> Rows {
    let engine = CandleEngine::new(2);
    let encoder = engine.build_on(path, description, &GeneratedTensors, &cpu(dtype)).expect("it loads");
    encoder.encode(batch).expect("it computes").into_rows()
}

fn farthest(a: &Rows, b: &Rows) -> f64 {
    max_difference(&a.values, &b.values)
}

#[test]
fn the_path_for_accelerators_gives_what_the_fused_one_gives() {
    let activations = ["gelu", "gelu_new", "relu", "silu", "quick_gelu"];
    let plain = activations.map(|activation| (activation, description("bert", activation)));
    let twins = every_kind().into_iter().map(|(name, description)| (name, description.twin()));
    for (name, description) in plain.into_iter().chain(every_kind()).chain(twins) {
        for lengths in [&[1][..], &[33], &[128, 1, 7, 96, 95, 94, 2], &[5; 9]] {
            let mut batch = probe::batch(lengths, 7, OutputKind::Tokens, &description);
            if description.token_types > 1 {
                batch.types.iter_mut().enumerate().for_each(|(place, kind)| *kind = (place % 2) as u32);
            }
            // The last tokens of longer sequences are not attended to.
            for sequence in batch.sequences.iter_mut().filter(|sequence| sequence.length > 40) {
                sequence.masked = sequence.length % 7;
            }
            let fused = run(ForwardPath::Fused, &description, Dtype::F32, &batch);
            let portable = run(ForwardPath::Portable, &description, Dtype::F32, &batch);
            let apart = farthest(&fused, &portable);
            assert!(apart < 5e-5, "{name} {lengths:?}: {apart}");
        }
    }
}

#[test]
fn a_twin_has_every_part_of_its_model() {
    for (name, description) in every_kind() {
        let twin = description.twin();
        let is_grouped = |d: &Description| d.heads > d.kv_heads;
        assert_eq!(is_grouped(&twin), is_grouped(&description), "{name}");
        let kinds = |d: &Description| (0..d.layers).map(|layer| d.is_local(layer)).collect::<BTreeSet<_>>();
        assert_eq!(kinds(&twin), kinds(&description), "{name}");
        let ropes =
            |d: &Description| (d.global.rope.clone(), d.local.as_ref().map(|window| window.rope.clone()));
        assert_eq!(ropes(&twin), ropes(&description), "{name}");
        assert_eq!(
            (twin.head_dim, &twin.relative_positions),
            (description.head_dim, &description.relative_positions),
            "{name}"
        );
    }
}

#[test]
fn half_precision_stays_near_on_both_paths() {
    let description = description("bert", "gelu");
    let batch = probe::batch(&[128, 3, 64], 7, OutputKind::Tokens, &description);
    let want = run(ForwardPath::Fused, &description, Dtype::F32, &batch);
    for (dtype, allowed) in [(Dtype::F16, 0.03), (Dtype::Bf16, 0.2)] {
        for path in [ForwardPath::Fused, ForwardPath::Portable] {
            let apart = farthest(&want, &run(path, &description, dtype, &batch));
            assert!(apart < allowed, "{dtype} {path:?}: {apart}");
        }
    }
}

#[test]
fn a_batch_that_would_read_past_a_table_is_refused() {
    let description = description("roberta", "gelu");
    let encoder =
        CandleEngine::new(1).build_on(ForwardPath::Fused, &description, &GeneratedTensors, &cpu(Dtype::F32));
    let encoder = encoder.expect("it loads");
    let refused = |ids: &[u32], types: &[u32]| {
        let mut batch = Batch::new(OutputKind::Tokens);
        batch.push(ids, types, 0);
        encoder.encode(&batch).is_err()
    };
    assert!(!refused(&[5, 6], &[0, 1]));
    assert!(refused(&[90], &[0]), "an id beyond the vocabulary");
    assert!(refused(&[5], &[2]), "a type beyond the types");
    assert!(refused(&[5; 139], &[0; 139]), "a text beyond the positions");
    assert!(refused(&[], &[]), "an empty text");
    assert_eq!(encoder.batch_layout(), BatchLayout::Packed);
}

fn portable(card: &ModelCard) -> CandleEncoder {
    let description = describe(card).expect("the family is known");
    let mut encoder = CandleEngine::new(1)
        .build_on(ForwardPath::Portable, &description, &GeneratedTensors, &cpu(Dtype::F32))
        .expect("it loads");
    encoder.head =
        Some(LoadedHead::load(card, &ModelFiles::default(), &GeneratedTensors).expect("the head loads"));
    encoder
}

#[test]
fn the_path_for_accelerators_pools_as_the_others_do() {
    let mut card = card(config("bert", "gelu"));
    let description = describe(&card).expect("the family is known");
    let lengths = [1, 2, 7, 33, 128];
    for modes in PoolingMode::ALL.into_iter().map(|mode| vec![mode]).chain([PoolingMode::ALL.to_vec()]) {
        for include_prompt in [true, false] {
            card.pooling.value = Pooling { modes: modes.clone(), include_prompt };
            let encoder = portable(&card);
            let mut batch = probe::batch(&lengths, 7, OutputKind::Tokens, &description);
            batch.sequences.iter_mut().for_each(|sequence| sequence.skip = 3);
            let hidden = encoder.encode(&batch).expect("it computes").into_rows();
            batch.output_kind = OutputKind::Pooled;
            let got = encoder.encode(&batch).expect("it computes");
            assert!(matches!(got, Output::Rows(_)), "pooled rows are rows of texts");
            let got = got.into_rows();
            assert_eq!(got.iter().len(), lengths.len());
            for (sequence, row) in batch.sequences.iter().zip(got.iter()) {
                let skip = if include_prompt { 0 } else { 3.min(sequence.length - 1) };
                let rows: Vec<&[f32]> = hidden.iter().skip(sequence.start).take(sequence.length).collect();
                let want: Vec<f64> = modes.iter().flat_map(|&mode| plain_pool(mode, &rows, skip)).collect();
                let apart = max_difference(row, &want);
                assert!(apart < 1e-5, "{modes:?} of {} after {skip}: {apart}", sequence.length);
            }
        }
    }
}

#[test]
fn the_path_for_accelerators_pads_and_takes_one_batch_at_a_time() {
    let encoder = portable(&card(config("bert", "gelu")));
    assert_eq!((encoder.batch_layout(), encoder.concurrency()), (BatchLayout::Padded, 1));
    let fused = CandleEngine::new(2);
    let fused =
        fused.build_on(ForwardPath::Fused, &description("bert", "gelu"), &GeneratedTensors, &cpu(Dtype::F32));
    let fused = fused.expect("it loads");
    assert_eq!((fused.batch_layout(), fused.concurrency()), (BatchLayout::Packed, 2));
}

/// Attention by its definition, in f64, over the rows of one sequence.
fn plain_attention(
    [queries, keys, values]: [&[f32]; 3],
    heads: HeadLayout,
    length: usize,
    seen: impl Fn(usize, usize) -> bool,
    bias: impl Fn(usize, isize) -> f32,
) -> Vec<f64> {
    let HeadLayout { heads: count, kv_heads: kv, head_dim: width } = heads;
    let number = |rows: &[f32], heads: usize, row: usize, head: usize, d: usize| {
        f64::from(rows[(row * heads + head) * width + d])
    };
    let mut out = vec![0.0; length * count * width];
    for query in 0..length {
        for head in 0..count {
            let shared = head / (count / kv);
            let score = |key: usize| {
                let dot = |d| number(queries, count, query, head, d) * number(keys, kv, key, shared, d);
                let sum: f64 = (0..width).map(dot).sum();
                sum + f64::from(bias(head, key.cast_signed() - query.cast_signed()))
            };
            let probability = |key: usize| if seen(query, key) { score(key).exp() } else { 0.0 };
            let probabilities: Vec<f64> = (0..length).map(probability).collect();
            let total: f64 = probabilities.iter().sum();
            for d in 0..width {
                let context =
                    probabilities.iter().enumerate().map(|(key, p)| p * number(values, kv, key, shared, d));
                out[(query * count + head) * width + d] = context.sum::<f64>() / total;
            }
        }
    }
    out
}

#[test]
fn padded_attention_is_that_of_plain_code() {
    let device = candle_core::Device::Cpu;
    let lengths = [5, 17, 1, 16, 15, 2];
    let masks = [
        AttentionMask::ALL,
        AttentionMask { after: 0, ..AttentionMask::ALL },
        AttentionMask { before: 3, after: 2, ..AttentionMask::ALL },
        AttentionMask { before: 4, after: 0, ..AttentionMask::ALL },
    ];
    for (queries, keys) in [(4, 4), (4, 2), (3, 1)] {
        let heads = HeadLayout { heads: queries, kv_heads: keys, head_dim: 6 };
        for mask in masks {
            for biased in [false, true] {
                // With a window, every query needs a visible key.
                let masked = |length: usize| if mask.before == usize::MAX { length / 5 } else { 0 };
                let mut sequences = Vec::new();
                let mut tokens = 0;
                for length in lengths {
                    sequences.push(Sequence { start: tokens, length, skip: 0, masked: masked(length) });
                    tokens += length;
                }
                let bias = |head: usize, apart: isize| 0.1 * head as f32 - 0.03 * apart as f32;
                let biases = biased.then(|| BiasTable::new(queries, 20, bias));
                let padded = PaddedAttention::new(&sequences, heads, mask, biases.as_ref(), &device)
                    .expect("it is laid out");
                let rows = |name: &str, heads: usize| {
                    GeneratedTensors.read(&format!("embed {name}"), &[tokens, heads * 6]).expect("generated")
                };
                let parts = [rows("q", queries), rows("k", keys), rows("v", keys)];
                let tensor = |rows: &Vec<f32>| {
                    Tensor::from_vec(rows.clone(), (tokens, rows.len() / tokens), &device).expect("a tensor")
                };
                let [q, k, v] = parts.each_ref().map(tensor);
                let got = padded.attend(&q, &k, &v, None, None).expect("it computes");
                let got = got.to_vec2::<f32>().expect("rows");
                for sequence in &sequences {
                    let own = |rows: usize| {
                        let width = parts[rows].len() / tokens;
                        &parts[rows][sequence.start * width..][..sequence.length * width]
                    };
                    let seen = |query: usize, key: usize| {
                        key < sequence.attended() && mask.keys(query, sequence.length).contains(&key)
                    };
                    let bias = |head: usize, apart: isize| if biased { bias(head, apart) } else { 0.0 };
                    let want = plain_attention([own(0), own(1), own(2)], heads, sequence.length, seen, bias);
                    let got = got[sequence.start..][..sequence.length].concat();
                    let apart = max_difference(&got, &want);
                    assert!(apart < 1e-5, "{heads:?} {mask:?} {biased} {}: {apart}", sequence.length);
                }
            }
        }
    }
}
