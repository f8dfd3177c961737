//! Reads and writes `NumPy` arrays. The writer streams rows and writes their count to the header at the end.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use anyhow::{Context, bail};

/// Header length including the magic: a multiple of 64 that fits any shape.
const HEADER: usize = 128;

/// A `.npy` file of f32 rows.
pub(crate) struct NpyWriter {
    file: BufWriter<File>,
    rows: usize,
    width: usize,
}

impl NpyWriter {
    /// A writer of rows. Without any, the array has `width` columns.
    pub(crate) fn new(file: File, width: usize) -> NpyWriter {
        NpyWriter { file: BufWriter::new(file), rows: 0, width }
    }

    pub(crate) fn write(&mut self, row: &[f32]) -> io::Result<()> {
        if self.rows == 0 {
            self.width = row.len();
            self.file.write_all(&header(0, self.width))?;
        }
        self.rows += 1;
        row.iter().try_for_each(|x| self.file.write_all(&x.to_le_bytes()))
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&header(self.rows, self.width))?;
        self.file.flush()
    }
}

fn header(rows: usize, width: usize) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(((HEADER - 10) as u16).to_le_bytes());
    bytes.extend(format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}").bytes());
    bytes.resize(HEADER - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// A parsed array.
pub(crate) struct Array {
    dtype: String,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Array {
    /// Parses the bytes of a `.npy` file.
    pub(crate) fn parse(bytes: &[u8]) -> anyhow::Result<Array> {
        let rest = bytes.strip_prefix(b"\x93NUMPY").context("not a NumPy file")?;
        let (length, start) = match rest {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 4),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 6),
            _ => bail!("unknown version of a NumPy file"),
        };
        let header = rest.get(start..start + length).context("truncated NumPy header")?;
        let header = std::str::from_utf8(header).context("NumPy header is not UTF-8")?;
        let after = |key: &str| header.split_once(key).map(|(_, rest)| rest.trim_start());
        let dtype = after("'descr':")
            .and_then(|rest| rest.split('\'').nth(1))
            .context("NumPy header without dtype")?;
        if !after("'fortran_order':").is_some_and(|rest| rest.starts_with("False")) {
            bail!("Fortran order is not supported");
        }
        let shape = after("'shape':").and_then(|rest| rest.strip_prefix('(')?.split(')').next());
        let sizes = shape.context("no shape")?.split(',').map(str::trim).filter(|size| !size.is_empty());
        let shape = sizes.map(str::parse).collect::<Result<Vec<usize>, _>>().context("no shape")?;
        Ok(Array { dtype: dtype.to_owned(), shape, data: rest[start + length..].to_vec() })
    }

    /// The rows of a 2-D float array.
    pub(crate) fn rows(&self) -> anyhow::Result<Vec<Vec<f32>>> {
        let &[count, width] = self.shape.as_slice() else {
            bail!("not a 2-D array, its shape: {:?}", self.shape)
        };
        let numbers: Vec<f32> = match self.dtype.as_str() {
            "<f4" => self.data.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            "<f8" => self.data.as_chunks::<8>().0.iter().map(|&b| f64::from_le_bytes(b) as f32).collect(),
            dtype => bail!("unsupported dtype, expected `<f4` or `<f8`: `{dtype}`"),
        };
        if Some(numbers.len()) != count.checked_mul(width) || width == 0 {
            bail!("{} values for shape ({count}, {width})", numbers.len());
        }
        Ok(numbers.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }

    /// The strings of a 1-D `<U` array: UTF-32, zero-padded to the longest.
    pub(crate) fn strings(&self) -> anyhow::Result<Vec<String>> {
        let (letters, &[count]) = (self.dtype.strip_prefix("<U"), self.shape.as_slice()) else {
            bail!("not a 1-D array of strings: dtype `{}`, shape {:?}", self.dtype, self.shape)
        };
        let letters: usize = letters.context("not a 1-D array of strings")?.parse()?;
        let texts = self.data.chunks_exact((letters * 4).max(1)).take(count).map(|text| {
            let codes =
                text.as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b)).take_while(|&b| b != 0);
            codes.map(char::from_u32).collect::<Option<String>>().context("invalid UTF-32")
        });
        texts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dtype: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let mut header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}");
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn an_array_without_rows_has_its_width() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("empty.npy");
        NpyWriter::new(File::create(&path).expect("a file"), 384).finish().expect("it is written");
        let array = Array::parse(&std::fs::read(&path).expect("a file")).expect("an array");
        assert_eq!((array.shape, array.data), (vec![0, 384], Vec::new()));
    }

    #[test]
    fn floats_and_strings_are_read_and_other_arrays_are_rejected() {
        let numbers: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let bytes = file("<f4", "(2, 2)", &numbers);
        let rows = Array::parse(&bytes).and_then(|array| array.rows()).expect("a table");
        assert_eq!(rows, [[1.0, 2.0], [3.0, 4.0]]);
        let letters: Vec<u8> = "ab\0é\0\0".chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
        let bytes = file("<U3", "(2,)", &letters);
        assert_eq!(Array::parse(&bytes).and_then(|array| array.strings()).expect("texts"), ["ab", "é"]);
        for (dtype, shape) in
            [("<f4", "(3, 2)"), ("<f4", "(4,)"), ("<i8", "(2, 1)"), ("<f4", "(9999999999999999999, 2)")]
        {
            let bytes = file(dtype, shape, &numbers);
            assert!(Array::parse(&bytes).and_then(|array| array.rows()).is_err(), "{dtype} {shape}");
        }
        assert!(Array::parse(b"\x93NUMPY").is_err() && Array::parse(b"PK").is_err());
    }
}
