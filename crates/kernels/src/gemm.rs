//! f32 GEMM with prepacked weights in f32 or bf16: a few rows times two vectors of columns at a time, all in registers.

mod epilogue;
mod rows;

use std::ops::Range;

use pulp::bytemuck::cast_slice;
use pulp::{Simd, WithSimd};

use crate::bf16::narrow;
use crate::buffer::{Buffer, Line, Number};
use crate::isa::Isa;
use crate::team::Team;

pub use epilogue::{Accumulate, Epilogue, OutputTile, SplitEpilogue, Store};
pub use rows::PackedRows;
use rows::{FEW_ROWS, ROWS_WITH_16_REGISTERS, ROWS_WITH_32_REGISTERS};

/// SIMD vectors of columns per panel.
pub(crate) const VECTORS: usize = 2;
/// Inputs per block: this part of a panel stays in the L1 cache for all rows.
pub(crate) const DEPTH: usize = 192;
/// Inputs between two prefetches of weights.
const PREFETCH_STEP: usize = 8;
/// Panels that a thread packs at a time.
const PART: usize = 8;

/// Scratch memory of a thread, reused between products.
#[derive(Default)]
pub struct PanelScratch {
    sums: Buffer<f32>,
    widened: Buffer<f32>,
}

impl PanelScratch {
    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.sums.bytes() + self.widened.bytes()
    }
}

/// Scratch memory of a product that one thread computes.
#[derive(Default)]
pub struct GemmScratch {
    rows: PackedRows,
    panel: PanelScratch,
}

impl GemmScratch {
    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.rows.bytes() + self.panel.bytes()
    }
}

/// A stored weight: f32, or the bits of a bf16.
pub trait StoredWeight: Number + Send + Sync {
    /// The nearest weight.
    fn nearest(value: f32) -> Self;

    /// The weight in f32.
    fn value(self) -> f32;

    /// The place of a column in a row of a panel.
    fn place(column: usize, panel_width: usize) -> usize;

    /// A row of a panel.
    type Row<S: Simd>: Copy;

    /// The rows of a panel.
    fn rows<S: Simd>(panel: &[Self]) -> &[Self::Row<S>];

    /// A row in f32.
    fn columns<S: Simd>(simd: S, row: Self::Row<S>) -> [S::f32s; VECTORS];

    /// Rows in f32: as they are, or in `scratch`.
    fn widened<'a, S: Simd>(
        simd: S,
        panel: &'a [Self],
        scratch: &'a mut Buffer<f32>,
    ) -> &'a [[S::f32s; VECTORS]];

    /// Computes a product. Not generic, so that it is compiled once, in this crate.
    fn multiply(isa: Isa, product: Product<'_, PanelMatrix<Self>>);
}

impl StoredWeight for f32 {
    fn nearest(value: f32) -> f32 {
        value
    }

    fn value(self) -> f32 {
        self
    }

    fn place(column: usize, _: usize) -> usize {
        column
    }

    type Row<S: Simd> = [S::f32s; VECTORS];

    #[inline(always)]
    fn rows<S: Simd>(panel: &[f32]) -> &[[S::f32s; VECTORS]] {
        S::as_simd_f32s(panel).0.as_chunks().0
    }

    #[inline(always)]
    fn columns<S: Simd>(_: S, row: [S::f32s; VECTORS]) -> [S::f32s; VECTORS] {
        row
    }

    #[inline(always)]
    fn widened<'a, S: Simd>(_: S, panel: &'a [f32], _: &'a mut Buffer<f32>) -> &'a [[S::f32s; VECTORS]] {
        f32::rows::<S>(panel)
    }

    fn multiply(isa: Isa, product: Product<'_, PackedMatrix>) {
        isa.dispatch(product);
    }
}

impl StoredWeight for u16 {
    fn nearest(value: f32) -> u16 {
        narrow(value)
    }

    fn value(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }

    /// A word has a column of the first vector in its lower half, and one of the second in its upper half.
    fn place(column: usize, panel_width: usize) -> usize {
        let lanes = panel_width / VECTORS;
        column % lanes * VECTORS + column / lanes
    }

    type Row<S: Simd> = S::u32s;

    #[inline(always)]
    fn rows<S: Simd>(panel: &[u16]) -> &[S::u32s] {
        cast_slice(panel)
    }

    #[inline(always)]
    fn columns<S: Simd>(simd: S, row: S::u32s) -> [S::f32s; VECTORS] {
        let lower = simd.wrapping_dyn_shl_u32s(row, simd.splat_u32s(16));
        let upper = simd.and_u32s(row, simd.splat_u32s(0xffff_0000));
        [simd.transmute_f32s_u32s(lower), simd.transmute_f32s_u32s(upper)]
    }

    #[inline(always)]
    fn widened<'a, S: Simd>(
        simd: S,
        panel: &'a [u16],
        scratch: &'a mut Buffer<f32>,
    ) -> &'a [[S::f32s; VECTORS]] {
        scratch.grow(panel.len());
        let to = S::as_mut_simd_f32s(&mut scratch[..panel.len()]).0.as_chunks_mut().0;
        for (to, row) in to.iter_mut().zip(u16::rows::<S>(panel)) {
            *to = u16::columns(simd, *row);
        }
        to
    }

    fn multiply(isa: Isa, product: Product<'_, PackedMatrixBf16>) {
        isa.dispatch(product);
    }
}

