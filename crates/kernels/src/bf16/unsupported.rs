//! bf16 kernels on other architectures: the types exist and can't be constructed, so that callers need no `cfg`.

use std::convert::Infallible;
use std::ops::Range;

use super::attention_head::AttentionHeadBf16;
use super::epilogue::EpilogueBf16;
use super::input::InputBf16;
use super::no_tiles::{Bf16, Tiles};
use super::panels::Panels;
use crate::buffer::Buffer;
use crate::kv_blocks::{PagedAttention, PagedQueries};
use crate::quant::QuantMatrix;
use crate::rows::{Activation, Norm};
use crate::team::Team;

/// A packed weight matrix; can't be constructed here.
pub struct MatrixBf16(Infallible);

impl MatrixBf16 {
    /// Can't be called.
    pub fn pack(amx: Bf16, _weights: &[f32], _outputs: usize, _inputs: usize) -> MatrixBf16 {
        match amx.0 {}
    }

    /// Can't be called.
    pub fn pack_rows(
        (amx, _): (Bf16, &Team),
        _outputs: usize,
        _inputs: usize,
        _read: impl Fn(usize, &mut [f32]) + Sync,
    ) -> MatrixBf16 {
        match amx.0 {}
    }

    /// Can't be called.
    pub fn row(&self, _output: usize, _to: &mut [f32]) {
        match self.0 {}
    }

    /// Can't be called.
    pub fn inputs(&self) -> usize {
        match self.0 {}
    }

    /// Can't be called.
    pub fn outputs(&self) -> usize {
        match self.0 {}
    }

    /// Can't be called.
    pub fn panels(&self) -> usize {
        match self.0 {}
    }

    /// Can't be called.
    pub fn multiply(&self, _: InputBf16<'_>, _panels: Range<usize>, _epilogue: EpilogueBf16<'_>) {
        match self.0 {}
    }
}

/// Scratch memory of attention.
#[derive(Default)]
pub struct AttentionScratchBf16;

impl AttentionScratchBf16 {
    /// Zero.
    pub fn bytes(&self) -> usize {
        0
    }
}

impl AttentionHeadBf16<'_> {
    /// Can't be called.
    pub fn attend(
        &self,
        tiles: &Tiles,
        _scratch: &mut AttentionScratchBf16,
        _output: &mut Panels<u16>,
        _panel: usize,
    ) {
        match tiles.0 {}
    }
}

impl PagedAttention<'_, u16> {
    /// Can't be called.
    pub(crate) fn attend_on_tiles(&self, unit: Bf16, _: PagedQueries<'_>, _output: &mut [f32]) {
        match unit.0 {}
    }
}

/// Can't be called.
pub fn norm_rows(unit: Bf16, _: &Norm, _rows: usize, _: &mut Panels<f32>, _: &mut Panels<u16>, _keeps: bool) {
    match unit.0 {}
}

/// Can't be called.
pub fn gate_rows(unit: Bf16, _: usize, _: &Panels<u16>, _: Activation, _: &mut Panels<u16>) {
    match unit.0 {}
}

/// Can't be called.
pub fn add_rows(unit: Bf16, _rows: usize, _: &Panels<f32>, _: &mut Panels<f32>) {
    match unit.0 {}
}

/// Can't be called.
pub fn narrow_heads(unit: Bf16, _: &[f32], _: usize, _: &mut Panels<u16>, _: usize) {
    match unit.0 {}
}

/// Can't be called.
pub fn widen_heads(unit: Bf16, _: &Panels<u16>, _: usize, _: usize, _: &mut [f32]) {
    match unit.0 {}
}

impl QuantMatrix {
    /// False.
    pub fn has_bf16_panels(&self) -> bool {
        false
    }

    /// Can't be called.
    pub fn multiply_bf16(
        &self,
        input: InputBf16<'_>,
        _panels: Range<usize>,
        _first: usize,
        _epilogue: &mut EpilogueBf16<'_>,
        _widened: &mut Buffer<u16>,
    ) {
        match input.tiles.0 {}
    }
}
