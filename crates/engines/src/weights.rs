//! Sources of weights: safetensors files, read tensor by tensor, or generated values.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::f16;
use safetensors::tensor::{Dtype as Stored, Metadata};
use sconce_core::files::ModelFiles;

use crate::gguf::blocks::StoredType;
use crate::regular_file;
use crate::stored_tensor::StoredTensor;

/// A source of named tensors.
pub trait Tensors {
    /// The shape of a tensor; none if it does not exist.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// How a tensor is stored; none if it does not exist, or if the source has values but no files.
    fn stored_type(&self, _name: &str) -> Option<StoredType> {
        None
    }

    /// Reads a tensor as it is stored; none if it does not exist, or if the source has values but no files.
    fn stored(&self, _name: &str) -> Result<Option<StoredTensor>, WeightsError> {
        Ok(None)
    }

    /// Reads a tensor of this shape, converted to f32.
    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let missing = || WeightsError::Missing(name.to_owned());
        let found = self.shape(name).ok_or_else(missing)?;
        if found != shape {
            return Err(WeightsError::Shape { name: name.to_owned(), found, wanted: shape.to_vec() });
        }
        Ok(self.stored(name)?.ok_or_else(missing)?.dequantize())
    }

    /// The names of all tensors, if known.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the values are generated, not trained.
    fn generated(&self) -> bool {
        false
    }
}

/// Why weights could not be read.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file could not be read.
    #[error("`{}` can't be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a valid safetensors file.
    #[error("`{}` is not a whole safetensors file: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is invalid.
        why: String,
    },
    /// The file is not a valid ONNX file.
    #[error("`{}` is not a whole ONNX file: {why}", path.display())]
    Graph {
        /// The file.
        path: PathBuf,
        /// What is invalid.
        why: String,
    },
    /// The file is not a valid GGUF file.
    #[error("`{}` is not a whole GGUF file: {why}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is invalid.
        why: String,
    },
    /// A tensor of the architecture is missing.
    #[error("no tensor `{0}`")]
    Missing(String),
    /// A layer tensor that the description does not use.
    #[error("tensor `{0}` has no place in the description of this family")]
    Unplaced(String),
    /// A tensor's shape does not match the config.
    #[error("tensor `{name}` has shape {found:?}, the config promises {wanted:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that the config implies.
        wanted: Vec<usize>,
    },
    /// A tensor's dtype is not supported.
    #[error("tensor `{name}` is stored as {stored}, which is not read; known: F32, F16, BF16")]
    Stored {
        /// The tensor.
        name: String,
        /// Its dtype.
        stored: String,
    },
}

impl WeightsError {
    /// The error with its cause, on one line.
    pub fn full_message(&self) -> String {
        let cause = std::error::Error::source(self).map(|cause| format!(": {cause}"));
        format!("{self}{}", cause.unwrap_or_default())
    }
}

/// Weight and bias of a layer norm; old checkpoints call them gamma and beta.
pub(crate) fn norm(
    tensors: &dyn Tensors,
    name: &str,
    width: usize,
) -> Result<(Vec<f32>, Vec<f32>), WeightsError> {
    let old = tensors.shape(&format!("{name}.weight")).is_none();
    let (weight, shift) = if old { ("gamma", "beta") } else { ("weight", "bias") };
    let part = |part: &str| tensors.read(&format!("{name}.{part}"), &[width]);
    Ok((part(weight)?, part(shift)?))
}

/// Maximum header size, as the format defines it.
const HEADER_LIMIT: u64 = 100_000_000;

/// The header of a safetensors file, checked against the file's size.
#[derive(Debug)]
pub struct Header {
    /// Names, shapes, dtypes and offsets.
    pub metadata: Metadata,
    /// The raw header.
    pub bytes: Vec<u8>,
    /// Size of the file in bytes.
    pub file_length: u64,
}

impl Header {
    /// Reads and checks the header of `path`, without the tensors.
    pub fn read(path: &Path) -> Result<Header, WeightsError> {
        let io = |source| WeightsError::Io { path: path.to_owned(), source };
        let broken = |why: String| WeightsError::Broken { path: path.to_owned(), why };
        let mut file = regular_file::open(path).map_err(io)?;
        let file_length = file.metadata().map_err(io)?.len();
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(|_| broken("shorter than its first 8 bytes".to_owned()))?;
        let length = u64::from_le_bytes(prefix);
        if length > HEADER_LIMIT || length > file_length.saturating_sub(8) {
            return Err(broken(format!("its header claims {length} bytes of {file_length}")));
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact(&mut bytes).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        let whole = (metadata.data_len() as u64).checked_add(8 + length);
        if whole != Some(file_length) {
            return Err(broken(format!(
                "it should have {} bytes and has {file_length}",
                whole.unwrap_or(u64::MAX)
            )));
        }
        Ok(Header { metadata, bytes, file_length })
    }
}

/// Tensors in safetensors files. Tensors are read and copied, never mapped: a file that shrinks meanwhile is an error
/// and not a signal.
#[derive(Default)]
pub struct SafetensorsFiles {
    locations: HashMap<String, TensorLocation>,
}

struct TensorLocation {
    path: PathBuf,
    start: u64,
    length: usize,
    stored: Stored,
    shape: Vec<usize>,
}

impl SafetensorsFiles {
    /// The weights of the module in `folder`.
    pub(crate) fn of_module(files: &ModelFiles, folder: &str) -> Result<SafetensorsFiles, WeightsError> {
        let missing = || WeightsError::Missing(format!("{folder}/model.safetensors"));
        SafetensorsFiles::open(std::slice::from_ref(files.modules.get(folder).ok_or_else(missing)?))
    }

