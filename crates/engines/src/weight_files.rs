//! Opens the weight files of a model in either format, and reports how much of them has been read.

use std::cell::Cell;
use std::path::PathBuf;

use sconce_core::card::Format;
use sconce_core::engine::{LoadProgress, ModelSpec};

use crate::gguf::blocks::StoredType;
use crate::gguf::files::GgufFiles;
use crate::stored_tensor::StoredTensor;
use crate::weights::{SafetensorsFiles, Tensors, WeightsError};

/// The tensors of the model's weights called `weights`.
pub(crate) fn open<'a>(
    model: &ModelSpec,
    weights: &str,
    progress: &'a LoadProgress<'a>,
) -> Result<Box<dyn Tensors + 'a>, WeightsError> {
    let paths = model.files.weights.get(weights).ok_or_else(|| WeightsError::Missing(weights.to_owned()))?;
    let tensors: Box<dyn Tensors> = match model.card.weights_named(weights).map(|weights| weights.format) {
        Some(Format::Gguf) => Box::new(GgufFiles::open(paths)?),
        Some(Format::Safetensors | Format::Onnx) | None => Box::new(SafetensorsFiles::open(paths)?),
    };
    let size = |path: &PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
    Ok(Box::new(Reported { tensors, done: Cell::new(0), total: paths.iter().map(size).sum(), progress }))
}

/// Tensors that report each read.
struct Reported<'a> {
    tensors: Box<dyn Tensors>,
    done: Cell<u64>,
    total: u64,
    progress: &'a LoadProgress<'a>,
}

impl Tensors for Reported<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.tensors.shape(name)
    }

    fn stored_type(&self, name: &str) -> Option<StoredType> {
        self.tensors.stored_type(name)
    }

    fn stored(&self, name: &str) -> Result<Option<StoredTensor>, WeightsError> {
        let stored = self.tensors.stored(name)?;
        if let Some(tensor) = &stored {
            // A tensor that is read twice counts twice.
            self.done.set((self.done.get() + tensor.bytes.len() as u64).min(self.total));
            (self.progress)(self.done.get(), self.total);
        }
        Ok(stored)
    }

    fn names(&self) -> Vec<String> {
        self.tensors.names()
    }
}
