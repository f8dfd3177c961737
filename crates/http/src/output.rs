//! Response bodies in chunks: each chunk holds its memory reservation until the connection drops it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use serde::Serialize;

use crate::memory_budget::{RequestMemory, Reservation};
use crate::refusal::{Kind, Refusal};

/// Maximum bytes of a chunk.
const CHUNK: usize = 64 << 10;

/// The limits of one response. Writers of the same response share them.
#[derive(Clone)]
pub struct OutputLimits {
    memory: RequestMemory,
    max_bytes: usize,
    /// Bytes that may still be written.
    remaining: Arc<AtomicUsize>,
}

/// A writer of one response, or of a part of it.
pub struct Output {
    limits: OutputLimits,
    chunks: VecDeque<Bytes>,
    open: Vec<u8>,
    /// Why a write failed.
    refusal: Option<Refusal>,
}

/// A response body of chunks.
#[derive(Default)]
pub struct Chunks {
    chunks: VecDeque<Bytes>,
}

struct Chunk {
    bytes: Vec<u8>,
    _reservation: Reservation,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl OutputLimits {
    /// A response of at most `max_bytes`.
    pub fn new(memory: &RequestMemory, max_bytes: usize) -> OutputLimits {
        OutputLimits { memory: memory.clone(), max_bytes, remaining: Arc::new(AtomicUsize::new(max_bytes)) }
    }

    /// A writer within these limits.
    pub fn output(&self) -> Output {
        Output { limits: self.clone(), chunks: VecDeque::new(), open: Vec::new(), refusal: None }
    }
}

impl Output {
    /// Writes raw bytes.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        io::Write::write_all(self, bytes).map_err(|error| self.refused(&error))
    }

    /// Writes a value as JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Refusal> {
        serde_json::to_writer(&mut *self, value).map_err(|error| self.refused(&error))
    }

    fn refused(&mut self, error: &impl ToString) -> Refusal {
        self.refusal.take().unwrap_or_else(|| Refusal::new(Kind::Model, error.to_string()))
    }

    /// Closes the last chunk and returns the body.
    pub fn finish(mut self) -> Result<Chunks, Refusal> {
        self.close()?;
        Ok(Chunks { chunks: self.chunks })
    }

    /// Closes the open chunk and reserves its memory.
    fn close(&mut self) -> Result<(), Refusal> {
        let bytes = std::mem::take(&mut self.open);
        if bytes.is_empty() {
            return Ok(());
        }
        let OutputLimits { memory, max_bytes, remaining } = &self.limits;
        let subtract = |left: usize| left.checked_sub(bytes.len());
        if remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract).is_err() {
            let message = format!(
                "the response exceeds the limit of {max_bytes} bytes\nhint: send fewer or shorter inputs"
            );
            return Err(Refusal::new(Kind::TooLarge, message));
        }
        let reservation = memory.reserve(bytes.len())?;
        self.chunks.push_back(Bytes::from_owner(Chunk { bytes, _reservation: reservation }));
        Ok(())
    }
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.open.len() >= CHUNK {
            self.close().map_err(|refusal| {
                self.refusal = Some(refusal);
                io::Error::other("the response exceeds its limits")
            })?;
            self.open.reserve_exact(CHUNK);
        }
        let fits = bytes.len().min(CHUNK - self.open.len());
        self.open.extend_from_slice(&bytes[..fits]);
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Chunks {
    /// Appends the chunks of the next part.
    pub fn append(&mut self, mut next: Chunks) {
        self.chunks.append(&mut next.chunks);
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.chunks.pop_front().map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.chunks.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.chunks.iter().map(|chunk| chunk.len() as u64).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::TenantId;
    use crate::memory_budget::MemoryBudget;

    fn memory(limit: usize) -> (Arc<MemoryBudget>, RequestMemory) {
        let budget = Arc::new(MemoryBudget::new(limit));
        (Arc::clone(&budget), RequestMemory::new(&budget, TenantId(1)))
    }

    #[test]
    fn chunks_are_the_json_and_release_their_memory_one_by_one() {
        let (budget, request) = memory(1 << 20);
        let text = "a".repeat(3 * CHUNK);
        let mut output = OutputLimits::new(&request, 1 << 20).output();
        output.raw(b"[").expect("capacity");
        output.json(&text).expect("capacity");
        output.raw(b"]").expect("capacity");
        let mut body = output.finish().expect("capacity");
        assert_eq!(body.size_hint().exact(), Some(text.len() as u64 + 4));
        let whole: Vec<u8> = body.chunks.iter().flat_map(|chunk| chunk.to_vec()).collect();
        assert_eq!(serde_json::from_slice::<Vec<String>>(&whole).expect("JSON"), [text]);
        let other = RequestMemory::new(&budget, TenantId(1));
        let free = |bytes| other.reserve(bytes).is_ok();
        assert!(!free((1 << 20) - 3 * CHUNK));
        drop(body.chunks.pop_front());
        assert!(free((1 << 20) - 3 * CHUNK));
        drop(body);
        assert!(free(1 << 20));
    }

    #[test]
    fn a_response_beyond_its_limit_is_refused_and_so_is_one_beyond_the_budget() {
        let (budget, request) = memory(2 * CHUNK);
        let limits = OutputLimits::new(&request, 2 * CHUNK);
        let part = || limits.output().json(&"a".repeat(CHUNK));
        part().expect("the last chunk is open");
        let kind = |written: Result<(), Refusal>| written.err().map(|refusal| refusal.kind);
        let mut long = limits.output();
        assert_eq!(kind(long.json(&"a".repeat(4 * CHUNK))), Some(Kind::TooLarge));
        drop(long);
        let _other = RequestMemory::new(&budget, TenantId(1)).reserve(2 * CHUNK).expect("capacity");
        let limits = OutputLimits::new(&request, 8 * CHUNK);
        assert_eq!(kind(limits.output().json(&"a".repeat(4 * CHUNK))), Some(Kind::Overloaded));
    }
}