/// A weight matrix `[outputs, inputs]`, packed in panels of columns.
pub struct PanelMatrix<T> {
    isa: Isa,
    inputs: usize,
    outputs: usize,
    panel_width: usize,
    panels: Buffer<T>,
}

/// A matrix of f32 weights.
pub type PackedMatrix = PanelMatrix<f32>;
/// A matrix of bf16 weights, which are widened for products.
pub type PackedMatrixBf16 = PanelMatrix<u16>;

impl<T: StoredWeight> PanelMatrix<T> {
    /// Packs row-major `weights`, `[outputs, inputs]`.
    pub fn pack(isa: Isa, weights: &[f32], outputs: usize, inputs: usize) -> PanelMatrix<T> {
        PanelMatrix::pack_rows((isa, &Team::single()), outputs, inputs, |output, to| {
            to.copy_from_slice(&weights[output * inputs..][..inputs]);
        })
    }

    /// Packs `[outputs, inputs]` with the threads of a team. `read` writes the weights of an output.
    pub fn pack_rows(
        (isa, team): (Isa, &Team),
        outputs: usize,
        inputs: usize,
        read: impl Fn(usize, &mut [f32]) + Sync,
    ) -> PanelMatrix<T> {
        struct Lanes;
        impl WithSimd for Lanes {
            type Output = usize;
            fn with_simd<S: Simd>(self, _: S) -> usize {
                S::F32_LANES
            }
        }
        let panel_width = VECTORS * isa.dispatch(Lanes);
        let mut panels = Buffer::zeros(outputs.next_multiple_of(panel_width) * inputs);
        let size = (panel_width * inputs).max(1);
        team.each(panels.chunks_mut(PART * size).enumerate(), |(part, panels)| {
            let mut row = vec![0.0; inputs];
            let first = part * PART * panel_width;
            for output in first..(first + PART * panel_width).min(outputs) {
                read(output, &mut row);
                let panel = (output - first) / panel_width;
                let place = T::place(output % panel_width, panel_width);
                let to = panels[panel * size..][..size].iter_mut().skip(place).step_by(panel_width);
                to.zip(&row).for_each(|(to, weight)| *to = T::nearest(*weight));
            }
        });
        PanelMatrix { isa, inputs, outputs, panel_width, panels }
    }

    /// The weights of an output.
    pub fn row(&self, output: usize, to: &mut [f32]) {
        let panel = &self.panels[output / self.panel_width * self.panel_width * self.inputs..];
        let place = T::place(output % self.panel_width, self.panel_width);
        let weights = panel.iter().skip(place).step_by(self.panel_width);
        to.iter_mut().zip(weights).for_each(|(to, weight)| *to = weight.value());
    }

    /// Input features.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Output features.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Computes `a · weightsᵀ`; the rows of `a` are `stride` apart.
    pub fn multiply(
        &self,
        a: &[f32],
        stride: usize,
        rows: usize,
        scratch: &mut GemmScratch,
        epilogue: &mut dyn Epilogue,
    ) {
        let GemmScratch { rows: packed, panel } = scratch;
        packed.pack_alone(self.isa, (a, stride, rows), self.inputs);
        self.multiply_panels(packed, 0..self.panels(), 0, panel, epilogue);
    }

    /// The same for the outputs of some panels. The first output of the matrix is column `first` of the destination.
    pub fn multiply_panels(
        &self,
        rows: &PackedRows,
        panels: Range<usize>,
        first: usize,
        scratch: &mut PanelScratch,
        epilogue: &mut dyn Epilogue,
    ) {
        assert!(panels.end <= self.panels());
        T::multiply(self.isa, Product { matrix: self, rows, panels, first, scratch, epilogue });
    }

    /// Number of panels, the unit for splitting the work.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(self.panel_width)
    }

    /// Number of outputs of a panel.
    pub fn panel_width(&self) -> usize {
        self.panel_width
    }
}

/// A matrix that is multiplied panel by panel.
pub trait PanelWeights {
    /// Its stored weights.
    type Stored: StoredWeight;

    /// Instruction set, inputs, outputs and panel width.
    fn shape(&self) -> (Isa, usize, usize, usize);

    /// The weights of some inputs of a panel. `scratch` holds those that are widened. All are widened for many rows.
    fn part<'a, S: Simd>(
        &'a self,
        simd: S,
        panel: usize,
        inputs: Range<usize>,
        has_many_rows: bool,
        scratch: &'a mut Buffer<f32>,
    ) -> PanelPart<'a, S, Self::Stored>;

    /// The memory of the weights that follow after input `input` of a panel, as much as a part has.
    fn next_lines(&self, panel: usize, input: usize) -> &[Line];
}

