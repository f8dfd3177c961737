//! Matrices whose outputs come from several tensors, each in the format of its file.

use sconce_kernels::gemm::{ColumnBlock, GemmScratch, PackedMatrix, SplitEpilogue};
use sconce_kernels::isa::Isa;
use sconce_kernels::quant::{ByteRows, CodeWidth, QuantMatrix, QuantizedRows};
use sconce_kernels::team::Team;

use super::matrix::{ActivationBits, Cpu, Matrix, share, store};
use super::quantize;
use super::weights::{Packing, Table, WeightRows};
use crate::stored_tensor::StoredTensor;
use crate::weight::Weight;

/// Blocks of 256 values that a thread quantizes at a time.
const PART: usize = 32;

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

    /// The columns of task `n` of `tasks`.
    fn multiply(
        &self,
        floats: (&[f32], usize),
        quantized: &Activations,
        rows: usize,
        (n, tasks): (usize, usize),
    ) -> ColumnBlock {
        match self {
            Part::Quantized(matrix) => {
                let panels = share(matrix.panels(), n, tasks);
                match quantized {
                    Activations::Eight(rows) => matrix.multiply_byte_columns(rows, panels),
                    Activations::Sixteen(rows) => matrix.multiply_columns(rows, panels),
                }
            }
            Part::Float(matrix) => {
                matrix.multiply_columns(floats.0, floats.1, rows, share(matrix.panels(), n, tasks))
            }
        }
    }
}

/// Quantized rows.
enum Activations {
    Eight(ByteRows),
    Sixteen(QuantizedRows),
}

impl Matrix for StackedMatrix {
    fn multiply(
        &self,
        cpu: Cpu<'_>,
        a: &[f32],
        stride: usize,
        rows: usize,
        _: &mut GemmScratch,
        epilogue: impl SplitEpilogue,
    ) {
        let is_quantized = self.parts.iter().any(|part| matches!(part, Part::Quantized(_)));
        let quantized = if is_quantized {
            quantize_rows(cpu, a, stride, rows, self.inputs)
        } else {
            Activations::Sixteen(QuantizedRows::default())
        };
        let tasks = cpu.tasks(self.parts.iter().map(Part::panels).sum());
        let columns = |n: usize| {
            let mut first = 0;
            let columns = self.parts.iter().map(|part| {
                let mut block = part.multiply((a, stride), &quantized, rows, (n, tasks));
                block.shift(first);
                first += part.outputs();
                block
            });
            columns.collect::<Vec<ColumnBlock>>()
        };
        let columns = cpu.team.map(tasks, columns);
        store(cpu, rows, columns.into_iter().flatten().collect(), epilogue);
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

/// Quantizes rows, with many rows split over threads.
fn quantize_rows(cpu: Cpu<'_>, a: &[f32], stride: usize, rows: usize, inputs: usize) -> Activations {
    match cpu.activation_bits {
        ActivationBits::Eight => {
            let mut quantized = ByteRows::zeros(rows, inputs);
            // Eight groups are a block.
            let groups = if cpu.team.count() == 1 { usize::MAX } else { 8 * PART / rows.clamp(1, 8) };
            cpu.team.each(quantized.parts(groups), |mut part| part.quantize(cpu.isa, a, stride));
            Activations::Eight(quantized)
        }
        ActivationBits::Sixteen => {
            let mut quantized = QuantizedRows::zeros(rows, inputs);
            // A part of a few thousand values.
            let blocks = if cpu.team.count() == 1 { usize::MAX } else { PART / rows.clamp(1, 16) };
            cpu.team.each(quantized.parts(blocks), |mut part| part.quantize(cpu.isa, a, stride));
            Activations::Sixteen(quantized)
        }
    }
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
            Some(matrix) => Table::Quantized(matrix, scale.map_or(1.0, |scale| scale as f32)),
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
