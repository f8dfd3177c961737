//! Writes GGUF files, valid or not.

/// A metadata value.
pub enum Value {
    /// An unsigned 32-bit integer.
    U32(u32),
    /// An unsigned 16-bit integer.
    U16(u16),
    /// A signed 32-bit integer.
    I32(i32),
    /// A 32-bit float.
    F32(f32),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
    /// An array of strings.
    Strings(Vec<String>),
    /// An array of bytes.
    U8s(Vec<u8>),
    /// An array of signed 32-bit integers.
    I32s(Vec<i32>),
    /// An array of 32-bit floats.
    F32s(Vec<f32>),
}

/// A tensor: name, sizes with the length of a row first, number of its type, bytes.
pub struct Tensor {
    /// The name.
    pub name: String,
    /// The sizes, the length of a row first.
    pub sizes: Vec<u64>,
    /// The number of its type.
    pub kind: u32,
    /// The stored bytes.
    pub bytes: Vec<u8>,
}

/// Bytes of a string with its length before it.
pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Bytes of a metadata value with its type before it.
pub fn value(value: &Value) -> Vec<u8> {
    let (kind, bytes): (u32, Vec<u8>) = match value {
        Value::U32(value) => (4, value.to_le_bytes().to_vec()),
        Value::U16(value) => (2, value.to_le_bytes().to_vec()),
        Value::I32(value) => (5, value.to_le_bytes().to_vec()),
        Value::F32(value) => (6, value.to_le_bytes().to_vec()),
        Value::Bool(value) => (7, vec![u8::from(*value)]),
        Value::String(text) => (8, string(text)),
        Value::Strings(texts) => {
            let strings = texts.iter().flat_map(|text| string(text));
            (9, array(8, texts.len()).into_iter().chain(strings).collect())
        }
        Value::U8s(values) => (9, array(0, values.len()).into_iter().chain(values.iter().copied()).collect()),
        Value::I32s(values) => {
            let numbers = values.iter().flat_map(|value| value.to_le_bytes());
            (9, array(5, values.len()).into_iter().chain(numbers).collect())
        }
        Value::F32s(values) => {
            let numbers = values.iter().flat_map(|value| value.to_le_bytes());
            (9, array(6, values.len()).into_iter().chain(numbers).collect())
        }
    };
    [&kind.to_le_bytes()[..], &bytes].concat()
}

fn array(kind: u32, count: usize) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes()].concat()
}

/// A file of version 3 with an alignment of 32 bytes.
pub fn file(metadata: &[(&str, Value)], tensors: &[Tensor]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (key, entry) in metadata {
        bytes.extend(string(key));
        bytes.extend(value(entry));
    }
    let mut offset = 0;
    for tensor in tensors {
        bytes.extend(string(&tensor.name));
        bytes.extend((tensor.sizes.len() as u32).to_le_bytes());
        bytes.extend(tensor.sizes.iter().flat_map(|size| size.to_le_bytes()));
        bytes.extend(tensor.kind.to_le_bytes());
        bytes.extend((offset as u64).to_le_bytes());
        offset = (offset + tensor.bytes.len()).next_multiple_of(32);
    }
    for tensor in tensors {
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&tensor.bytes);
    }
    bytes
}
