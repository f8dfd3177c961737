//! A fake machine: its runtime, its prover, which is this binary, and the results of prover children.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sconce::card::Overrides;
use sconce::planner::plan::{Constraints, Plan, Refusal};
use sconce::prove::{self, ProofDepth};
use sconce::{Device, EngineId, Model, ModelBuilder, ModelSource, Obstacle, Runtime, RuntimeBuilder};
use sconce_core::batch::Batch;
use sconce_core::device::DeviceKind;
use sconce_core::engine::{Engine, ModelSpec};
use sconce_core::hardware::{Cpu, Gpu, Hardware};
use sconce_testkit::fake::{FakeEngine, Fault};
use sconce_testkit::goldens;
use tempfile::TempDir;

/// Holds the engines of a child as JSON.
const ENGINES: &str = "SCONCE_TEST_ENGINES";
/// Names the file into which a child writes its process id.
const STARTS: &str = "SCONCE_TEST_STARTS";
/// Names the file into which a child writes how many threads it was told to use.
const THREADS: &str = "SCONCE_TEST_THREADS";

pub(crate) const METAL: Device = Device::METAL;
pub(crate) const CUDA: Device = Device::CUDA;
pub(crate) const TEXTS: [&str; 4] = [
    "candle",
    "A sconce holds a candle in its place.",
    "how do I place a model on the right device?",
    "When the lamplighter reached the last street he turned around and counted the lights behind him.",
];

#[test]
fn prover_child() {
    let Ok(engines) = std::env::var(ENGINES) else { return };
    if let Some(starts) = std::env::var_os(STARTS) {
        let mut file = OpenOptions::new().create(true).append(true).open(starts).expect("the file opens");
        writeln!(file, "{}", std::process::id()).expect("the file is written");
    }
    let engines: Vec<FakeEngine> = serde_json::from_str(&engines).expect("the engines are JSON");
    prove::run_child(|threads| {
        if let Some(file) = std::env::var_os(THREADS) {
            fs::write(file, threads.to_string()).expect("the file is written");
        }
        shared(&engines)
    });
}

fn shared(engines: &[FakeEngine]) -> Vec<Arc<dyn Engine>> {
    engines.iter().map(|engine| Arc::new(engine.clone()) as Arc<dyn Engine>).collect()
}

/// A Mac with one GPU.
pub(crate) fn mac() -> Hardware {
    Hardware {
        os: "macos 15.5".to_owned(),
        arch: "aarch64".to_owned(),
        cpu: Cpu { model: "Apple M9".to_owned(), cores: 8, flags: vec!["neon".to_owned()] },
        memory: 16 << 30,
        gpus: vec![Gpu {
            kind: Some(DeviceKind::Metal),
            index: 0,
            name: "Apple M9".to_owned(),
            memory: Some(12 << 30),
            driver: Some("Metal 4".to_owned()),
            seen_by: "a test".to_owned(),
        }],
        tools: Vec::new(),
    }
}

/// A Linux machine with one NVIDIA GPU.
pub(crate) fn nvidia() -> Hardware {
    let mut hardware = Hardware { os: "linux 6.1".to_owned(), arch: "x86_64".to_owned(), ..mac() };
    hardware.gpus[0].kind = Some(DeviceKind::Cuda);
    hardware
}

/// The fake Candle that most tests ask.
pub(crate) fn candle() -> FakeEngine {
    FakeEngine::new(EngineId::Candle)
}

/// A machine made of fakes.
pub(crate) struct Stage {
    pub(crate) home: TempDir,
    pub(crate) hardware: Hardware,
    pub(crate) engines: Vec<FakeEngine>,
    pub(crate) limit: Duration,
    pub(crate) timeout: Duration,
}

impl Stage {
    /// A Mac on which `engine` runs.
    pub(crate) fn new(engine: FakeEngine) -> Stage {
        Stage {
            home: tempfile::tempdir().expect("a folder can be made"),
            hardware: mac(),
            engines: vec![engine],
            limit: Duration::from_secs(30),
            timeout: Duration::from_secs(5),
        }
    }

    fn starts_file(&self) -> PathBuf {
        self.home.path().join("starts.txt")
    }

    /// A runtime that proves in this process.
    pub(crate) fn in_process(&self) -> RuntimeBuilder {
        Runtime::builder()
            .engines(shared(&self.engines))
            .hardware(self.hardware.clone())
            .home(self.home.path())
            .threads(1)
            .time_limit(self.limit)
            .timeout(self.timeout)
            .offline(true)
    }

    /// A runtime that proves in children.
    pub(crate) fn runtime(&self) -> Runtime {
        self.in_children().build()
    }

