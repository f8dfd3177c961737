//! Opens the weight files of a model in either format.

use sconce_core::card::Format;
use sconce_core::engine::ModelSpec;

use crate::gguf::files::GgufFiles;
use crate::weights::{SafetensorsFiles, Tensors, WeightsError};

/// The tensors of the model's weights called `weights`.
pub(crate) fn open(model: &ModelSpec, weights: &str) -> Result<Box<dyn Tensors>, WeightsError> {
    let paths = model.files.weights.get(weights).ok_or_else(|| WeightsError::Missing(weights.to_owned()))?;
    match model.card.weights_named(weights).map(|weights| weights.format) {
        Some(Format::Gguf) => Ok(Box::new(GgufFiles::open(paths)?)),
        Some(Format::Safetensors | Format::Onnx) | None => Ok(Box::new(SafetensorsFiles::open(paths)?)),
    }
}
