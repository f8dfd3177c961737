//! Metadata of a GGUF file: typed values by key.

use std::collections::BTreeMap;
use std::io::Read;

use super::reader::{Parsed, Reader};

/// Maximum number of keys.
const MAX_KEYS: u64 = 1 << 16;
/// Maximum length of a key in bytes, as the format defines it.
const MAX_KEY_LENGTH: u64 = (1 << 16) - 1;
/// Size of the smallest entry in bytes: the length of its key, one letter, a type and a value.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An unsigned integer of 8 to 64 bits.
    Unsigned(u64),
    /// A signed integer of 8 to 64 bits.
    Signed(i64),
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit float.
    F64(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
    /// An array of numbers or booleans.
    Numbers(NumberArray),
    /// An array of strings.
    Strings(StringArray),
}

impl Value {
    /// The value as a non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Unsigned(value) => Some(*value),
            Value::Signed(value) => u64::try_from(*value).ok(),
            Value::F32(_)
            | Value::F64(_)
            | Value::Bool(_)
            | Value::String(_)
            | Value::Numbers(_)
            | Value::Strings(_) => None,
        }
    }

    /// The value as a number. A 32-bit float becomes the 64-bit float with the same shortest decimal notation: 1e-12
    /// stays 1e-12.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Unsigned(value) => Some(*value as f64),
            Value::Signed(value) => Some(*value as f64),
            Value::F32(value) => value.to_string().parse().ok(),
            Value::F64(value) => Some(*value),
            Value::Bool(_) | Value::String(_) | Value::Numbers(_) | Value::Strings(_) => None,
        }
    }

    /// The value as a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(value) = self { Some(*value) } else { None }
    }

    /// The value as a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = self { Some(text) } else { None }
    }

    /// The value as an array of strings.
    pub fn as_strings(&self) -> Option<&StringArray> {
        if let Value::Strings(array) = self { Some(array) } else { None }
    }

    /// The value as an array of numbers.
    pub fn as_numbers(&self) -> Option<&NumberArray> {
        if let Value::Numbers(array) = self { Some(array) } else { None }
    }
}

/// Element type of an array of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

impl NumberType {
    /// The type with this number in the format. Strings are 8, arrays are 9.
    fn of(number: u32) -> Option<NumberType> {
        Some(match number {
            0 => NumberType::U8,
            1 => NumberType::I8,
            2 => NumberType::U16,
            3 => NumberType::I16,
            4 => NumberType::U32,
            5 => NumberType::I32,
            6 => NumberType::F32,
            7 => NumberType::Bool,
            10 => NumberType::U64,
            11 => NumberType::I64,
            12 => NumberType::F64,
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            NumberType::U8 | NumberType::I8 | NumberType::Bool => 1,
            NumberType::U16 | NumberType::I16 => 2,
            NumberType::U32 | NumberType::I32 | NumberType::F32 => 4,
            NumberType::U64 | NumberType::I64 | NumberType::F64 => 8,
        }
    }

    /// The value in the first bytes of `bytes`, at least [`NumberType::size`] of them.
    fn decode(self, bytes: &[u8]) -> Value {
        let mut all = [0; 8];
        all[..self.size()].copy_from_slice(&bytes[..self.size()]);
        let whole = u64::from_le_bytes(all);
        let low = whole as u32;
        match self {
            NumberType::U8 | NumberType::U16 | NumberType::U32 | NumberType::U64 => Value::Unsigned(whole),
            NumberType::I8 => Value::Signed(i64::from(low.to_le_bytes()[0].cast_signed())),
            NumberType::I16 => Value::Signed(i64::from((low as u16).cast_signed())),
            NumberType::I32 => Value::Signed(i64::from(low.cast_signed())),
            NumberType::I64 => Value::Signed(whole.cast_signed()),
            NumberType::F32 => Value::F32(f32::from_bits(low)),
            NumberType::F64 => Value::F64(f64::from_bits(whole)),
            NumberType::Bool => Value::Bool(whole != 0),
        }
    }
}

/// An array of numbers or booleans, as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberArray {
    kind: NumberType,
    bytes: Vec<u8>,
}

impl NumberArray {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.kind.size()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value> + '_ {
        self.bytes.chunks_exact(self.kind.size()).map(|bytes| self.kind.decode(bytes))
    }
}

/// An array of strings, in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringArray {
    text: String,
    /// End of each string in `text`.
    ends: Vec<u32>,
}

impl StringArray {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.text.get(start..end)
    }

    /// The strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

/// The metadata of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(BTreeMap<String, Value>);

impl FromIterator<(String, Value)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(entries: I) -> Metadata {
        Metadata(entries.into_iter().collect())
    }
}

impl Metadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// The string under a key.
    pub fn string(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// The non-negative integer under a key.
    pub fn integer(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    /// All keys with their values, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Reads `count` entries.
    pub(super) fn read<R: Read>(reader: &mut Reader<R>, count: u64) -> Parsed<Metadata> {
        if count > MAX_KEYS {
            return Err(format!("{count} metadata keys; at most {MAX_KEYS} are read"));
        }
        reader.check_fits("the number of metadata keys", count, MIN_ENTRY)?;
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let key = reader.string("a key", MAX_KEY_LENGTH)?;
            let value = value(reader).map_err(|why| format!("key `{key}`: {why}"))?;
            if entries.contains_key(&key) {
                return Err(format!("the key `{key}` occurs twice"));
            }
            entries.insert(key, value);
        }
        Ok(Metadata(entries))
    }
}

fn value<R: Read>(reader: &mut Reader<R>) -> Parsed<Value> {
    let kind = reader.u32()?;
    match kind {
        8 => reader.string("a string", u64::MAX).map(Value::String),
        9 => array(reader),
        _ => {
            let kind = NumberType::of(kind).ok_or_else(|| format!("unknown value type {kind}"))?;
            let bytes = reader.bytes("a value of length", kind.size() as u64)?;
            check_booleans(kind, &bytes)?;
            Ok(kind.decode(&bytes))
        }
    }
}

fn array<R: Read>(reader: &mut Reader<R>) -> Parsed<Value> {
    let kind = reader.u32()?;
    let count = reader.u64()?;
    match kind {
        8 => strings(reader, count).map(Value::Strings),
        9 => Err("an array of arrays is not read".to_owned()),
        _ => {
            let kind = NumberType::of(kind).ok_or_else(|| format!("an array of the unknown type {kind}"))?;
            let size = kind.size() as u64;
            reader.check_fits("an array of length", count, size)?;
            let bytes = reader.bytes("an array of bytes of length", count * size)?;
            check_booleans(kind, &bytes)?;
            Ok(Value::Numbers(NumberArray { kind, bytes }))
        }
    }
}

/// Booleans are 0 or 1.
fn check_booleans(kind: NumberType, bytes: &[u8]) -> Parsed<()> {
    match bytes.iter().find(|&&byte| kind == NumberType::Bool && byte > 1) {
        Some(byte) => Err(format!("a boolean of value {byte}")),
        None => Ok(()),
    }
}

fn strings<R: Read>(reader: &mut Reader<R>, count: u64) -> Parsed<StringArray> {
    let (text, ends) = reader.strings(count)?;
    let text = String::from_utf8(text).map_err(|_| "an array of strings that are not UTF-8".to_owned())?;
    match ends.iter().find(|&&end| !text.is_char_boundary(end as usize)) {
        Some(end) => Err(format!("a string that ends within a character, at byte {end} of its array")),
        None => Ok(StringArray { text, ends }),
    }
}
