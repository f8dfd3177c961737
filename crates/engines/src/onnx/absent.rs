//! The ONNX engine of a build without it: listed, so that plans report its absence.

use sconce_core::card::{Format, ModelCard};
use sconce_core::device::Device;
use sconce_core::engine::{Encoder, Engine, LoadProgress, ModelSpec};
use sconce_core::obstacle::{BuildPart, Obstacle};
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_core::probe::{ProbeCase, Sample};

/// ONNX Runtime, which this build lacks.
pub struct OnnxEngine;

impl OnnxEngine {
    /// The engine.
    pub fn new(_threads: usize) -> OnnxEngine {
        OnnxEngine
    }
}

fn absent<T>() -> Result<T, Obstacle> {
    Err(Obstacle::NotBuilt {
        part: BuildPart::Engine,
        what: "the onnx engine".to_owned(),
        feature: Some("onnx".to_owned()),
    })
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

    fn formats(&self) -> &'static [Format] {
        &[Format::Onnx]
    }

    fn dtypes(&self, _device: Device) -> Vec<Dtype> {
        Dtype::ALL.to_vec()
    }

    fn describe(&self, _card: &ModelCard) -> Result<String, Obstacle> {
        absent()
    }

    fn probe(&self, _: &ModelSpec, _: &Placement, _: &ProbeCase) -> Result<Sample, Obstacle> {
        absent()
    }

    fn load_with_progress(
        &self,
        _: &ModelSpec,
        _: &Placement,
        _: &LoadProgress<'_>,
    ) -> Result<Box<dyn Encoder>, Obstacle> {
        absent()
    }
}
