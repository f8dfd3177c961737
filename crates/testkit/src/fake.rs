//! A fake engine: every placement gives the same values, except for injected faults.

mod encoder;
mod fault;
mod gates;
mod output;

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use sconce_core::batch::{Batch, OutputKind};
use sconce_core::card::{Format, ModelCard, Task};
use sconce_core::device::Device;
use sconce_core::engine::{Encoder, Engine, LoadProgress, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_core::probe::{ProbeCase, Sample};
use serde::{Deserialize, Serialize};

use encoder::FakeEncoder;
pub use fault::{BatchFault, Fault, ODD_TEXT};
pub use gates::Gates;
use output::{OutputGenerator, generated};

/// Hidden size of a twin.
const TWIN_WIDTH: usize = 8;
/// Reported seconds per token on the CPU in f32.
const CPU_SECONDS: f64 = 1e-5;
/// Reported speedup of a healthy accelerator.
const ACCELERATION: f64 = 10.0;

/// A fake engine. It is serializable, so that a child process has the same faults.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FakeEngine {
    /// The id of the engine that it replaces.
    pub id: EngineId,
    /// The build string.
    pub build: String,
    /// The weight format that it reads.
    pub format: Format,
    /// Dtypes on every device.
    pub dtypes: Vec<Dtype>,
    /// Relative error of 16-bit dtypes; 0.02 is a distance of about 7e-5.
    pub half_noise: f32,
    /// Maximum number of concurrent `encode` calls.
    pub concurrency: usize,
    /// Injected faults.
    pub faults: Vec<Injected>,
    /// Batches that its encoders computed in this process.
    #[serde(skip)]
    pub batches: Arc<AtomicUsize>,
    /// Whether it may load on another thread than the device thread.
    pub loads_on_any_thread: bool,
    /// Gates that block loads and canaries in this process.
    #[serde(skip)]
    pub gates: Arc<Gates>,
    /// While set, batches in this process block inside the engine.
    #[serde(skip)]
    pub held: Arc<AtomicBool>,
}

/// A fault and the placements that it affects.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Injected {
    /// The device.
    pub device: Device,
    /// The dtype; all dtypes if none.
    pub dtype: Option<Dtype>,
    /// The fault.
    pub fault: Fault,
}

impl FakeEngine {
    /// A healthy engine that computes in f32 only.
    pub fn new(id: EngineId) -> FakeEngine {
        FakeEngine {
            id,
            build: format!("fake {id} 1"),
            format: Format::Safetensors,
            dtypes: vec![Dtype::F32],
            half_noise: 0.02,
            concurrency: 1,
            faults: Vec::new(),
            batches: Arc::default(),
            loads_on_any_thread: false,
            gates: Arc::default(),
            held: Arc::default(),
        }
    }

    /// Sets the weight format.
    #[must_use]
    pub fn reading(mut self, format: Format) -> FakeEngine {
        self.format = format;
        self
    }

    /// Sets the dtypes.
    #[must_use]
    pub fn dtypes(mut self, dtypes: &[Dtype]) -> FakeEngine {
        self.dtypes = dtypes.to_vec();
        self
    }

    /// Injects a fault on `device`.
    #[must_use]
    pub fn with(self, device: Device, fault: Fault) -> FakeEngine {
        self.inject(Injected { device, dtype: None, fault })
    }

    /// Injects a fault on `device` in `dtype`.
    #[must_use]
    pub fn with_in(self, device: Device, dtype: Dtype, fault: Fault) -> FakeEngine {
        self.inject(Injected { device, dtype: Some(dtype), fault })
    }

    fn inject(mut self, injected: Injected) -> FakeEngine {
        self.faults.push(injected);
        self
    }

    fn faults_on(&self, device: Device, dtype: Option<Dtype>) -> Vec<Fault> {
        let hits = |injected: &&Injected| {
            injected.device == device
                && (injected.dtype.is_none() || dtype.is_none() || injected.dtype == dtype)
        };
        self.faults.iter().filter(hits).map(|injected| injected.fault).collect()
    }

    fn faults_of(&self, placement: &Placement) -> Vec<Fault> {
        self.faults_on(placement.device, Some(placement.dtype))
    }

    fn generator(&self, placement: &Placement, width: usize, normalizes: bool) -> OutputGenerator {
        let noise = if placement.dtype == Dtype::F32 { 0.0 } else { self.half_noise };
        OutputGenerator { width, normalizes, noise, scores: false }
    }

    /// Reported seconds for `tokens` tokens.
    fn seconds(&self, placement: &Placement, tokens: usize) -> f64 {
        let slower = self.faults_of(placement).into_iter().find_map(Fault::slower);
        let device = match placement.device {
            Device::Cpu => 1.0,
            Device::Metal(_) | Device::Cuda(_) => 1.0 / ACCELERATION,
        };
        let half = if placement.dtype == Dtype::F32 { 1.0 } else { 0.5 };
        tokens as f64 * CPU_SECONDS * half * slower.unwrap_or(device)
    }

