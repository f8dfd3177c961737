//! Buffers aligned to cache lines: a tile or vector that straddles two lines costs twice.

use std::ops::{Deref, DerefMut};

/// Bytes in a cache line.
const LINE: usize = 64;

/// Element type of a buffer: every bit pattern is valid.
pub trait Number: Copy + Default + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u16 {}
    impl Sealed for u8 {}
    impl Sealed for i8 {}
}

impl Number for f32 {}
impl Number for u16 {}
impl Number for u8 {}
impl Number for i8 {}

/// A cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Line([u8; LINE]);

impl Line {
    /// Values per line.
    pub(crate) const fn of<T>() -> usize {
        LINE / size_of::<T>()
    }

    /// Prefetches the line.
    #[inline(always)]
    pub(crate) fn fetch(&self) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: prefetching reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(self).cast()) };
        }
    }
}

/// Lines for `length` values. Panics on overflow: a wrapped size would leave a buffer shorter than its length.
fn lines<T>(length: usize) -> usize {
    let bytes = length.checked_mul(size_of::<T>());
    bytes
        .unwrap_or_else(|| panic!("a buffer of {length} values has more bytes than can be counted"))
        .div_ceil(LINE)
}

/// A zero-initialized buffer aligned to cache lines.
#[derive(Clone, Default)]
pub struct Buffer<T> {
    lines: Vec<Line>,
    length: usize,
    kind: std::marker::PhantomData<T>,
}

impl<T: Number> Buffer<T> {
    /// A buffer of `length` zeros.
    pub fn zeros(length: usize) -> Buffer<T> {
        let lines = vec![Line([0; LINE]); lines::<T>(length)];
        Buffer { lines, length, kind: std::marker::PhantomData }
    }

    /// Grows to at least `length` values; new values are zero.
    pub fn grow(&mut self, length: usize) {
        if length > self.length {
            self.lines.resize(lines::<T>(length), Line([0; LINE]));
            self.length = length;
        }
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.lines.capacity() * LINE
    }

    /// The lines from value `from` on.
    pub(crate) fn lines_from(&self, from: usize) -> &[Line] {
        self.lines.get(from / Line::of::<T>()..).unwrap_or_default()
    }
}

impl<T: Number> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold at least `length` values, are aligned for them, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.length) }
    }
}

impl<T: Number> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shortest length whose size in bytes wraps to zero.
    const WRAPS: usize = usize::MAX / size_of::<f32>() + 1;

    #[test]
    #[should_panic(expected = "more bytes than can be counted")]
    fn a_length_whose_bytes_can_not_be_counted_is_refused() {
        Buffer::<f32>::zeros(WRAPS);
    }

    #[test]
    #[should_panic(expected = "more bytes than can be counted")]
    fn a_buffer_does_not_grow_beyond_what_can_be_counted() {
        let mut buffer = Buffer::<u16>::zeros(3);
        buffer.grow(2 * WRAPS);
    }

    #[test]
    fn a_buffer_holds_whole_lines_and_keeps_what_it_had() {
        let mut buffer = Buffer::<u16>::zeros(33);
        assert_eq!((buffer.len(), buffer.bytes()), (33, 128));
        buffer[32] = 7;
        buffer.grow(65);
        assert!(buffer.bytes() >= 192);
        assert_eq!((buffer.len(), buffer[32], buffer[64]), (65, 7, 0));
        buffer.grow(1);
        assert_eq!(buffer.len(), 65);
    }
}
