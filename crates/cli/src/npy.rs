//! Vectors as a `NumPy` array: rows are written as they come, and their number at the end.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

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
