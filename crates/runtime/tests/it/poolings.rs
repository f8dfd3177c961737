//! Every pooling on every engine, against plain f64 code over the engine's own hidden states.

use sconce_core::batch::{Batch, OutputKind, Sequence};
use sconce_core::card::{Pooling, PoolingMode};
use sconce_core::device::Device;
use sconce_core::engine::Encoder;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_testkit::compare::max_difference;
use sconce_testkit::goldens::Golden;

use crate::graphs::engines;
use crate::support::Copy;

/// The vectors of `tokens` as one vector; `skip` tokens of the prompt are left out.
fn plain(mode: PoolingMode, tokens: &[Vec<f64>], skip: usize) -> Vec<f64> {
    let rows = &tokens[skip..];
    let count = rows.len() as f64;
    let column = |place: usize| rows.iter().map(move |row| row[place]);
    let by_column = |of: &dyn Fn(usize) -> f64| (0..rows[0].len()).map(of).collect();
    match mode {
        PoolingMode::Cls => rows[0].clone(),
        PoolingMode::LastToken => rows[rows.len() - 1].clone(),
        PoolingMode::Max => by_column(&|place| column(place).max_by(f64::total_cmp).expect("a token")),
        PoolingMode::Mean => by_column(&|place| column(place).sum::<f64>() / count),
        PoolingMode::MeanSqrtLen => by_column(&|place| column(place).sum::<f64>() / count.sqrt()),
        PoolingMode::WeightedMean => by_column(&|place| {
            let weights = || (skip + 1..).map(|position| position as f64);
            let sum: f64 = column(place).zip(weights()).map(|(x, weight)| weight * x).sum();
            sum / weights().take(rows.len()).sum::<f64>()
        }),
    }
}

/// Texts of unlike lengths, some behind a prompt, one of which is as long as its text.
fn batch(output_kind: OutputKind) -> Batch {
    let ids = Golden::read("tiny-bert", "golden.safetensors").ids("ids");
    let mut batch = Batch::new(output_kind);
    for (length, skip) in [(1, 0), (2, 1), (7, 0), (33, 5), (128, 12), (5, 5), (3, 9)] {
        batch.push(&ids[..length], &vec![0; length], skip);
    }
    batch
}

fn hidden(encoder: &dyn Encoder) -> Vec<Vec<f64>> {
    let rows = encoder.encode(&batch(OutputKind::Tokens)).expect("the batch is computed").into_rows();
    rows.iter().map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
}

#[test]
fn every_pooling_on_every_engine_is_that_of_plain_code() {
    let folder = Copy::of("tiny-bert").with_graph("tiny-bert.onnx", "onnx/model.onnx");
    let mut spec = folder.read().expect("the golden is a model");
    spec.card.steps.value.clear();
    let engines = engines();
    for (id, dtype, weights) in [
        (EngineId::Candle, Dtype::F32, "model.safetensors"),
        (EngineId::Native, Dtype::F32, "model.safetensors"),
        (EngineId::Native, Dtype::Bf16, "model.safetensors"),
        (EngineId::Onnx, Dtype::F32, "onnx/model.onnx"),
    ] {
        let engine = engines.iter().find(|engine| engine.id() == id).expect("the engine is built");
        let placement = Placement { engine: id, device: Device::Cpu, weights: weights.to_owned(), dtype };
        let joined = PoolingMode::ALL.to_vec();
        for modes in PoolingMode::ALL.into_iter().map(|mode| vec![mode]).chain([joined]) {
            for include_prompt in [true, false] {
                spec.card.pooling.value = Pooling { modes: modes.clone(), include_prompt };
                let encoder = match engine.load(&spec, &placement) {
                    Ok(encoder) => encoder,
                    Err(obstacle) => {
                        // A processor without bf16 says so, and nothing else may.
                        assert_eq!((dtype, obstacle.code()), (Dtype::Bf16, "op_missing"), "{obstacle}");
                        continue;
                    }
                };
                let hidden = hidden(encoder.as_ref());
                let batch = batch(OutputKind::Pooled);
                let got = encoder.encode(&batch).expect("the batch is computed").into_rows();
                assert_eq!(got.iter().len(), batch.sequences.len());
                for (&Sequence { start, length, skip, .. }, row) in batch.sequences.iter().zip(got.iter()) {
                    let skip = if include_prompt { 0 } else { skip.min(length - 1) };
                    let tokens = &hidden[start..start + length];
                    let want: Vec<f64> = modes.iter().flat_map(|&mode| plain(mode, tokens, skip)).collect();
                    let off = max_difference(row, &want);
                    assert!(off < 1e-5, "{placement} {modes:?} of {length} tokens after {skip}: {off}");
                }
            }
        }
    }
}
