//! Matrices whose outputs come from several tensors, each in the format of its file.

use std::ops::Range;

use sconce_kernels::gemm::{Epilogue, PackedMatrix, PackedRows, SplitEpilogue};
use sconce_kernels::isa::Isa;
use sconce_kernels::quant::{BlockRows, CodeWidth, PANEL, QuantMatrix, QuantizedBlock};
use sconce_kernels::team::Team;

use super::matrix::{
    ActivationBits, Cpu, Matrix, ProductScratch, QuantizedInput, split_columns, with_panel_scratch,
};
use super::quantize;
use super::weights::{Packing, Table, WeightRows};
use crate::stored_tensor::StoredTensor;
use crate::weight::Weight;

/// Values that a thread quantizes at a time.
const PART: usize = 8192;

/// A matrix whose outputs come from several tensors. Quantized tensors stay quantized.
pub(super) struct StackedMatrix {
    inputs: usize,
    pub(super) parts: Vec<Part>,
}

/// The outputs of one tensor.
pub(super) enum Part {
    Quantized(QuantMatrix),
    Float(PackedMatrix),
}

impl Part {
    pub(super) fn outputs(&self) -> usize {
        match self {
            Part::Quantized(matrix) => matrix.outputs(),
            Part::Float(matrix) => matrix.outputs(),
        }
    }

    fn panels(&self) -> usize {
        match self {
            Part::Quantized(matrix) => matrix.panels(),
            Part::Float(matrix) => matrix.panels(),
        }
    }

    /// Number of outputs of a panel.
    fn panel_width(&self) -> usize {
        match self {
            Part::Quantized(_) => PANEL,
            Part::Float(matrix) => matrix.panel_width(),
        }
    }

    /// Computes the outputs of some panels. The first output of this part is column `first` of the destination.
    fn multiply(&self, rows: &Rows<'_>, panels: Range<usize>, first: usize, epilogue: &mut dyn Epilogue) {
        let QuantizedInput { blocks, groups, sixteen } = rows.quantized;
        match (self, rows.bits) {
            (Part::Quantized(matrix), ActivationBits::Eight) if matrix.takes_byte_blocks() => {
                matrix.multiply_byte_blocks(blocks, panels, first, epilogue);
            }
            (Part::Quantized(matrix), ActivationBits::Eight) => {
                matrix.multiply_bytes(groups, panels, first, epilogue);
            }
            (Part::Quantized(matrix), ActivationBits::Sixteen) if QuantMatrix::takes_floats(rows.isa) => {
                with_panel_scratch(|scratch| {
                    matrix.multiply_floats(rows.packed, panels, first, scratch, epilogue);
                });
            }
            (Part::Quantized(matrix), ActivationBits::Sixteen) => {
                matrix.multiply(sixteen, panels, first, epilogue);
            }
            (Part::Float(matrix), _) => {
                with_panel_scratch(|scratch| {
                    matrix.multiply_panels(rows.packed, panels, first, scratch, epilogue);
                });
            }
        }
    }
}

/// The rows of a product, as the parts of a matrix take them.
struct Rows<'a> {
    packed: &'a PackedRows,
    quantized: &'a QuantizedInput,
    bits: ActivationBits,
    isa: Isa,
}

impl Matrix for StackedMatrix {
    fn multiply(
        &self,
        cpu: Cpu<'_>,
        a: &[f32],
        stride: usize,
        rows: usize,
        scratch: &mut ProductScratch,
        epilogue: impl SplitEpilogue,
    ) {
        let ProductScratch { packed, quantized } = scratch;
        self.quantize(cpu, (a, stride, rows), quantized);
        if self.takes_floats(cpu) {
            packed.pack((cpu.isa, cpu.team), (a, stride, rows), self.inputs);
        }
        let rows = Rows { packed, quantized, bits: cpu.activation_bits, isa: cpu.isa };
        let panels = self.parts.iter().map(Part::panels).sum();
        let tasks = cpu.tasks(panels);
        // Each task has a share of each part.
        let mut shares: Vec<Vec<_>> = (0..tasks).map(|_| Vec::with_capacity(self.parts.len())).collect();
        let (mut first, mut rest) = (0, epilogue);
        for part in &self.parts {
            let own;
            (own, rest) = split_columns(rest, tasks, |n| {
                let panels = cpu.share(part.panels(), n, tasks);
                (panels.clone(), first + (panels.end * part.panel_width()).min(part.outputs()))
            });
            for (share, (panels, epilogue)) in shares.iter_mut().zip(own) {
                share.push((part, first, panels, epilogue));
            }
            first += part.outputs();
        }
        cpu.team.each(shares, |share| {
            for (part, first, panels, mut epilogue) in share {
                part.multiply(&rows, panels, first, &mut epilogue);
            }
        });
    }
}