    pub(crate) fn in_children(&self) -> RuntimeBuilder {
        let mut command = Command::new(std::env::current_exe().expect("this binary has a path"));
        command
            .args(["fakes::prover_child", "--exact", "--nocapture"])
            .env(ENGINES, serde_json::to_string(&self.engines).expect("engines are JSON"))
            .env(STARTS, self.starts_file())
            .env(THREADS, self.threads_file());
        self.in_process().prover(&command)
    }

    fn threads_file(&self) -> PathBuf {
        self.home.path().join("threads.txt")
    }

    /// How many threads the last child was told to use.
    pub(crate) fn threads(&self) -> Option<usize> {
        fs::read_to_string(self.threads_file()).ok()?.parse().ok()
    }

    /// The process ids of all children so far.
    pub(crate) fn starts(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.starts_file()).unwrap_or_default();
        text.lines().map(|line| line.parse().expect("a process id")).collect()
    }

    /// What all is known about tiny-bert, the real weights too.
    pub(crate) fn plan(&self) -> Plan {
        plan(&self.runtime(), &goldens::folder("tiny-bert"), ProofDepth::Canary)
    }

    /// tiny-bert, open.
    pub(crate) fn model(&self) -> Model {
        builder(&self.runtime()).open().expect("something serves")
    }
}

/// tiny-bert, to be opened.
pub(crate) fn builder(runtime: &Runtime) -> ModelBuilder {
    Model::builder(&goldens::folder("tiny-bert").to_string_lossy()).runtime(runtime)
}

/// tiny-bert where both placements have these faults.
pub(crate) fn open(on_metal: &[Fault], on_cpu: &[Fault]) -> Kept {
    let faults = |engine: FakeEngine, device, faults: &[Fault]| {
        faults.iter().fold(engine, |engine, &fault| engine.with(device, fault))
    };
    let engine = faults(faults(candle(), METAL, on_metal), Device::Cpu, on_cpu);
    kept(engine, None)
}

/// A model, and the folder of its evidence.
pub(crate) struct Kept {
    pub(crate) model: Model,
    pub(crate) _stage: Stage,
}

impl Deref for Kept {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

/// tiny-bert on an engine, on one device if it is named.
pub(crate) fn kept(engine: FakeEngine, device: Option<Device>) -> Kept {
    let stage = Stage::new(engine);
    let builder = builder(&stage.in_process().build());
    let builder = device.into_iter().fold(builder, ModelBuilder::device);
    Kept { model: builder.open().expect("something serves"), _stage: stage }
}

/// The texts as one batch, in their order.
pub(crate) fn batch(model: &Model, texts: &[&str]) -> Batch {
    let mut batch = Batch::new(model.output_kind());
    for text in model.encode_texts(&sconce::Prompt::Default, texts).expect("texts are tokens") {
        batch.push(&text.ids, &text.type_ids, text.prompt_tokens);
    }
    batch
}

pub(crate) fn spec(runtime: &Runtime, folder: &Path) -> ModelSpec {
    let source = ModelSource::parse(&folder.to_string_lossy(), None);
    runtime.model_spec(&source, &Overrides::default(), &mut |_| {}).expect("the golden is a model")
}

pub(crate) fn plan(runtime: &Runtime, folder: &Path, depth: ProofDepth) -> Plan {
    let spec = spec(runtime, folder);
    runtime.plan(&spec, &Constraints::default(), depth, &mut |_| {}).expect("a plan can be made")
}

/// The vectors of `texts` where nothing is wrong.
pub(crate) fn healthy(texts: &[impl AsRef<str> + Sync]) -> Vec<Vec<f32>> {
    let stage = Stage::new(candle());
    let model = builder(&stage.in_process().build()).open().expect("nothing is wrong");
    model.embed(texts).expect("nothing is wrong").into_vectors()
}

/// What stands against the first placement on `device` that something stands against.
pub(crate) fn obstacle(plan: &Plan, device: Device) -> Option<&Obstacle> {
    plan.refused.iter().find_map(|refused| match &refused.why {
        Refusal::Obstacle(obstacle) if refused.placement.device == device => Some(obstacle),
        Refusal::Obstacle(_) | Refusal::Band { .. } | Refusal::NotRequested | Refusal::NotTried => None,
    })
}

/// Whether a process of this id is there, be it dead and not yet buried.
pub(crate) fn is_alive(pid: u32) -> bool {
    let process = Path::new("/proc");
    if process.join("self").exists() {
        return process.join(pid.to_string()).exists();
    }
    Command::new("ps").args(["-p", &pid.to_string()]).output().is_ok_and(|output| output.status.success())
}