    /// Reads the headers of `paths`.
    pub fn open(paths: &[PathBuf]) -> Result<SafetensorsFiles, WeightsError> {
        let mut locations = HashMap::new();
        for path in paths {
            let header = Header::read(path)?;
            let data = 8 + header.bytes.len() as u64;
            for (name, info) in header.metadata.tensors() {
                let (start, end) = info.data_offsets;
                let location = TensorLocation {
                    path: path.clone(),
                    start: data + start as u64,
                    length: end - start,
                    stored: info.dtype,
                    shape: info.shape.clone(),
                };
                locations.insert(name, location);
            }
        }
        Ok(SafetensorsFiles { locations })
    }
}

impl Tensors for SafetensorsFiles {
    fn names(&self) -> Vec<String> {
        self.locations.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.locations.get(name).map(|location| location.shape.clone())
    }

    fn stored_type(&self, name: &str) -> Option<StoredType> {
        self.locations.get(name).and_then(|location| stored_type(location.stored))
    }

    fn stored(&self, name: &str) -> Result<Option<StoredTensor>, WeightsError> {
        let Some(location) = self.locations.get(name) else { return Ok(None) };
        let stored = stored_type(location.stored).ok_or_else(|| WeightsError::Stored {
            name: name.to_owned(),
            stored: format!("{:?}", location.stored),
        })?;
        let bytes = read_at(&location.path, location.start, location.length)?;
        Ok(Some(StoredTensor { stored, shape: location.shape.clone(), bytes }))
    }
}

/// Reads `length` bytes of a file from `start` on.
pub(crate) fn read_at(path: &Path, start: u64, length: usize) -> Result<Vec<u8>, WeightsError> {
    let io = |source| WeightsError::Io { path: path.to_owned(), source };
    let mut file = regular_file::open(path).map_err(io)?;
    file.seek(SeekFrom::Start(start)).map_err(io)?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes).map_err(io)?;
    Ok(bytes)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the format keeps growing kinds that no encoder uses")]
fn stored_type(dtype: Stored) -> Option<StoredType> {
    match dtype {
        Stored::F32 => Some(StoredType::F32),
        Stored::F16 => Some(StoredType::F16),
        Stored::BF16 => Some(StoredType::BF16),
        _ => None,
    }
}

/// Values generated from the tensor's name: equal on every device, never zero, large enough that a missing bias or a
/// wrong norm shows.
pub struct GeneratedTensors;

impl Tensors for GeneratedTensors {
    fn shape(&self, _name: &str) -> Option<Vec<usize>> {
        Some(Vec::new())
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let count: usize = shape.iter().product();
        let inputs = if shape.len() > 1 { shape[shape.len() - 1] } else { 1 };
        let (middle, spread) = match name {
            // One-dimensional weights are those of norms.
            name if shape.len() < 2 && name.ends_with(".weight") => (1.0, 0.3),
            name if name.contains("embed") || shape.len() < 2 => (0.0, 0.5),
            _ => (0.0, 1.7 / (inputs as f32).sqrt()),
        };
        let mut state = seed(name);
        if shape.len() > 1 && !name.contains("embed") && inputs.is_multiple_of(LEVELS_GROUP) {
            return Ok((0..count / LEVELS_GROUP).flat_map(|_| levels(spread, &mut state)).collect());
        }
        Ok((0..count).map(|_| middle + spread * uniform(&mut state)).collect())
    }

    fn generated(&self) -> bool {
        true
    }
}

/// Inputs that share their levels.
const LEVELS_GROUP: usize = 32;

/// A group of weights on 16 levels between `-spread` and `spread`, both ends included. They can be quantized to four bits
/// without an error, so that a placement with quantized weights computes with the same numbers. Their step is an f16,
/// which rounding to f16 or bf16 changes.
fn levels(spread: f32, state: &mut u64) -> [f32; LEVELS_GROUP] {
    let step = f16::from_f32(spread / 7.5 * (1.0 + 0.2 * uniform(state))).to_f32();
    let minimum = f16::from_f32(7.5 * step).to_f32();
    let mut codes = [0.0; LEVELS_GROUP];
    for code in &mut codes {
        *code = ((uniform(state) + 1.0) * 8.0).floor().min(15.0);
    }
    let first = (uniform(state).abs() * 30.0) as usize;
    (codes[first], codes[first + 1]) = (0.0, 15.0);
    codes.map(|code| step * code - minimum)
}

/// A seed from a name (FNV-1a).
pub fn seed(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The next value of a splitmix64 stream, between -1 and 1 and never zero.
pub fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    ((bits >> 40) as f32 + 0.5) / (1u64 << 23) as f32 - 1.0
}
