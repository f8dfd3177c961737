//! Names of probe cases, and defaults of engines.

use sconce_core::batch::{Batch, Output, OutputKind, Rows};
use sconce_core::card::{Format, ModelCard};
use sconce_core::device::Device;
use sconce_core::engine::{BatchLayout, Encoder, Engine, EngineError, LoadProgress, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_core::probe::{Op, ProbeCase, Sample};

#[test]
fn a_case_has_a_short_name() {
    let twin = |lengths: &[usize]| ProbeCase::Twin {
        lengths: lengths.to_vec(),
        seed: 0,
        output_kind: OutputKind::Tokens,
    };
    let mut two = Batch::new(OutputKind::Pooled);
    two.push(&[1], &[0], 0);
    two.push(&[2], &[0], 0);
    for (case, words) in [
        (ProbeCase::Op { op: Op::LayerNorm, shape: [7, 384] }, "op layer-norm 7x384"),
        (twin(&[5, 4]), "twin of lengths [5, 4]"),
        (twin(&[1, 2, 3, 4, 5, 6]), "twin of lengths [1, 2, 3, 4, 5, 6]"),
        (twin(&[1, 2, 3, 4, 5, 6, 9]), "twin of lengths 1..9 (7)"),
        (ProbeCase::Speed { batch: 8, length: 128 }, "speed 8x128"),
        (
            ProbeCase::Steps { lengths: vec![1, 33], chunk: 16, seed: 0 },
            "steps of prompts [1, 33] in chunks of 16",
        ),
        (ProbeCase::Decode { batch: 8, cached: 128 }, "decode 8 after 128"),
        (ProbeCase::Canary { batches: vec![two.clone(), two.part(0..1)] }, "canary of 3 texts"),
    ] {
        assert_eq!(case.to_string(), words);
    }
}

#[test]
fn ops_have_names_of_their_own() {
    let names = Op::ALL.map(|op| op.to_string());
    let expected = ["pick-rows", "matmul", "matmul-transposed", "transpose", "layer-norm", "softmax", "gelu"];
    assert_eq!(names, expected);
    assert_eq!(format!("{:>20}", Op::Gelu).len(), 20);
}

/// An engine with the required methods only.
struct Least;

impl Engine for Least {
    fn id(&self) -> EngineId {
        EngineId::Candle
    }

    fn build(&self) -> String {
        String::new()
    }

    fn supports(&self, _device: Device) -> Result<(), Obstacle> {
        Ok(())
    }

    fn dtypes(&self, _device: Device) -> Vec<Dtype> {
        Vec::new()
    }

    fn describe(&self, _card: &ModelCard) -> Result<String, Obstacle> {
        Ok(String::new())
    }

    fn probe(&self, _: &ModelSpec, _: &Placement, _: &ProbeCase) -> Result<Sample, Obstacle> {
        Ok(Sample::default())
    }

    fn load_with_progress(
        &self,
        _: &ModelSpec,
        _: &Placement,
        _: &LoadProgress<'_>,
    ) -> Result<Box<dyn Encoder>, Obstacle> {
        Ok(Box::new(Least))
    }
}

impl Encoder for Least {
    fn encode(&self, _batch: &Batch) -> Result<Output, EngineError> {
        Ok(Output::Rows(Rows::default()))
    }

    fn batch_layout(&self) -> BatchLayout {
        BatchLayout::Packed
    }
}

#[test]
fn an_engine_reads_tensors_and_has_ops_and_one_batch_at_a_time_unless_it_says_otherwise() {
    assert_eq!(
        (Engine::formats(&Least), Least.has_ops(), Least.concurrency()),
        (&[Format::Safetensors, Format::Gguf][..], true, 1)
    );
}