    fn encoder(&self, model: &ModelSpec, placement: &Placement) -> Result<FakeEncoder, Obstacle> {
        let faults = self.faults_of(placement);
        if faults.contains(&Fault::DoesNotFit) {
            return Err(Obstacle::DoesNotFit { need: Some(2_000_000_000), have: Some(1_000_000_000) });
        }
        if faults.contains(&Fault::ProviderFails) {
            let reason = "the fake has no such provider".to_owned();
            return Err(Obstacle::ProviderFailed { provider: "FakeExecutionProvider".to_owned(), reason });
        }
        let generator = OutputGenerator {
            scores: model.card.task.value.scores(),
            ..self.generator(placement, model.card.width(), model.card.normalizes())
        };
        Ok(FakeEncoder {
            generator,
            faults,
            concurrency: self.concurrency,
            batches: AtomicUsize::new(0),
            total_batches: Arc::clone(&self.batches),
            vocabulary: (model.card.task.value == Task::Generate)
                .then_some(model.card.sizes.value.vocabulary),
            blocks: Mutex::default(),
            _alive: self.gates.enter(),
            held: Arc::clone(&self.held),
        })
    }

    /// Computes `batch` as a probe, with all faults of the placement.
    fn sample(
        &self,
        placement: &Placement,
        batch: &Batch,
        generator: &OutputGenerator,
    ) -> Result<Sample, Obstacle> {
        let mut rows = generator.rows(batch);
        for fault in self.faults_of(placement) {
            fault.strike(batch)?;
            fault.spoil(&mut rows, batch);
        }
        Ok(Sample { rows, seconds: self.seconds(placement, batch.tokens()), ..Sample::default() })
    }
}

impl Engine for FakeEngine {
    fn id(&self) -> EngineId {
        self.id
    }

    fn build(&self) -> String {
        self.build.clone()
    }

    fn supports(&self, device: Device) -> Result<(), Obstacle> {
        let obstacle = self.faults_on(device, None).into_iter().find_map(|fault| fault.beforehand(device));
        obstacle.map_or(Ok(()), Err)
    }

    fn formats(&self) -> &'static [Format] {
        match self.format {
            Format::Safetensors => &[Format::Safetensors],
            Format::Gguf => &[Format::Gguf],
            Format::Onnx => &[Format::Onnx],
        }
    }

    fn dtypes(&self, _device: Device) -> Vec<Dtype> {
        self.dtypes.clone()
    }

    fn describe(&self, card: &ModelCard) -> Result<String, Obstacle> {
        Ok(format!("a fake {}", card.architecture.value))
    }

    fn probe(&self, model: &ModelSpec, placement: &Placement, case: &ProbeCase) -> Result<Sample, Obstacle> {
        let faults = self.faults_of(placement);
        match case {
            ProbeCase::Op { op, shape } => {
                let batch = generated(&vec![shape[1]; shape[0]], *op as u64, OutputKind::Pooled);
                let mut rows = self.generator(placement, TWIN_WIDTH, false).rows(&batch);
                for fault in faults {
                    fault.at_op(*op, &mut rows)?;
                }
                Ok(Sample { rows, ..Sample::default() })
            }
            ProbeCase::Twin { lengths, seed, output_kind } => {
                let batch = generated(lengths, *seed, *output_kind);
                self.sample(placement, &batch, &self.generator(placement, TWIN_WIDTH, false))
            }
            ProbeCase::Steps { lengths, seed, .. } => {
                let batch = generated(lengths, *seed, OutputKind::Tokens);
                self.sample(placement, &batch, &self.generator(placement, TWIN_WIDTH, false))
            }
            ProbeCase::Speed { batch, length } => {
                let seconds = self.seconds(placement, batch * length);
                Ok(Sample { seconds, ..Sample::default() })
            }
            ProbeCase::Decode { batch, .. } => {
                let seconds = self.seconds(placement, *batch);
                Ok(Sample { seconds, ..Sample::default() })
            }
            ProbeCase::Canary { batches } => {
                self.gates.pass(&self.gates.hold_canaries);
                let encoder = self.encoder(model, placement)?;
                let mut all = Sample::default();
                for (place, batch) in batches.iter().enumerate() {
                    let Sample { mut rows, seconds, .. } =
                        self.sample(placement, batch, &encoder.generator)?;
                    encoder.spoil_weights(&mut rows);
                    all.seconds = if place == 0 { seconds } else { all.seconds };
                    all.rows.width = rows.width;
                    all.rows.values.extend(rows.values);
                    all.rows.norms.extend(rows.norms);
                }
                Ok(all)
            }
        }
    }

    fn loads_on_any_thread(&self) -> bool {
        self.loads_on_any_thread
    }

    fn load_with_progress(
        &self,
        model: &ModelSpec,
        placement: &Placement,
        progress: &LoadProgress<'_>,
    ) -> Result<Box<dyn Encoder>, Obstacle> {
        self.gates.pass(&self.gates.hold_loads);
        let encoder = self.encoder(model, placement)?;
        let bytes = model.card.weights_named(&placement.weights).map_or(0, |weights| weights.bytes);
        progress(bytes, bytes);
        Ok(Box::new(encoder))
    }
}
