//! The ONNX engine's chair: not in this version, and listed all the same, so that its absence is said.

use sconce_core::card::ModelCard;
use sconce_core::device::Device;
use sconce_core::engine::{Encoder, Engine, Subject};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_core::probe::{ProbeCase, Sample};

/// ONNX Runtime, which this version does not have.
pub struct OnnxEngine;

fn absent<T>() -> Result<T, Obstacle> {
    Err(Obstacle::engine_not_in_this_version(EngineId::Onnx))
}

impl Engine for OnnxEngine {
    fn id(&self) -> EngineId {
        EngineId::Onnx
    }

    fn build(&self) -> String {
        "absent".to_owned()
    }

    fn supports(&self, _device: Device) -> Result<(), Obstacle> {
        absent()
    }

    fn dtypes(&self, _device: Device) -> Vec<Dtype> {
        vec![Dtype::F32]
    }

    fn describe(&self, _card: &ModelCard) -> Result<String, Obstacle> {
        absent()
    }

    fn probe(&self, _: &Subject, _: &Placement, _: &ProbeCase) -> Result<Sample, Obstacle> {
        absent()
    }

    fn load(&self, _: &Subject, _: &Placement) -> Result<Box<dyn Encoder>, Obstacle> {
        absent()
    }
}
