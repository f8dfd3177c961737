//! Reads little-endian values of a GGUF header. Lengths are checked before memory is allocated for them.

use std::io::{BufRead, BufReader, Read};

/// Maximum size of a header in bytes. The largest vocabularies take about 20 MB.
const HEADER_LIMIT: u64 = 64 << 20;
/// Maximum number of strings in all arrays of a header. The largest vocabularies have fewer than a million tokens and
/// merges.
const MAX_STRINGS: u64 = 1 << 21;

/// What is invalid, for an error that names the file.
pub(super) type Parsed<T> = Result<T, String>;

/// A reader that knows its position and the end of the file.
pub(super) struct Reader<R> {
    inner: BufReader<R>,
    at: u64,
    file_length: u64,
    /// Strings in arrays so far.
    strings: u64,
}

impl<R: Read> Reader<R> {
    /// A reader at the start of a file of `file_length` bytes.
    pub(super) fn new(inner: R, file_length: u64) -> Reader<R> {
        Reader { inner: BufReader::with_capacity(1 << 16, inner), at: 0, file_length, strings: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// Checks that `count` items of at least `size` bytes each fit in the rest of the file and of the header.
    pub(super) fn check_fits(&self, what: &str, count: u64, size: u64) -> Parsed<()> {
        let end = count.checked_mul(size).and_then(|bytes| bytes.checked_add(self.at));
        match end {
            Some(end) if end <= self.file_length && end <= HEADER_LIMIT => Ok(()),
            Some(end) if end <= self.file_length => {
                Err(format!("its header has at least {end} bytes, and at most {HEADER_LIMIT} are read"))
            }
            _ => Err(format!(
                "{what} {count} at byte {} exceeds the file of {} bytes",
                self.at, self.file_length
            )),
        }
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        self.check_fits("a value of length", N as u64, 1)?;
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes).map_err(|error| error.to_string())?;
        self.at += N as u64;
        Ok(bytes)
    }

    /// `length` bytes.
    pub(super) fn bytes(&mut self, what: &str, length: u64) -> Parsed<Vec<u8>> {
        self.check_fits(what, length, 1)?;
        let mut bytes = vec![0; length as usize];
        self.inner.read_exact(&mut bytes).map_err(|error| error.to_string())?;
        self.at += length;
        Ok(bytes)
    }

    /// `count` strings with their lengths before them: all bytes, and the end of each string in them.
    pub(super) fn strings(&mut self, count: u64) -> Parsed<(Vec<u8>, Vec<u32>)> {
        self.check_fits("an array of length", count, 8)?;
        self.strings += count;
        if self.strings > MAX_STRINGS {
            return Err(format!("its arrays have {} strings; at most {MAX_STRINGS} are read", self.strings));
        }
        let count = count as usize;
        let (mut text, mut ends) = (Vec::new(), Vec::with_capacity(count));
        while ends.len() < count {
            // Strings that lie in the buffer need no checks of their own.
            let buffer = self.inner.buffer();
            let mut rest = buffer;
            while let Some((length, after)) = rest.split_first_chunk::<8>()
                && let Ok(length) = usize::try_from(u64::from_le_bytes(*length))
                && length <= after.len()
                && ends.len() < count
            {
                text.extend_from_slice(&after[..length]);
                ends.push(text.len() as u32);
                rest = &after[length..];
            }
            let used = buffer.len() - rest.len();
            self.inner.consume(used);
            self.at += used as u64;
            if ends.len() < count {
                let length = self.u64()?;
                text.extend(self.bytes("a string of length", length)?);
                ends.push(text.len() as u32);
            }
        }
        self.check_fits("a value of length", 0, 1)?;
        Ok((text, ends))
    }

    pub(super) fn u32(&mut self) -> Parsed<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Parsed<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string with its length before it.
    pub(super) fn string(&mut self, what: &str, most: u64) -> Parsed<String> {
        let length = self.u64()?;
        if length > most {
            return Err(format!("{what} of {length} bytes at byte {}; at most {most} are read", self.at));
        }
        let at = self.at;
        let bytes = self.bytes("a string of length", length)?;
        String::from_utf8(bytes).map_err(|_| format!("{what} at byte {at} is not UTF-8"))
    }
}
