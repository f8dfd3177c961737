//! The path for accelerators, run on the CPU, against the fused one: every family, lengths mixed and odd.

use std::collections::{BTreeMap, BTreeSet};

use sconce_core::batch::{Batch, Rows, Want};
use sconce_core::card::{ModelCard, Pooling, PoolingMode, Said, Task};
use sconce_core::device::Device;
use sconce_core::engine::{Cost, Encoder};
use sconce_core::head::Head;
use sconce_core::placement::{Dtype, EngineId, Placement};
use serde_json::{Value, json};

use super::{CandleEngine, Path};
use crate::description::{Description, describe};
use crate::weights::Generated;
use crate::{families, probe};

/// The description of a model with this config.
fn described(config: Value) -> Description {
    let by = "test";
    let card = ModelCard {
        name: "test".to_owned(),
        architecture: Said::new(String::new(), by),
        task: Said::new(Task::Embed, by),
        sizes: Said::new(families::sizes(&config), by),
        config,
        max_length: Said::new(128, by),
        pooling: Said::new(Pooling { modes: vec![PoolingMode::Mean], include_prompt: true }, by),
        steps: Said::new(Vec::new(), by),
        head: Head::default(),
        prompts: Said::new(BTreeMap::new(), by),
        default_prompt: None,
        dimensions: None,
        weights: Vec::new(),
    };
    describe(&card).expect("the family is known")
}

fn description(model_type: &str, activation: &str) -> Description {
    described(json!({
        "model_type": model_type, "hidden_act": activation, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
        "pad_token_id": 1, "num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 3,
        "intermediate_size": 80, "vocab_size": 90, "max_position_embeddings": 140,
    }))
}

/// A description of every golden of every family.
fn every_kind() -> Vec<(&'static str, Description)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens");
    let read = |name: &&'static str| {
        let bytes = std::fs::read(folder.join(name).join("config.json")).expect("the golden has a config");
        (*name, described(serde_json::from_slice(&bytes).expect("JSON")))
    };
    families::FAMILIES.iter().flat_map(|family| family.goldens).map(read).collect()
}

fn run(path: Path, description: &Description, dtype: Dtype, batch: &Batch) -> Rows {
    let placement =
        Placement { engine: EngineId::Candle, device: Device::Cpu, weights: String::new(), dtype };
    let engine = CandleEngine::new(2);
    let encoder = engine.build_on(path, description, &Generated, &placement).expect("it loads");
    encoder.encode(batch).expect("it computes").into_rows()
}

fn farthest(a: &Rows, b: &Rows) -> f32 {
    assert_eq!(a.values.len(), b.values.len());
    a.values.iter().zip(&b.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn the_path_for_accelerators_gives_what_the_fused_one_gives() {
    let activations = ["gelu", "gelu_new", "relu", "silu", "quick_gelu"];
    let plain = activations.map(|activation| (activation, description("bert", activation)));
    let twins = every_kind().into_iter().map(|(name, description)| (name, description.twin()));
    for (name, description) in plain.into_iter().chain(every_kind()).chain(twins) {
        for lengths in [&[1][..], &[33], &[128, 1, 7, 96, 95, 94, 2], &[5; 9]] {
            let mut batch = probe::batch(lengths, 7, Want::Tokens, &description);
            // Some tokens at the end of longer texts are seen by none.
            for sequence in batch.sequences.iter_mut().filter(|sequence| sequence.length > 40) {
                sequence.unseen = sequence.length % 7;
            }
            let fused = run(Path::Fused, &description, Dtype::F32, &batch);
            let portable = run(Path::Portable, &description, Dtype::F32, &batch);
            let apart = farthest(&fused, &portable);
            assert!(apart < 5e-5, "{name} {lengths:?}: {apart}");
        }
    }
}

#[test]
fn a_twin_has_every_part_of_its_model() {
    for (name, description) in every_kind() {
        let twin = description.twin();
        let shares = |d: &Description| d.heads > d.kv_heads;
        assert_eq!(shares(&twin), shares(&description), "{name}");
        let kinds = |d: &Description| (0..d.layers).map(|layer| d.is_local(layer)).collect::<BTreeSet<_>>();
        assert_eq!(kinds(&twin), kinds(&description), "{name}");
        let ropes = |d: &Description| (d.global.rope.clone(), d.local.as_ref().map(|span| span.rope.clone()));
        assert_eq!(ropes(&twin), ropes(&description), "{name}");
        assert_eq!((twin.head, &twin.relative), (description.head, &description.relative), "{name}");
    }
}

#[test]
fn half_precision_stays_near_on_both_paths() {
    let description = description("bert", "gelu");
    let batch = probe::batch(&[128, 3, 64], 7, Want::Tokens, &description);
    let want = run(Path::Fused, &description, Dtype::F32, &batch);
    for (dtype, allowed) in [(Dtype::F16, 0.03), (Dtype::Bf16, 0.2)] {
        for path in [Path::Fused, Path::Portable] {
            let apart = farthest(&want, &run(path, &description, dtype, &batch));
            assert!(apart < allowed, "{dtype} {path:?}: {apart}");
        }
    }
}

#[test]
fn a_batch_that_would_read_past_a_table_is_refused() {
    let description = description("roberta", "gelu");
    let placement = Placement {
        engine: EngineId::Candle,
        device: Device::Cpu,
        weights: String::new(),
        dtype: Dtype::F32,
    };
    let encoder =
        CandleEngine::new(1).build_on(Path::Fused, &description, &Generated, &placement).expect("it loads");
    let refused = |ids: &[u32], types: &[u32]| {
        let mut batch = Batch::new(Want::Tokens);
        batch.push(ids, types, 0);
        encoder.encode(&batch).is_err()
    };
    assert!(!refused(&[5, 6], &[0, 1]));
    assert!(refused(&[90], &[0]), "an id beyond the vocabulary");
    assert!(refused(&[5], &[2]), "a type beyond the types");
    assert!(refused(&[5; 139], &[0; 139]), "a text beyond the positions");
    assert!(refused(&[], &[]), "an empty text");
    assert_eq!(encoder.cost(), Cost::Packed);
}
