//! Tiles on other architectures: there are none.

use std::convert::Infallible;

use crate::isa::Isa;

/// Proof that tiles can be used; can't be constructed here.
#[derive(Clone, Copy, Debug)]
pub struct Bf16(pub(super) Infallible);

/// Proof that this thread's tiles are configured; can't be constructed here.
pub struct Tiles(pub(super) Infallible);

impl Bf16 {
    /// None.
    pub fn of(_: Isa) -> Option<Bf16> {
        None
    }

    /// Can't be called.
    pub fn isa(self) -> Isa {
        match self.0 {}
    }

    /// None.
    pub fn on_tiles(_: Isa) -> Option<Bf16> {
        None
    }

    /// Can't be called.
    pub fn with_tiles<T>(self, _work: impl FnOnce(&Tiles) -> T) -> T {
        match self.0 {}
    }
}
