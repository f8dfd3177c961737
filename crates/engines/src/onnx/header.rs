//! Dtypes and sizes in an ONNX file, read by walking its protobuf fields, without tensors and without the library.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use sconce_core::placement::Dtype;

use crate::regular_file;
use crate::weights::WeightsError;

/// Maximum size of a node that is parsed: larger ones carry a tensor.
const NODE_LIMIT: u64 = 1 << 16;
/// A dtype counts as the file's if it holds at least one in `SHARE` values.
const SHARE: u64 = 10;

/// Dtype and size of an ONNX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The narrowest dtype that stores at least a tenth of the values; none without tensors.
    pub stored: Option<Dtype>,
    /// Size of all values in bytes.
    pub bytes: u64,
    /// External data files, as the file names them.
    pub external: Vec<String>,
}

impl Header {
    /// Reads the header of `path`.
    pub fn read(path: &Path) -> Result<Header, WeightsError> {
        let io = |source| WeightsError::Io { path: path.to_owned(), source };
        let file = regular_file::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut walk = Walk { file: BufReader::new(file), at: 0, found: Found::default() };
        walk.model(length).map_err(|why| WeightsError::Graph { path: path.to_owned(), why })?;
        Ok(walk.found.header())
    }
}

/// The dtype in a file name, by the conventions of exporters.
pub fn by_name(name: &str) -> Dtype {
    let name = name.rsplit('/').next().unwrap_or(name);
    let contains_any = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if contains_any(&["q4", "bnb4", "int4"]) {
        Dtype::Int4
    } else if contains_any(&["int8", "quantized", "q8"]) {
        Dtype::Int8
    } else if contains_any(&["bf16"]) {
        Dtype::Bf16
    } else if contains_any(&["fp16", "f16"]) {
        Dtype::F16
    } else {
        Dtype::F32
    }
}

/// Values per dtype, and other findings.
#[derive(Default)]
struct Found {
    values: BTreeMap<Dtype, u64>,
    external: Vec<String>,
    /// Whether a node unpacks two values per byte.
    in_nibbles: bool,
}

impl Found {
    fn header(mut self) -> Header {
        if self.in_nibbles {
            let bytes = self.values.remove(&Dtype::Int8).unwrap_or(0);
            *self.values.entry(Dtype::Int4).or_insert(0) += 2 * bytes;
        }
        let all: u64 = self.values.values().sum();
        let enough = |(_, count): &(&Dtype, &u64)| **count > 0 && **count >= all / SHARE;
        let stored =
            self.values.iter().filter(enough).map(|(dtype, _)| *dtype).min_by_key(|dtype| dtype.bits());
        let bytes = self.values.iter().map(|(dtype, count)| count.saturating_mul(dtype.bits()) / 8).sum();
        Header { stored, bytes, external: self.external }
    }

    fn tensor(&mut self, kind: u64, count: u64) {
        // ONNX's numbering of dtypes; shapes and masks have other dtypes.
        let dtype = match kind {
            1 | 11 => Dtype::F32,
            10 => Dtype::F16,
            16 => Dtype::Bf16,
            2 | 3 => Dtype::Int8,
            21 | 22 => Dtype::Int4,
            _ => return,
        };
        let values = self.values.entry(dtype).or_insert(0);
        *values = values.saturating_add(count);
    }
}

/// A field's value: an integer, or the end of its bytes.
enum Value {
    Number(u64),
    Until(u64),
}

/// A walk over a protobuf file.
struct Walk<R> {
    file: BufReader<R>,
    at: u64,
    found: Found,
}

type Walked<T> = Result<T, String>;

impl<R: Read + std::io::Seek> Walk<R> {
    /// `ModelProto`: the graph is its field 7.
    fn model(&mut self, end: u64) -> Walked<()> {
        let mut graphs = 0;
        self.fields(end, &mut |walk, field, value| match (field, value) {
            (7, Value::Until(end)) => {
                graphs += 1;
                walk.graph(end)
            }
            _ => Ok(()),
        })?;
        if graphs == 1 { Ok(()) } else { Err(format!("it has {graphs} graphs")) }
    }

