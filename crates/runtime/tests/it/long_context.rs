//! Decode steps after a context of 32768 tokens.

use std::fs;

use sconce::card::{self, Overrides};
use sconce_core::batch::{Batch, CachedSequence, OutputKind};
use sconce_core::engine::{Encoder, ModelSpec};
use sconce_core::placement::{Dtype, EngineId};
use sconce_testkit::goldens::{self, apart};
use serde_json::json;
use tempfile::TempDir;

use crate::decoders::{VOCABULARY, logits};
use crate::support::{load_on, read_tensors, write_tensors};

const GOLDEN: &str = "tiny-llama-generate";
const CONTEXT: usize = 32_768;
/// Tokens that are decoded one by one after the context.
const DECODED: usize = 3;

/// A tiny model of one layer and one head with a long context.
fn spec(folder: &TempDir) -> ModelSpec {
    let golden = goldens::folder(GOLDEN);
    let config = fs::read(golden.join("config.json")).expect("the golden has a config");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("it is JSON");
    config["max_position_embeddings"] = json!(CONTEXT + DECODED);
    // Attention over the whole context is most of the work: one layer with one head.
    for (key, count) in [("num_hidden_layers", 1), ("num_attention_heads", 1), ("num_key_value_heads", 1)] {
        config[key] = json!(count);
    }
    fs::write(folder.path().join("config.json"), config.to_string()).expect("the folder can be written");
    let mut tensors = read_tensors(&golden.join("model.safetensors"));
    let head = config["head_dim"].as_u64().expect("a size") as usize;
    for tensor in &mut tensors {
        if tensor.name.ends_with("o_proj.weight") {
            let rows = tensor.values.chunks_exact(tensor.shape[1]);
            tensor.values = rows.flat_map(|row| row[..head].to_vec()).collect();
            tensor.shape[1] = head;
        } else if ["q_proj.weight", "k_proj.weight", "v_proj.weight"]
            .iter()
            .any(|end| tensor.name.ends_with(end))
        {
            tensor.values.truncate(head * tensor.shape[1]);
            tensor.shape[0] = head;
        }
    }
    write_tensors(&folder.path().join("model.safetensors"), &tensors);
    card::read("long", folder.path(), &Overrides::default()).expect("it is a model")
}

/// The logits of each token after the context, which is computed in chunks.
fn decoded(encoder: &dyn Encoder, ids: &[u32]) -> Vec<Vec<f32>> {
    let generator = encoder.generator().expect("it generates");
    let blocks: Vec<u32> =
        (0..ids.len().div_ceil(generator.cache_layout().block_size) as u32).rev().collect();
    generator.reserve(blocks.len()).expect("memory");
    let step = |length: usize, end: usize| {
        let mut batch = Batch::new(OutputKind::Logits);
        let cached = CachedSequence {
            length,
            blocks: blocks.clone(),
            logits: usize::from(end > CONTEXT),
            prompt: CONTEXT,
        };
        batch.push_cached(&ids[length..end], cached);
        generator.step(&batch).expect("the step is well formed").into_rows().values
    };
    for first in (0..CONTEXT).step_by(512) {
        step(first, first + 512);
    }
    (CONTEXT..ids.len()).map(|position| step(position, position + 1)).collect()
}

#[test]
fn tokens_after_a_long_context_have_the_logits_of_the_reference() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = spec(&folder);
    let ids: Vec<u32> = (0..CONTEXT + DECODED).map(|n| ((n * n / 7 + 3 * n) % VOCABULARY) as u32).collect();
    let reference = load_on(EngineId::Candle, &spec, Dtype::F32).expect("it loads");
    let wanted = logits(reference.as_ref(), &[&ids], 1024, DECODED).remove(0);
    let native = load_on(EngineId::Native, &spec, Dtype::F32).expect("it loads");
    let got = decoded(native.as_ref(), &ids);
    assert_eq!(got.len(), DECODED);
    for (got, wanted) in got.iter().zip(&wanted) {
        let wanted: Vec<f64> = wanted.iter().map(|x| f64::from(*x)).collect();
        let off = apart(got, &wanted);
        assert!(off < 1e-4, "the logits are off by {off}");
    }
}
