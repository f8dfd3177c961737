//! The header of a GGUF file: metadata and tensor table, checked against the file's size.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use super::blocks::StoredType;
use super::metadata::Metadata;
use super::reader::{Parsed, Reader};
use crate::regular_file;
use crate::weights::WeightsError;

const MAGIC: u32 = u32::from_le_bytes(*b"GGUF");
/// The versions that are read; both have the same layout.
const VERSIONS: [u32; 2] = [2, 3];
/// Maximum number of tensors.
const MAX_TENSORS: u64 = 1 << 16;
/// Maximum length of a tensor name in bytes. The format defines 64.
const MAX_NAME_LENGTH: u64 = 256;
/// Maximum number of dimensions.
const MAX_DIMENSIONS: u32 = 4;
/// Size of the smallest entry of the tensor table in bytes: name, number of dimensions, one dimension, type, offset.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Alignment of tensors in bytes, unless `general.alignment` is set.
const ALIGNMENT: u64 = 32;
/// Maximum alignment in bytes.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// The header of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// The metadata.
    pub metadata: Metadata,
    /// The tensor table, in the file's order.
    pub tensors: Vec<TensorInfo>,
}

/// An entry of the tensor table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The shape, rows first: `[outputs, inputs]` of a matrix.
    pub shape: Vec<usize>,
    /// How the values are stored.
    pub stored: StoredType,
    /// Position of the first byte in the file.
    pub start: u64,
    /// Size in bytes.
    pub length: u64,
}

impl TensorInfo {
    /// Number of values.
    pub fn values(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }
}

impl Header {
    /// Reads and checks the header of `path`, without the tensors.
    pub fn read(path: &Path) -> Result<Header, WeightsError> {
        let io = |source| WeightsError::Io { path: path.to_owned(), source };
        let file = regular_file::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        Header::parse(file, length).map_err(|why| WeightsError::Gguf { path: path.to_owned(), why })
    }

    /// Parses a file of `length` bytes. The error says what is invalid.
    fn parse(file: impl Read, length: u64) -> Parsed<Header> {
        let mut reader = Reader::new(file, length);
        let magic = reader.u32()?;
        if magic != MAGIC {
            return Err(format!("its first bytes are {:02x?}, not `GGUF`", magic.to_le_bytes()));
        }
        let version = reader.u32()?;
        if !VERSIONS.contains(&version) {
            let order = if VERSIONS.contains(&version.swap_bytes()) { " in big-endian order" } else { "" };
            return Err(format!(
                "version {}{order} is not read; known: 2, 3",
                if order.is_empty() { version } else { version.swap_bytes() }
            ));
        }
        let tensors = reader.u64()?;
        let keys = reader.u64()?;
        let metadata = Metadata::read(&mut reader, keys)?;
        let alignment = alignment(&metadata)?;
        let tensors = table(&mut reader, tensors, alignment, length)?;
        Ok(Header { metadata, tensors })
    }
}

fn alignment(metadata: &Metadata) -> Parsed<u64> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(ALIGNMENT) };
    match value.as_u64() {
        Some(alignment) if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT => Ok(alignment),
        _ => Err(format!("`general.alignment` is no power of two up to {MAX_ALIGNMENT}: {value:?}")),
    }
}

/// Reads the tensor table and checks that its tensors lie in the file, aligned and apart.
fn table<R: Read>(
    reader: &mut Reader<R>,
    count: u64,
    alignment: u64,
    file_length: u64,
) -> Parsed<Vec<TensorInfo>> {
    if count > MAX_TENSORS {
        return Err(format!("{count} tensors; at most {MAX_TENSORS} are read"));
    }
    reader.check_fits("the number of tensors", count, MIN_ENTRY)?;
    let mut tensors = Vec::with_capacity(count as usize);
    let mut names = HashSet::new();
    for _ in 0..count {
        let name = reader.string("a tensor name", MAX_NAME_LENGTH)?;
        let tensor = entry(reader, &name, alignment).map_err(|why| format!("tensor `{name}`: {why}"))?;
        if !names.insert(name) {
            return Err(format!("the tensor `{}` occurs twice", tensor.name));
        }
        tensors.push(tensor);
    }
    let data = reader.position().next_multiple_of(alignment);
    for tensor in &mut tensors {
        let end = tensor.start.checked_add(data).and_then(|start| start.checked_add(tensor.length));
        if end.is_none_or(|end| end > file_length) {
            let (name, start, length) = (&tensor.name, tensor.start, tensor.length);
            return Err(format!(
                "tensor `{name}` has {length} bytes at offset {start}, beyond the file of {file_length} bytes"
            ));
        }
        tensor.start += data;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.start);
    match order.windows(2).find(|pair| pair[0].start + pair[0].length > pair[1].start) {
        Some(pair) => Err(format!("the tensors `{}` and `{}` overlap", pair[0].name, pair[1].name)),
        None => Ok(tensors),
    }
}

/// Reads an entry after its name. Its start is relative to the tensor data.
fn entry<R: Read>(reader: &mut Reader<R>, name: &str, alignment: u64) -> Parsed<TensorInfo> {
    let dimensions = reader.u32()?;
    if dimensions == 0 || dimensions > MAX_DIMENSIONS {
        return Err(format!("{dimensions} dimensions; 1 to {MAX_DIMENSIONS} are read"));
    }
    let sizes = (0..dimensions).map(|_| reader.u64()).collect::<Parsed<Vec<u64>>>()?;
    let number = reader.u32()?;
    let start = reader.u64()?;
    let stored = StoredType::of(number).ok_or_else(|| {
        let known = StoredType::ALL.map(|stored| stored.to_string()).join(", ");
        format!("its type {} is not read; known: {known}", StoredType::describe(number))
    })?;
    let block = stored.block_length() as u64;
    let count = sizes.iter().try_fold(1_u64, |count, &size| count.checked_mul(size));
    let length = count.and_then(|count| (count / block).checked_mul(stored.block_bytes() as u64));
    let (Some(count), Some(length)) = (count, length) else {
        return Err(format!("its shape {sizes:?} has too many values"));
    };
    if count == 0 {
        return Err(format!("its shape {sizes:?} has no values"));
    }
    // The first size of the format is the length of a row, and blocks do not cross rows.
    if !sizes[0].is_multiple_of(block) {
        return Err(format!("its rows of {} values are no whole blocks of {block} ({stored})", sizes[0]));
    }
    if !start.is_multiple_of(alignment) {
        return Err(format!("its offset {start} is no multiple of the alignment {alignment}"));
    }
    let shape = sizes.iter().rev().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| format!("its shape {sizes:?} has too many values"))?;
    Ok(TensorInfo { name: name.to_owned(), shape, stored, start, length })
}

#[cfg(test)]
mod tests;