    /// `GraphProto`: nodes in field 1, tensors in field 5.
    fn graph(&mut self, end: u64) -> Walked<()> {
        self.fields(end, &mut |walk, field, value| match (field, value) {
            (1, Value::Until(end)) if end - walk.at <= NODE_LIMIT => walk.node(end),
            (5, Value::Until(end)) => walk.tensor(end),
            _ => Ok(()),
        })
    }

    /// `NodeProto`: the op in field 4, attributes in field 5.
    fn node(&mut self, end: u64) -> Walked<()> {
        let (mut op, mut bits) = (String::new(), 4);
        self.fields(end, &mut |walk, field, value| match (field, value) {
            (4, Value::Until(end)) => walk.text(end).map(|text| op = text),
            (5, Value::Until(end)) => {
                let (name, number) = walk.attribute(end)?;
                if name == "bits" {
                    bits = number;
                }
                Ok(())
            }
            _ => Ok(()),
        })?;
        self.found.in_nibbles |= op == "MatMulBnb4" || op == "MatMulNBits" && bits == 4;
        Ok(())
    }

    /// `TensorProto`: shape in field 1, dtype in field 2, external data in field 13.
    fn tensor(&mut self, end: u64) -> Walked<()> {
        let (mut kind, mut count) = (0, 1u64);
        self.fields(end, &mut |walk, field, value| {
            match (field, value) {
                (1, Value::Number(size)) => count = count.saturating_mul(size),
                (1, Value::Until(end)) => {
                    while walk.at < end {
                        count = count.saturating_mul(walk.varint()?);
                    }
                }
                (2, Value::Number(number)) => kind = number,
                (13, Value::Until(end)) => {
                    let (key, value) = walk.pair(end)?;
                    if key == "location" && !walk.found.external.contains(&value) {
                        walk.found.external.push(value);
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        self.found.tensor(kind, count);
        Ok(())
    }

    /// `AttributeProto`: name in field 1, integer value in field 3.
    fn attribute(&mut self, end: u64) -> Walked<(String, u64)> {
        let mut found = (String::new(), 0);
        self.fields(end, &mut |walk, field, value| {
            match (field, value) {
                (1, Value::Until(end)) => found.0 = walk.text(end)?,
                (3, Value::Number(number)) => found.1 = number,
                _ => {}
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// `StringStringEntryProto`: a key and a value.
    fn pair(&mut self, end: u64) -> Walked<(String, String)> {
        let mut found = (String::new(), String::new());
        self.fields(end, &mut |walk, field, value| {
            match (field, value) {
                (1, Value::Until(end)) => found.0 = walk.text(end)?,
                (2, Value::Until(end)) => found.1 = walk.text(end)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Calls `visit` for every field up to `end`, and skips what it does not read.
    fn fields(&mut self, end: u64, visit: &mut dyn FnMut(&mut Self, u64, Value) -> Walked<()>) -> Walked<()> {
        while self.at < end {
            let key = self.varint()?;
            let (field, value) = match key & 7 {
                0 => (key >> 3, Value::Number(self.varint()?)),
                1 => (key >> 3, Value::Until(self.at + 8)),
                2 => {
                    let length = self.varint()?;
                    (key >> 3, Value::Until(self.at.saturating_add(length)))
                }
                5 => (key >> 3, Value::Until(self.at + 4)),
                wire => return Err(format!("a field of kind {wire} at byte {}", self.at)),
            };
            let until = match value {
                Value::Number(_) => self.at,
                Value::Until(until) if until <= end => until,
                Value::Until(until) => return Err(format!("a field ends at byte {until} of {end}")),
            };
            visit(self, field, value)?;
            self.pass(until)?;
        }
        Ok(())
    }

    fn pass(&mut self, until: u64) -> Walked<()> {
        let ahead = i64::try_from(until - self.at).map_err(|error| error.to_string())?;
        self.file.seek_relative(ahead).map_err(|error| error.to_string())?;
        self.at = until;
        Ok(())
    }

    fn varint(&mut self) -> Walked<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = match self.file.fill_buf() {
                Ok([byte, ..]) => *byte,
                Ok([]) => return Err("it ends in the middle".to_owned()),
                Err(error) => return Err(error.to_string()),
            };
            self.file.consume(1);
            self.at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(format!("a number without end at byte {}", self.at))
    }

    fn text(&mut self, end: u64) -> Walked<String> {
        let length = usize::try_from(end - self.at).unwrap_or(usize::MAX).min(1 << 12);
        let mut bytes = vec![0; length];
        self.file.read_exact(&mut bytes).map_err(|error| error.to_string())?;
        self.at += length as u64;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A field of bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length > 0x7f {
            out.push(length as u8 & 0x7f | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        out.extend(bytes);
        out
    }

    /// A tensor of `rows` rows of 100 values of this dtype.
    fn tensor(kind: u8, rows: u8) -> Vec<u8> {
        field(5, &[&[8, rows, 8, 100, 16, kind][..], &field(9, &[7; 300])].concat())
    }

    fn read(graph: &[Vec<u8>]) -> Result<Header, String> {
        let bytes = [vec![8, 9], field(7, &graph.concat())].concat();
        let end = bytes.len() as u64;
        let mut walk = Walk { file: BufReader::new(Cursor::new(bytes)), at: 0, found: Found::default() };
        walk.model(end).map(|()| walk.found.header())
    }

    #[test]
    fn the_narrowest_format_of_a_tenth_of_the_numbers_is_the_files() {
        for (tensors, stored, bytes) in [
            (vec![(1, 10)], Some(Dtype::F32), 4000),
            (vec![(1, 10), (10, 90)], Some(Dtype::F16), 22_000),
            (vec![(1, 90), (3, 10)], Some(Dtype::Int8), 37_000),
            (vec![(1, 99), (3, 1)], Some(Dtype::F32), 39_700),
            (vec![(2, 50), (7, 99)], Some(Dtype::Int8), 5000),
            (vec![(22, 50)], Some(Dtype::Int4), 2500),
            (vec![(7, 1)], None, 0),
        ] {
            let graph: Vec<_> = tensors.iter().map(|&(kind, rows)| tensor(kind, rows)).collect();
            let header = read(&graph).expect("a whole graph");
            assert_eq!((header.stored, header.bytes), (stored, bytes), "{tensors:?}");
        }
    }

    #[test]
    fn bytes_that_a_node_takes_apart_hold_two_numbers_each() {
        let bits = |bits| field(5, &[field(1, b"bits"), vec![24, bits]].concat());
        let node = |op: &[u8], attribute: Vec<u8>| field(1, &[field(4, op), attribute].concat());
        let stored = |node| read(&[node, tensor(2, 50)]).expect("a whole graph").stored;
        assert_eq!(stored(node(b"MatMulNBits", bits(4))), Some(Dtype::Int4));
        assert_eq!(stored(node(b"MatMulNBits", bits(8))), Some(Dtype::Int8));
        assert_eq!(stored(node(b"MatMulInteger", bits(4))), Some(Dtype::Int8));
    }

    #[test]
    fn files_beside_it_are_named_once() {
        let pair = [field(1, b"location"), field(2, b"model.onnx_data")].concat();
        let tensor = || field(5, &[&[8, 10, 16, 1][..], &field(13, &pair)].concat());
        assert_eq!(read(&[tensor(), tensor()]).expect("a whole graph").external, ["model.onnx_data"]);
    }

    #[test]
    fn what_is_no_graph_is_told() {
        assert!(read(&[vec![0x0a, 0xff, 0xff, 0xff, 0x7f]]).is_err_and(|why| why.contains("ends at byte")));
        assert!(read(&[vec![0xff; 12]]).is_err());
        assert!(read(&[vec![0x0b]]).is_err_and(|why| why.contains("kind 3")));
        assert!(read(&[vec![0x0a, 0x02, 0x20]]).is_err());
    }

    #[test]
    fn names_tell_where_tensors_do_not() {
        for (name, dtype) in [
            ("onnx/model.onnx", Dtype::F32),
            ("model_fp16.onnx", Dtype::F16),
            ("onnx/model_quantized.onnx", Dtype::Int8),
            ("model_qint8_avx512.onnx", Dtype::Int8),
            ("model_uint8.onnx", Dtype::Int8),
            ("onnx/model_q4.onnx", Dtype::Int4),
            ("model_bnb4.onnx", Dtype::Int4),
        ] {
            assert_eq!(by_name(name), dtype, "{name}");
        }
    }
}
