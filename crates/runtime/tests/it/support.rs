//! Shared helpers: goldens on an engine, folders to modify, a runtime in a temporary folder.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype as Stored, TensorView};
use sconce::card::{self, Overrides};
use sconce::{Model, ModelBuilder, Runtime};
use sconce_core::batch::{Batch, Output, OutputKind};
use sconce_core::device::Device;
use sconce_core::engine::{Encoder, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_testkit::compare::largest;
use sconce_testkit::goldens::{self, Golden, apart};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) fn spec(name: &str) -> ModelSpec {
    card::read(name, &goldens::folder(name), &Overrides::default()).expect("the golden is a model")
}

/// The engines that interpret descriptions, and so are held to the same goldens.
pub(crate) const INTERPRETERS: [EngineId; 2] = [EngineId::Candle, EngineId::Native];

/// The reference: Candle's.
pub(crate) fn load(spec: &ModelSpec, dtype: Dtype) -> Box<dyn Encoder> {
    load_on(EngineId::Candle, spec, dtype).expect("the golden loads")
}

pub(crate) fn load_on(
    engine: EngineId,
    spec: &ModelSpec,
    dtype: Dtype,
) -> Result<Box<dyn Encoder>, Obstacle> {
    let weights = spec.card.weights[0].name.clone();
    let placement = Placement { engine, device: Device::Cpu, weights, dtype };
    let engines = sconce_engines::all(2);
    let found = engines.iter().find(|candidate| candidate.id() == engine).expect("the engine is known");
    found.load(spec, &placement)
}

/// The hidden states of each of `sequences`, computed in one batch.
pub(crate) fn tokens(encoder: &dyn Encoder, sequences: &[&[u32]], types: Option<&[u32]>) -> Vec<Vec<f32>> {
    let mut batch = Batch::new(OutputKind::Tokens);
    for ids in sequences {
        batch.push(ids, types.unwrap_or(&vec![0; ids.len()]), 0);
    }
    let Output::Tokens(rows) = encoder.encode(&batch).expect("the batch is computed") else {
        panic!("asked for tokens");
    };
    let mut values = rows.values.as_slice();
    let split = |ids: &&[u32]| {
        let (own, rest) = values.split_at(ids.len() * rows.width);
        values = rest;
        own.to_vec()
    };
    sequences.iter().map(split).collect()
}

/// The largest difference over every hidden state that the golden has.
pub(crate) fn worst(golden: &Golden, encoder: &dyn Encoder) -> f64 {
    let ids = golden.ids("ids");
    let lengths = golden.lengths();
    let singles = lengths.iter().map(|&length| {
        let got = tokens(encoder, &[&ids[..length]], None).remove(0);
        apart(&got, golden.numbers(&format!("hidden.{length}")))
    });
    let mut worst = largest(singles);
    if golden.has("types") {
        let got = tokens(encoder, &[&ids[..64]], Some(&golden.ids("types"))).remove(0);
        worst = worst.max(apart(&got, golden.numbers("hidden.types")));
    }
    if golden.has("ids.pad") {
        let got = tokens(encoder, &[&golden.ids("ids.pad")], None).remove(0);
        worst = worst.max(apart(&got, golden.numbers("hidden.pad")));
    }
    worst
}

/// The texts that a golden has embeddings of.
pub(crate) fn texts(name: &str) -> Vec<String> {
    let bytes = fs::read(goldens::folder(name).join("texts.json")).expect("the golden has texts");
    serde_json::from_slice(&bytes).expect("texts")
}

fn runtime(home: &Path) -> Runtime {
    Runtime::builder().home(home).offline(true).build()
}

/// A runtime with its evidence.
pub(crate) struct Home {
    pub(crate) runtime: Runtime,
    _folder: Option<TempDir>,
}

impl Home {
    /// The evidence is shared between tests: each model is proved once.
    pub(crate) fn new() -> Home {
        Home { runtime: runtime(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("evidence")), _folder: None }
    }

    /// Everything is proved anew; the evidence is removed with it.
    pub(crate) fn unproved() -> Home {
        let folder = tempfile::tempdir().expect("a folder");
        Home { runtime: runtime(folder.path()), _folder: Some(folder) }
    }

    /// The model in `folder`, in f32.
    pub(crate) fn model(&self, folder: &Path) -> ModelBuilder {
        let name = folder.to_str().expect("a path that is text");
        Model::builder(name).runtime(&self.runtime).dtype(Dtype::F32)
    }
}

/// A copy of a golden that a test may change.
pub(crate) struct Copy {
    folder: TempDir,
}

impl Copy {
    pub(crate) fn of(name: &str) -> Copy {
        let folder = tempfile::tempdir().expect("a folder");
        goldens::copy(name, folder.path());
        Copy { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    pub(crate) fn without(self, file: &str) -> Copy {
        fs::remove_file(self.file(file)).expect("the golden has this file");
        self
    }

    /// With a graph of the goldens at `file`.
    pub(crate) fn with_graph(self, graph: &str, file: &str) -> Copy {
        let bytes = fs::read(goldens::folder("graphs").join(graph)).expect("the golden is there");
        fs::create_dir_all(self.file(file).parent().expect("a file has a folder")).expect("a folder");
        self.with(file, bytes)
    }

    pub(crate) fn with(self, file: &str, content: impl AsRef<[u8]>) -> Copy {
        fs::write(self.file(file), content).expect("a file can be written");
        self
    }

    /// Sets a key at the top of a JSON file; null removes it.
    pub(crate) fn setting(self, file: &str, key: &str, value: Value) -> Copy {
        self.json(file, |json| {
            if value.is_null() {
                json.as_object_mut().expect("an object").remove(key);
            } else {
                json[key] = value;
            }
        })
    }

    pub(crate) fn json(self, file: &str, change: impl FnOnce(&mut Value)) -> Copy {
        let bytes = fs::read(self.file(file)).expect("the golden has this file");
        let mut json = serde_json::from_slice(&bytes).expect("JSON");
        change(&mut json);
        self.with(file, json.to_string())
    }

    pub(crate) fn read(&self) -> Result<ModelSpec, card::CardError> {
        card::read("copy", self.path(), &Overrides::default())
    }
}

/// A tensor out of a file, in f32.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

pub(crate) fn read_tensors(path: &Path) -> Vec<Tensor> {
    let bytes = fs::read(path).expect("the weights are there");
    let tensors = SafeTensors::deserialize(&bytes).expect("the weights are whole");
    let read = tensors.iter().map(|(name, view)| {
        assert_eq!(view.dtype(), Stored::F32, "{name}");
        let values = view.data().as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        Tensor { name: name.to_owned(), shape: view.shape().to_vec(), values }
    });
    read.collect()
}

pub(crate) fn write_tensors(path: &Path, tensors: &[Tensor]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|tensor| tensor.values.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
        let view = TensorView::new(Stored::F32, tensor.shape.clone(), bytes).expect("shape and bytes agree");
        (&tensor.name, view)
    });
    safetensors::serialize_to_file(views, None, path).expect("weights can be written");
}
