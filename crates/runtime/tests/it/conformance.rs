//! One conformance suite over every engine on the CPU.

use std::sync::Arc;

use sconce::{Device, Dtype, EngineId, Placement};
use sconce_core::engine::{Engine, ModelSpec};
use sconce_testkit::conformance::{Examined, examine};

use crate::graphs::engines;
use crate::support::Copy;

fn tiny_bert() -> (Copy, ModelSpec) {
    let folder = Copy::of("tiny-bert").with_graph("tiny-bert.onnx", "onnx/model.onnx");
    let spec = folder.read().expect("the golden is a model");
    (folder, spec)
}

fn conforms(id: EngineId, weights: &str, dtype: Dtype, tolerance: f32) {
    let (_folder, spec) = tiny_bert();
    let engines = engines();
    let engine: &Arc<dyn Engine> = engines.iter().find(|engine| engine.id() == id).expect("it is built");
    let placement = Placement { engine: id, device: Device::Cpu, weights: weights.to_owned(), dtype };
    if let Err(obstacle) = engine.load(&spec, &placement) {
        // A processor without matrix tiles says so, and nothing else may.
        assert_eq!((id, dtype, obstacle.code()), (EngineId::Native, Dtype::Bf16, "op_missing"), "{obstacle}");
        println!("{obstacle}");
        return;
    }
    examine(&Examined { engine: engine.as_ref(), subject: &spec, placement, tolerance });
}

#[test]
fn candle_in_f32() {
    conforms(EngineId::Candle, "model.safetensors", Dtype::F32, 1e-4);
}

#[test]
fn candle_in_f16() {
    conforms(EngineId::Candle, "model.safetensors", Dtype::F16, 2e-2);
}

#[test]
fn native_in_f32() {
    conforms(EngineId::Native, "model.safetensors", Dtype::F32, 1e-4);
}

#[test]
fn native_in_bf16() {
    conforms(EngineId::Native, "model.safetensors", Dtype::Bf16, 5e-2);
}

#[test]
fn onnx_in_f32() {
    conforms(EngineId::Onnx, "onnx/model.onnx", Dtype::F32, 1e-4);
}