/// Weights of some inputs of a panel.
pub enum PanelPart<'a, S: Simd, T: StoredWeight> {
    /// As they are stored.
    Stored(&'a [T::Row<S>]),
    /// In f32.
    Wide(&'a [[S::f32s; VECTORS]]),
}

impl<T: StoredWeight> PanelWeights for PanelMatrix<T> {
    type Stored = T;

    fn shape(&self) -> (Isa, usize, usize, usize) {
        (self.isa, self.inputs, self.outputs, self.panel_width)
    }

    #[inline(always)]
    fn part<'a, S: Simd>(
        &'a self,
        simd: S,
        panel: usize,
        inputs: Range<usize>,
        has_many_rows: bool,
        scratch: &'a mut Buffer<f32>,
    ) -> PanelPart<'a, S, T> {
        let first = panel * self.inputs;
        let weights =
            &self.panels[(first + inputs.start) * self.panel_width..(first + inputs.end) * self.panel_width];
        // A single block of rows widens weights on the way.
        if has_many_rows {
            PanelPart::Wide(T::widened(simd, weights, scratch))
        } else {
            PanelPart::Stored(T::rows::<S>(weights))
        }
    }

    #[inline(always)]
    fn next_lines(&self, panel: usize, input: usize) -> &[Line] {
        let lines = self.panels.lines_from((panel * self.inputs + input) * self.panel_width);
        &lines[..lines.len().min(DEPTH * self.panel_width / Line::of::<T>())]
    }
}

/// A product of rows with some panels of a matrix.
pub struct Product<'a, M> {
    pub(crate) matrix: &'a M,
    pub(crate) rows: &'a PackedRows,
    pub(crate) panels: Range<usize>,
    /// The column of the matrix's first output.
    pub(crate) first: usize,
    pub(crate) scratch: &'a mut PanelScratch,
    pub(crate) epilogue: &'a mut dyn Epilogue,
}

impl<M: PanelWeights> WithSimd for Product<'_, M> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.rows.count() <= FEW_ROWS {
            self.run::<S, FEW_ROWS>(simd);
        } else if S::REGISTER_COUNT >= 32 {
            self.run::<S, ROWS_WITH_32_REGISTERS>(simd);
        } else {
            self.run::<S, ROWS_WITH_16_REGISTERS>(simd);
        }
    }
}

impl<M: PanelWeights> Product<'_, M> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, simd: S) {
        let Product { matrix, rows: left, panels, first, scratch, epilogue } = self;
        let (isa, inputs, outputs, panel_width) = matrix.shape();
        let rows = left.count();
        let blocks = rows.div_ceil(R);
        let PanelScratch { sums, widened } = scratch;
        sums.grow(blocks * R * panel_width);
        let left = left.blocks::<R>(inputs);
        for panel in panels {
            for from in (0..inputs).step_by(DEPTH) {
                let to = (from + DEPTH).min(inputs);
                let part = matrix.part(simd, panel, from..to, blocks > 1, widened);
                // Prefetches a part of the next weights with every block of rows.
                let next = matrix.next_lines(panel, to);
                let each = next.len().div_ceil(blocks);
                for (block, left) in left.clone().enumerate() {
                    let next = next.get(block * each..).unwrap_or_default();
                    let next = &next[..each.min(next.len())];
                    let values = &mut sums[block * R * panel_width..][..R * panel_width];
                    let (sums, _) = S::as_mut_simd_f32s(values).0.as_chunks_mut::<VECTORS>();
                    let Some(sums) = sums.first_chunk_mut::<R>() else { continue };
                    let before = if from == 0 { [[simd.splat_f32s(0.0); VECTORS]; R] } else { *sums };
                    let left = &left[from..to];
                    *sums = match &part {
                        PanelPart::Wide(weights) => products::<f32, S, R>(simd, before, left, weights, next),
                        PanelPart::Stored(weights) => {
                            products::<M::Stored, S, R>(simd, before, left, weights, next)
                        }
                    };
                    if to == inputs {
                        let (row, columns) = (block * R, panel_width.min(outputs - panel * panel_width));
                        let (rows, column) = (R.min(rows - row), first + panel * panel_width);
                        epilogue.store(isa, OutputTile { row, column, rows, columns, values, panel_width });
                    }
                }
            }
        }
    }
}

/// `sums + left · panel`, with prefetches of `next` spread over the loop.
#[inline(always)]
fn products<T: StoredWeight, S: Simd, const R: usize>(
    simd: S,
    mut sums: [[S::f32s; VECTORS]; R],
    left: &[[f32; R]],
    panel: &[T::Row<S>],
    next: &[Line],
) -> [[S::f32s; VECTORS]; R] {
    let mut next = next.chunks((next.len() * PREFETCH_STEP).div_ceil(DEPTH).max(1));
    for (right, left) in panel.chunks(PREFETCH_STEP).zip(left.chunks(PREFETCH_STEP)) {
        next.next().unwrap_or_default().iter().for_each(Line::fetch);
        for (right, left) in right.iter().zip(left) {
            let right = T::columns(simd, *right);
            for (sums, x) in sums.iter_mut().zip(left) {
                let x = simd.splat_f32s(*x);
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = simd.mul_add_e_f32s(x, right, *sum);
                }
            }
        }
    }
    sums
}
