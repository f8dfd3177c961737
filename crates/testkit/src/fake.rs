//! An engine that computes nothing real: every placement gives the same numbers, but for the faults put into it.

mod encoder;
mod fault;
mod gates;
mod numbers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use sconce_core::batch::{Batch, OutputKind};
use sconce_core::card::{Format, ModelCard};
use sconce_core::device::Device;
use sconce_core::engine::{Encoder, Engine, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_core::probe::{ProbeCase, Sample};
use serde::{Deserialize, Serialize};

use encoder::FakeEncoder;
pub use fault::{Fault, Mishap, ODD_TEXT};
use gates::Alive;
pub use gates::Gates;
use numbers::{Numbers, generated};

/// Numbers a token of a twin.
const TWIN_WIDTH: usize = 8;
/// Seconds that the CPU claims for a token, in f32.
const CPU_SECONDS: f64 = 1e-5;
/// How much faster than the CPU a healthy accelerator claims to be.
const ACCELERATION: f64 = 10.0;

/// A fake engine; it goes through JSON, so that a child process has the same faults.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FakeEngine {
    /// The engine it stands in for.
    pub id: EngineId,
    /// What it says of its build.
    pub build: String,
    /// The weights that it reads.
    pub format: Format,
    /// The number formats it has on every device.
    pub dtypes: Vec<Dtype>,
    /// How far, relative to each number, half dtypes stray; 0.02 is a distance of about 7e-5.
    pub half_noise: f32,
    /// How many batches its encoders take at once.
    pub concurrency: usize,
    /// Its faults.
    pub faults: Vec<Injected>,
    /// Batches that its encoders were given in this process.
    #[serde(skip)]
    pub batches: Arc<AtomicUsize>,
    /// Whether it can load beside an accelerator's thread.
    pub loads_on_any_thread: bool,
    /// What a test can hold up in this process.
    #[serde(skip)]
    pub gates: Arc<Gates>,
    /// While set, batches in this process wait inside the engine.
    #[serde(skip)]
    pub held: Arc<AtomicBool>,
}

/// A fault and the placements that have it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Injected {
    /// On this device.
    pub device: Device,
    /// In this dtype; in all where none is named.
    pub dtype: Option<Dtype>,
    /// What is wrong.
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

    /// The same for weights of another format.
    #[must_use]
    pub fn reading(mut self, format: Format) -> FakeEngine {
        self.format = format;
        self
    }

    /// The same with these number formats.
    #[must_use]
    pub fn dtypes(mut self, dtypes: &[Dtype]) -> FakeEngine {
        self.dtypes = dtypes.to_vec();
        self
    }

    /// The same with a fault on `device`.
    #[must_use]
    pub fn with(self, device: Device, fault: Fault) -> FakeEngine {
        self.inject(Injected { device, dtype: None, fault })
    }

    /// The same with a fault on `device` in `dtype`.
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

    fn numbers(&self, placement: &Placement, width: usize, normalizes: bool) -> Numbers {
        let noise = if placement.dtype == Dtype::F32 { 0.0 } else { self.half_noise };
        Numbers { width, normalizes, noise, scores: false }
    }

    /// Seconds that a placement claims for `tokens` tokens.
    fn seconds(&self, placement: &Placement, tokens: usize) -> f64 {
        let slower = self.faults_of(placement).into_iter().find_map(Fault::slower);
        let device = match placement.device {
            Device::Cpu => 1.0,
            Device::Metal(_) | Device::Cuda(_) => 1.0 / ACCELERATION,
        };
        let half = if placement.dtype == Dtype::F32 { 1.0 } else { 0.5 };
        tokens as f64 * CPU_SECONDS * half * slower.unwrap_or(device)
    }

    /// Computes `batch` as a probe: the violent faults strike, the numeric ones spoil the rows.
    fn sample(&self, placement: &Placement, batch: &Batch, numbers: &Numbers) -> Result<Sample, Obstacle> {
        let mut rows = numbers.rows(batch);
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

    fn format(&self) -> Format {
        self.format
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
                let mut rows = self.numbers(placement, TWIN_WIDTH, false).rows(&batch);
                for fault in faults {
                    fault.at_op(*op, &mut rows)?;
                }
                Ok(Sample { rows, ..Sample::default() })
            }
            ProbeCase::Twin { lengths, seed, output_kind } => {
                let batch = generated(lengths, *seed, *output_kind);
                self.sample(placement, &batch, &self.numbers(placement, TWIN_WIDTH, false))
            }
            ProbeCase::Speed { batch, length } => {
                let seconds = self.seconds(placement, batch * length);
                Ok(Sample { seconds, ..Sample::default() })
            }
            ProbeCase::Canary { batches } => {
                self.gates.pass(&self.gates.hold_canaries);
                let encoder = FakeEncoder::load(self, model, placement)?;
                let mut all = Sample::default();
                for (place, batch) in batches.iter().enumerate() {
                    let Sample { mut rows, seconds, .. } = self.sample(placement, batch, &encoder.numbers)?;
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

    fn load(&self, model: &ModelSpec, placement: &Placement) -> Result<Box<dyn Encoder>, Obstacle> {
        self.gates.pass(&self.gates.hold_loads);
        Ok(Box::new(FakeEncoder::load(self, model, placement)?))
    }
}
