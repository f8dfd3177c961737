//! The ONNX engine: its library, and the graphs of a model.

use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use sconce_core::batch::{Batch, OutputKind};
use sconce_core::card::{Format, ModelCard};
use sconce_core::device::Device;
use sconce_core::engine::{Encoder, Engine, LoadProgress, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_core::probe::{ProbeCase, Sample};

use super::encoder::{Limits, OnnxEncoder};
use super::graph::{Graph, GraphOutput};
use super::library::{self, Library};
use super::nodes;
use super::session::{self, SessionOptions};
use crate::loaded_head::LoadedHead;
use crate::probe;
use crate::weights::SafetensorsFiles;

/// Version of the `ort` crate.
const ORT: &str = "2.0.0-rc.15";

/// ONNX Runtime.
pub struct OnnxEngine {
    threads: usize,
    library: OnceLock<Result<Library, Obstacle>>,
}

impl OnnxEngine {
    /// ONNX Runtime on `threads` threads; its library is searched on first use.
    pub fn new(threads: usize) -> OnnxEngine {
        OnnxEngine { threads, library: OnceLock::new() }
    }

    /// ONNX Runtime with the library at `file`.
    pub fn with_library(threads: usize, file: &Path) -> OnnxEngine {
        OnnxEngine { threads, library: OnceLock::from(library::at(file, "the program")) }
    }

    fn library(&self) -> Result<&Library, Obstacle> {
        self.library.get_or_init(library::find).as_ref().map_err(Clone::clone)
    }

    fn encoder(
        &self,
        model: &ModelSpec,
        placement: &Placement,
        profile: Option<&Path>,
    ) -> Result<OnnxEncoder, Obstacle> {
        let file = model.files.weights.get(&placement.weights).and_then(|files| files.first());
        let missing = || Obstacle::LoadFailed { reason: format!("no file `{}`", placement.weights) };
        let options = SessionOptions {
            library: self.library()?,
            file: file.ok_or_else(missing)?,
            device: placement.device,
            threads: self.threads,
            profile,
        };
        let session = session::open(&options)?;
        let graph = Graph::of(&session, &model.card)?;
        let head = (graph.output.kind == GraphOutput::Tokens)
            .then(|| LoadedHead::load(&model.card, &model.files, &SafetensorsFiles::default()))
            .transpose()
            .map_err(|error| Obstacle::LoadFailed { reason: error.full_message() })?;
        Ok(OnnxEncoder {
            graph,
            session: Mutex::new(session),
            head,
            limits: Limits::of(&model.card),
            normalizes: model.card.normalizes(),
        })
    }

    /// Runs `batch` with profiling on, and reads which execution provider computed which node.
    fn nodes(
        &self,
        model: &ModelSpec,
        placement: &Placement,
        batch: &Batch,
        sample: &mut Sample,
    ) -> Result<(), Obstacle> {
        let encoder = self.encoder(model, placement, Some(&nodes::record()))?;
        probe::once(&encoder, batch)?;
        let mut session = encoder.session.into_inner().unwrap_or_else(PoisonError::into_inner);
        let record = session.end_profiling().map_err(|error| session::failed(&error))?;
        sample.nodes = nodes::read(record.as_ref());
        Ok(())
    }
}

impl Engine for OnnxEngine {
    fn id(&self) -> EngineId {
        EngineId::Onnx
    }

    fn build(&self) -> String {
        let hash = crate::source_hash::source_hash();
        match self.library() {
            Ok(library) => format!(
                "onnxruntime {} in {} (found by {}, {}) ort {ORT} sconce {hash} threads={}",
                library.version(),
                library.path.display(),
                library.found_by,
                library.identity(),
                self.threads
            ),
            Err(_) => format!("no library, ort {ORT} sconce {hash}"),
        }
    }

    fn supports(&self, device: Device) -> Result<(), Obstacle> {
        self.library()?.drives(device.kind())
    }

    fn formats(&self) -> &'static [Format] {
        &[Format::Onnx]
    }

    fn dtypes(&self, _device: Device) -> Vec<Dtype> {
        Dtype::ALL.to_vec()
    }

    fn has_ops(&self) -> bool {
        false
    }

    /// Sessions may be made on any thread.
    fn loads_on_any_thread(&self) -> bool {
        true
    }

    /// A graph has no description.
    fn describe(&self, _card: &ModelCard) -> Result<String, Obstacle> {
        Ok("a graph".to_owned())
    }

    fn probe(&self, model: &ModelSpec, placement: &Placement, case: &ProbeCase) -> Result<Sample, Obstacle> {
        match case {
            ProbeCase::Op { .. }
            | ProbeCase::Twin { .. }
            | ProbeCase::Steps { .. }
            | ProbeCase::Decode { .. } => Err(Obstacle::OpMissing {
                op: case.to_string(),
                reason: "a graph runs as it is: nothing of its kind is generated".to_owned(),
            }),
            ProbeCase::Speed { batch, length } => {
                let batch = speed_batch(*batch, *length, model.card.sizes.value.vocabulary);
                probe::time_of(&self.encoder(model, placement, None)?, &batch)
            }
            ProbeCase::Canary { batches } => {
                let mut sample = probe::canary(&self.encoder(model, placement, None)?, batches)?;
                if let Some(batch) = batches.first() {
                    self.nodes(model, placement, batch, &mut sample)?;
                }
                Ok(sample)
            }
        }
    }

    fn load_with_progress(
        &self,
        model: &ModelSpec,
        placement: &Placement,
        _: &LoadProgress<'_>,
    ) -> Result<Box<dyn Encoder>, Obstacle> {
        Ok(Box::new(self.encoder(model, placement, None)?))
    }
}

/// Sequences of varied ids, for timing.
fn speed_batch(texts: usize, length: usize, vocabulary: usize) -> Batch {
    let mut batch = Batch::new(OutputKind::Pooled);
    for text in 0..texts {
        let ids: Vec<u32> =
            (0..length).map(|place| ((text * length + place) * 97 % vocabulary.max(1)) as u32).collect();
        batch.push(&ids, &vec![0; length], 0);
    }
    batch
}
