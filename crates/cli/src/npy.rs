//! Vectors as a `NumPy` array: rows are written as they come, and their number at the end; and read again.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use anyhow::{Context, bail};

/// The header's length, magic included: a multiple of 64 with room for any shape.
const HEADER: usize = 128;

/// A `.npy` file of f32 rows.
pub(crate) struct NpyWriter {
    file: BufWriter<File>,
    rows: usize,
    width: usize,
}

impl NpyWriter {
    pub(crate) fn new(file: File) -> NpyWriter {
        NpyWriter { file: BufWriter::new(file), rows: 0, width: 0 }
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

/// An array that was read.
pub(crate) struct Array {
    kind: String,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Array {
    /// An array out of the bytes of a `.npy` file.
    pub(crate) fn parse(bytes: &[u8]) -> anyhow::Result<Array> {
        let rest = bytes.strip_prefix(b"\x93NUMPY").context("not a NumPy file")?;
        let (length, start) = match rest {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 4),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 6),
            _ => bail!("a NumPy file of an unknown version"),
        };
        let header = rest.get(start..start + length).context("a NumPy file without its header")?;
        let header = std::str::from_utf8(header).context("a NumPy header that is no text")?;
        let after = |key: &str| header.split_once(key).map(|(_, rest)| rest.trim_start());
        let kind =
            after("'descr':").and_then(|rest| rest.split('\'').nth(1)).context("no kind of numbers")?;
        if !after("'fortran_order':").is_some_and(|rest| rest.starts_with("False")) {
            bail!("an array in Fortran's order");
        }
        let shape = after("'shape':").and_then(|rest| rest.strip_prefix('(')?.split(')').next());
        let sizes = shape.context("no shape")?.split(',').map(str::trim).filter(|size| !size.is_empty());
        let shape = sizes.map(str::parse).collect::<Result<Vec<usize>, _>>().context("no shape")?;
        Ok(Array { kind: kind.to_owned(), shape, data: rest[start + length..].to_vec() })
    }

    /// The rows of a table of numbers.
    pub(crate) fn rows(&self) -> anyhow::Result<Vec<Vec<f32>>> {
        let &[count, width] = self.shape.as_slice() else { bail!("not a table: shape {:?}", self.shape) };
        let numbers: Vec<f32> = match self.kind.as_str() {
            "<f4" => self.data.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            "<f8" => self.data.as_chunks::<8>().0.iter().map(|&b| f64::from_le_bytes(b) as f32).collect(),
            kind => bail!("numbers of kind `{kind}`, where `<f4` and `<f8` are read"),
        };
        if Some(numbers.len()) != count.checked_mul(width) || width == 0 {
            bail!("{} numbers for a shape of {count} by {width}", numbers.len());
        }
        Ok(numbers.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }

    /// The texts of a list: four bytes a letter, all as long as the longest.
    pub(crate) fn words(&self) -> anyhow::Result<Vec<String>> {
        let (letters, &[count]) = (self.kind.strip_prefix("<U"), self.shape.as_slice()) else {
            bail!("not a list of texts: kind `{}`, shape {:?}", self.kind, self.shape)
        };
        let letters: usize = letters.context("not a list of texts")?.parse()?;
        let texts = self.data.chunks_exact((letters * 4).max(1)).take(count).map(|text| {
            let codes =
                text.as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b)).take_while(|&b| b != 0);
            codes.map(char::from_u32).collect::<Option<String>>().context("a letter that is none")
        });
        texts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(kind: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn tables_and_texts_are_read_and_the_rest_refused() {
        let numbers: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let bytes = file("<f4", "(2, 2)", &numbers);
        let rows = Array::parse(&bytes).and_then(|array| array.rows()).expect("a table");
        assert_eq!(rows, [[1.0, 2.0], [3.0, 4.0]]);
        let letters: Vec<u8> = "ab\0é\0\0".chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
        let bytes = file("<U3", "(2,)", &letters);
        assert_eq!(Array::parse(&bytes).and_then(|array| array.words()).expect("texts"), ["ab", "é"]);
        for (kind, shape) in
            [("<f4", "(3, 2)"), ("<f4", "(4,)"), ("<i8", "(2, 1)"), ("<f4", "(9999999999999999999, 2)")]
        {
            let bytes = file(kind, shape, &numbers);
            assert!(Array::parse(&bytes).and_then(|array| array.rows()).is_err(), "{kind} {shape}");
        }
        assert!(Array::parse(b"\x93NUMPY").is_err() && Array::parse(b"PK").is_err());
    }
}
