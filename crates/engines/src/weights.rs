//! Where weights come from: safetensors files, read tensor by tensor, or numbers generated from a name.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype as Stored, Metadata};
use sconce_core::files::ModelFiles;

use crate::regular_file;

/// A source of named tensors, widened to f32.
pub trait Tensors {
    /// The shape of a tensor; none where there is no such tensor.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// A tensor's numbers.
    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError>;

    /// The names of all tensors, where they can be told.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether they are made up, for a model that nobody trained.
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
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not what it says.
    #[error("`{}` is not a whole safetensors file: {why}", path.display())]
    Broken {
        /// Which.
        path: PathBuf,
        /// What is off.
        why: String,
    },
    /// The file is not the graph it should be.
    #[error("`{}` is not a whole ONNX file: {why}", path.display())]
    Graph {
        /// Which.
        path: PathBuf,
        /// What is off.
        why: String,
    },
    /// A tensor that the architecture needs is not there.
    #[error("no tensor `{0}`")]
    Missing(String),
    /// A tensor of a layer that the architecture has no place for.
    #[error("tensor `{0}` has no place in the description of this family")]
    Unplaced(String),
    /// A tensor has another shape than the config promises.
    #[error("tensor `{name}` has shape {found:?}, the config promises {wanted:?}")]
    Shape {
        /// Which.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that the config promises.
        wanted: Vec<usize>,
    },
    /// A tensor holds numbers of a kind that is not read.
    #[error("tensor `{name}` is stored as {stored}, which is not read; known: F32, F16, BF16")]
    Stored {
        /// Which.
        name: String,
        /// How it is stored.
        stored: String,
    },
}

impl WeightsError {
    /// The error with its cause, in one line.
    pub fn told(&self) -> String {
        let cause = std::error::Error::source(self).map(|cause| format!(": {cause}"));
        format!("{self}{}", cause.unwrap_or_default())
    }
}

/// The weight and shift of a layer norm; old files call them gamma and beta.
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

/// The largest header taken for one: what the format itself allows.
const HEADER_LIMIT: u64 = 100_000_000;

/// The header of a safetensors file, checked against the file's length.
#[derive(Debug)]
pub struct Header {
    /// TensorNames, shapes, kinds and places.
    pub metadata: Metadata,
    /// Its bytes as they stand in the file.
    pub bytes: Vec<u8>,
    /// The length of the file.
    pub file_length: u64,
}

impl Header {
    /// Reads and checks the header of `path`; the tensors themselves are not read.
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

/// Tensors in one or several safetensors files. Each is read when asked for and copied, never mapped:
/// a file that shrinks while it is read is an error and not a signal.
#[derive(Default)]
pub struct Files {
    places: HashMap<String, Place>,
}

struct Place {
    path: PathBuf,
    start: u64,
    length: usize,
    stored: Stored,
    shape: Vec<usize>,
}

impl Files {
    /// The set of weights of this name.
    pub(crate) fn of(files: &ModelFiles, weights: &str) -> Result<Files, WeightsError> {
        let paths = files.weights.get(weights).ok_or_else(|| WeightsError::Missing(weights.to_owned()))?;
        Files::open(paths)
    }

    /// The weights of the module in `folder`.
    pub(crate) fn of_module(files: &ModelFiles, folder: &str) -> Result<Files, WeightsError> {
        let missing = || WeightsError::Missing(format!("{folder}/model.safetensors"));
        Files::open(std::slice::from_ref(files.modules.get(folder).ok_or_else(missing)?))
    }

    /// Reads the headers of `paths`.
    pub fn open(paths: &[PathBuf]) -> Result<Files, WeightsError> {
        let mut places = HashMap::new();
        for path in paths {
            let header = Header::read(path)?;
            let data = 8 + header.bytes.len() as u64;
            for (name, info) in header.metadata.tensors() {
                let (start, end) = info.data_offsets;
                let place = Place {
                    path: path.clone(),
                    start: data + start as u64,
                    length: end - start,
                    stored: info.dtype,
                    shape: info.shape.clone(),
                };
                places.insert(name, place);
            }
        }
        Ok(Files { places })
    }
}

impl Tensors for Files {
    fn names(&self) -> Vec<String> {
        self.places.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.places.get(name).map(|place| place.shape.clone())
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let place = self.places.get(name).ok_or_else(|| WeightsError::Missing(name.to_owned()))?;
        if place.shape != shape {
            let (found, wanted) = (place.shape.clone(), shape.to_vec());
            return Err(WeightsError::Shape { name: name.to_owned(), found, wanted });
        }
        let io = |source| WeightsError::Io { path: place.path.clone(), source };
        let mut file = regular_file::open(&place.path).map_err(io)?;
        file.seek(SeekFrom::Start(place.start)).map_err(io)?;
        let mut bytes = vec![0; place.length];
        file.read_exact(&mut bytes).map_err(io)?;
        widen(&bytes, place.stored).ok_or_else(|| WeightsError::Stored {
            name: name.to_owned(),
            stored: format!("{:?}", place.stored),
        })
    }
}

fn widen(bytes: &[u8], stored: Stored) -> Option<Vec<f32>> {
    let halves = || bytes.as_chunks::<2>().0.iter();
    #[expect(clippy::wildcard_enum_match_arm, reason = "the format keeps growing kinds that no encoder uses")]
    match stored {
        Stored::F32 => Some(bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()),
        Stored::F16 => Some(halves().map(|&b| f16::from_le_bytes(b).to_f32()).collect()),
        Stored::BF16 => Some(halves().map(|&b| bf16::from_le_bytes(b).to_f32()).collect()),
        _ => None,
    }
}

/// Numbers generated from a tensor's name: the same on every device, never zero, large enough that a
/// missing bias or a wrong norm shows.
pub struct Generated;

impl Tensors for Generated {
    fn shape(&self, _name: &str) -> Option<Vec<usize>> {
        Some(Vec::new())
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let count: usize = shape.iter().product();
        let inputs = if shape.len() > 1 { shape[shape.len() - 1] } else { 1 };
        let (middle, spread) = match name {
            // The weights of one dimension are those of norms.
            name if shape.len() < 2 && name.ends_with(".weight") => (1.0, 0.3),
            name if name.contains("embed") || shape.len() < 2 => (0.0, 0.5),
            _ => (0.0, 1.7 / (inputs as f32).sqrt()),
        };
        let mut state = seed(name);
        Ok((0..count).map(|_| middle + spread * uniform(&mut state)).collect())
    }

    fn generated(&self) -> bool {
        true
    }
}

/// A seed from a name.
pub fn seed(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The next of a stream of numbers between -1 and 1, never zero.
pub fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    ((bits >> 40) as f32 + 0.5) / (1u64 << 23) as f32 - 1.0
}