impl WeightRows for StackedMatrix {
    fn row(&self, mut output: usize, to: &mut [f32]) {
        for part in &self.parts {
            match part {
                Part::Quantized(matrix) if output < matrix.outputs() => return matrix.row(output, to),
                Part::Float(matrix) if output < matrix.outputs() => return matrix.row(output, to),
                Part::Quantized(_) | Part::Float(_) => output -= part.outputs(),
            }
        }
    }
}

impl StackedMatrix {
    /// Whether a part takes rows of floats.
    fn takes_floats(&self, cpu: Cpu<'_>) -> bool {
        let widens = cpu.activation_bits == ActivationBits::Sixteen && QuantMatrix::takes_floats(cpu.isa);
        widens || self.parts.iter().any(|part| matches!(part, Part::Float(_)))
    }

    /// Quantizes rows as the parts of the matrix take them.
    fn quantize(&self, cpu: Cpu<'_>, rows: (&[f32], usize, usize), to: &mut QuantizedInput) {
        let some = |takes: &dyn Fn(&QuantMatrix) -> bool| {
            self.parts.iter().any(|part| matches!(part, Part::Quantized(matrix) if takes(matrix)))
        };
        match cpu.activation_bits {
            ActivationBits::Eight => {
                if some(&QuantMatrix::takes_byte_blocks) {
                    quantize_blocks(cpu, rows, self.inputs, &mut to.blocks);
                }
                if some(&|matrix| !matrix.takes_byte_blocks()) {
                    quantize_blocks(cpu, rows, self.inputs, &mut to.groups);
                }
            }
            ActivationBits::Sixteen if !QuantMatrix::takes_floats(cpu.isa) && some(&|_| true) => {
                quantize_blocks(cpu, rows, self.inputs, &mut to.sixteen);
            }
            ActivationBits::Sixteen => {}
        }
    }
}

/// Quantizes rows, with many values split over threads.
fn quantize_blocks<B: QuantizedBlock>(
    cpu: Cpu<'_>,
    (a, stride, rows): (&[f32], usize, usize),
    inputs: usize,
    to: &mut BlockRows<B>,
) {
    to.shape(rows, inputs);
    let blocks = if cpu.team.count() == 1 { usize::MAX } else { PART / (rows.clamp(1, 16) * B::INPUTS) };
    cpu.team.each(to.parts(blocks), |mut part| part.quantize(cpu.isa, a, stride));
}

/// Packs tensors in the format of the file. Other values stay floats, unless they are generated.
pub(super) struct PackStored {
    pub(super) isa: Isa,
    /// The code width of generated weights; none if weights are trained.
    pub(super) generated: Option<CodeWidth>,
    /// The threads that pack: not those of the engine, which computes other models meanwhile.
    pub(super) team: Team,
}

impl PackStored {
    fn part(&self, tensor: &StoredTensor) -> Part {
        let (outputs, inputs) = (tensor.shape[0], tensor.shape[1]);
        match quantize::pack((self.isa, &self.team), tensor) {
            Some(matrix) => Part::Quantized(matrix),
            None => Part::Float(PackedMatrix::pack(self.isa, &tensor.dequantize(), outputs, inputs)),
        }
    }
}

impl Packing<StackedMatrix> for PackStored {
    fn matrix(&self, weight: Weight, outputs: usize, inputs: usize) -> StackedMatrix {
        let parts = match weight {
            Weight::Stored(tensors) => tensors.iter().map(|tensor| self.part(tensor)).collect(),
            Weight::F32(values) => {
                let quantize =
                    |width| quantize::values((self.isa, &self.team), width, &values, outputs, inputs);
                let quantized = self.generated.and_then(quantize);
                let float = || Part::Float(PackedMatrix::pack(self.isa, &values, outputs, inputs));
                vec![quantized.map_or_else(float, Part::Quantized)]
            }
        };
        StackedMatrix { inputs, parts }
    }

    fn table(&self, rows: Vec<f32>) -> Table {
        Table::F32(rows)
    }

    fn quantized_table(&self, rows: &StoredTensor, scale: Option<f64>) -> Table {
        match quantize::pack((self.isa, &self.team), rows) {
            Some(matrix) => Table::Quantized(Box::new(matrix), scale.map_or(1.0, |scale| scale as f32)),
            None => Table::F32(rows.dequantize()),
        }
    }

    fn padded(&self, outputs: usize) -> usize {
        outputs
    }

    fn part(&self, width: usize) -> usize {
        width
    }
}
