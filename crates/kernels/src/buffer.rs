//! Numbers on whole cache lines: a tile or vector that straddles two costs twice.

use std::ops::{Deref, DerefMut};

/// Bytes in a cache line.
const LINE: usize = 64;

/// A number that a buffer may hold: any bits are one.
pub trait Number: Copy + Default + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u16 {}
}

impl Number for f32 {}
impl Number for u16 {}

/// A cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Line([u8; LINE]);

impl Line {
    /// Numbers in a line.
    pub(crate) const fn of<T>() -> usize {
        LINE / size_of::<T>()
    }

    /// Asks for it, so that it is near when it is read.
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

/// Numbers on whole cache lines, zero at first.
#[derive(Clone, Default)]
pub struct Buffer<T> {
    lines: Vec<Line>,
    length: usize,
    kind: std::marker::PhantomData<T>,
}

impl<T: Number> Buffer<T> {
    /// `length` zeros.
    pub fn zeros(length: usize) -> Buffer<T> {
        let lines = vec![Line([0; LINE]); (length * size_of::<T>()).div_ceil(LINE)];
        Buffer { lines, length, kind: std::marker::PhantomData }
    }

    /// At least `length` numbers: what was there stays, what is new is zero.
    pub fn grow(&mut self, length: usize) {
        if length > self.length {
            self.lines.resize((length * size_of::<T>()).div_ceil(LINE), Line([0; LINE]));
            self.length = length;
        }
    }

    /// The lines from the number `from` on.
    pub(crate) fn lines_from(&self, from: usize) -> &[Line] {
        self.lines.get(from / Line::of::<T>()..).unwrap_or_default()
    }
}

impl<T: Number> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold at least `length` numbers, are aligned for them, and any bits are a number.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.length) }
    }
}

impl<T: Number> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.length) }
    }
}
