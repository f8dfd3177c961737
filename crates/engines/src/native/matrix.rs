//! Packed matrices that multiply rows of f32 values, with columns split over threads.

use std::cell::RefCell;
use std::ops::Range;

use sconce_kernels::gemm::{PackedRows, PanelMatrix, PanelScratch, SplitEpilogue, StoredWeight};
use sconce_kernels::isa::Isa;
use sconce_kernels::quant::{ByteBlocks, ByteRows, QuantizedRows};
use sconce_kernels::rows::{Activation, gate};
use sconce_kernels::team::Team;

use super::scratch::{ScratchMemory, bounded};
use super::weights::WeightRows;

/// Maximum number of rows that a task processes.
const ROWS: usize = 32;
/// Values that one thread processes sooner than several.
const FEW: usize = 8192;
/// Tasks per thread: a thread that another process delays leaves its share to the others.
const TASKS: usize = 4;

thread_local! {
    /// Memory of products in f32.
    static PANEL: RefCell<PanelScratch> = RefCell::default();
}

impl ScratchMemory for PanelScratch {
    fn bytes(&self) -> usize {
        PanelScratch::bytes(self)
    }
}

/// Runs `work` with this thread's memory of products in f32.
pub(super) fn with_panel_scratch(work: impl FnOnce(&mut PanelScratch)) {
    PANEL.with_borrow_mut(|scratch| bounded(scratch, work));
}

/// What computes: an instruction set, and threads.
#[derive(Clone, Copy)]
pub(super) struct Cpu<'a> {
    pub(super) isa: Isa,
    pub(super) team: &'a Team,
    /// Bits to which activations are rounded for products with quantized weights.
    pub(super) activation_bits: ActivationBits,
}

/// Bits of an activation in a product with quantized weights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ActivationBits {
    Eight,
    /// Or all 32, where that is faster.
    Sixteen,
}

impl<'a> Cpu<'a> {
    pub(super) fn new(isa: Isa, team: &'a Team) -> Cpu<'a> {
        Cpu { isa, team, activation_bits: ActivationBits::Sixteen }
    }

    /// Number of tasks into which the columns of `panels` panels are split.
    pub(super) fn tasks(self, panels: usize) -> usize {
        match self.team.count() {
            1 => 1,
            threads => (threads * TASKS).min(panels / 2).max(threads),
        }
    }

    /// The panels of task `n` of `tasks`. Where threads take several tasks, the last ones are small: the threads end at the
    /// same time.
    pub(super) fn share(self, panels: usize, n: usize, tasks: usize) -> Range<usize> {
        let before = |n| {
            if tasks > self.team.count() {
                panels * n * (2 * tasks - n) / (tasks * tasks)
            } else {
                panels * n / tasks
            }
        };
        before(n)..before(n + 1)
    }

    /// Number of rows of a task, of `rows` rows with `width` values.
    fn rows(self, rows: usize, width: usize) -> usize {
        match self.team.count() {
            1 => rows.max(1),
            _ if rows * width <= FEW => rows.max(1),
            threads => rows.div_ceil(threads * TASKS).min(ROWS),
        }
    }
}

/// Scratch memory of products.
#[derive(Default)]
pub(super) struct ProductScratch {
    pub(super) packed: PackedRows,
    pub(super) quantized: QuantizedInput,
}

/// The input of a product, quantized as the parts of a matrix take it.
#[derive(Default)]
pub(super) struct QuantizedInput {
    pub(super) blocks: ByteBlocks,
    pub(super) groups: ByteRows,
    pub(super) sixteen: QuantizedRows,
}

impl ProductScratch {
    /// Allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        let QuantizedInput { blocks, groups, sixteen } = &self.quantized;
        self.packed.bytes() + blocks.bytes() + groups.bytes() + sixteen.bytes()
    }
}

/// A packed matrix.
pub(super) trait Matrix: WeightRows + Sync {
    /// Multiplies `rows` rows of `a`, `stride` apart. Columns are split over the threads: a single block is bound by memory
    /// bandwidth.
    fn multiply(
        &self,
        cpu: Cpu<'_>,
        a: &[f32],
        stride: usize,
        rows: usize,
        scratch: &mut ProductScratch,
        epilogue: impl SplitEpilogue,
    );
}

impl<T: StoredWeight> Matrix for PanelMatrix<T> {
    fn multiply(
        &self,
        cpu: Cpu<'_>,
        a: &[f32],
        stride: usize,
        rows: usize,
        scratch: &mut ProductScratch,
        epilogue: impl SplitEpilogue,
    ) {
        let packed = &mut scratch.packed;
        packed.pack((cpu.isa, cpu.team), (a, stride, rows), self.inputs());
        let panels = self.panels();
        if cpu.team.count() == 1 {
            let mut epilogue = epilogue;
            return with_panel_scratch(|scratch| {
                self.multiply_panels(packed, 0..panels, 0, scratch, &mut epilogue);
            });
        }
        let tasks = cpu.tasks(panels);
        let (parts, _) = split_columns(epilogue, tasks, |n| {
            let own = cpu.share(panels, n, tasks);
            (own.clone(), (own.end * self.panel_width()).min(self.outputs()))
        });
        cpu.team.each(parts, |(panels, mut epilogue)| {
            with_panel_scratch(|scratch| self.multiply_panels(packed, panels, 0, scratch, &mut epilogue));
        });
    }
}

/// Splits the columns of an epilogue over tasks, of which `share` tells the panels and the column after them. Returns the rest
/// as well.
pub(super) fn split_columns<E: SplitEpilogue>(
    epilogue: E,
    tasks: usize,
    share: impl Fn(usize) -> (Range<usize>, usize),
) -> (Vec<(Range<usize>, E)>, E) {
    let mut rest = epilogue;
    let mut parts = Vec::with_capacity(tasks);
    for task in 0..tasks {
        let (panels, end) = share(task);
        let own;
        (own, rest) = rest.split_columns(end);
        parts.push((panels, own));
    }
    (parts, rest)
}

/// Calls `work` with the index of a row and the rows from there on, with many rows split over threads. Rows have `width`
/// values.
pub(super) fn each_rows(
    cpu: Cpu<'_>,
    values: &mut [f32],
    width: usize,
    work: impl Fn(usize, &mut [f32]) + Sync,
) {
    let height = cpu.rows(values.len() / width, width);
    let parts = values.chunks_mut(height * width).enumerate();
    cpu.team.each(parts, |(part, rows)| work(part * height, rows));
}

/// `activation(gate) · up`, with many rows split over threads.
pub(super) fn gate_rows(
    cpu: Cpu<'_>,
    rows: &mut [f32],
    bias: &[f32],
    activation: Activation,
    to: &mut [f32],
) {
    let width = bias.len();
    let height = cpu.rows(rows.len() / width, width);
    let parts = rows.chunks_mut(height * width).zip(to.chunks_mut(height * width / 2));
    cpu.team.each(parts, |(rows, to)| gate(cpu.isa, rows, bias, activation, to));
}
