//! Row operations between GEMMs: activations and norms.

use crate::isa::{Isa, Vectorized};
use crate::math::{gelu, gelu_tanh, quick_gelu, silu};

/// Number of partial sums, so that a sum over a row vectorizes.
pub(crate) const LANES: usize = 16;

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Identity.
    Identity,
    /// GELU with the exact error function.
    Gelu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// ReLU.
    Relu,
    /// SiLU.
    Silu,
    /// GELU with the sigmoid approximation.
    QuickGelu,
}

impl Activation {
    /// Applies the activation to every value.
    #[inline(always)]
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            Activation::Identity => {}
            Activation::Gelu => each(values, gelu),
            Activation::GeluTanh => each(values, gelu_tanh),
            Activation::Relu => each(values, |x| x.max(0.0)),
            Activation::Silu => each(values, silu),
            Activation::QuickGelu => each(values, quick_gelu),
        }
    }
}

#[inline(always)]
fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in values {
        *x = f(*x);
    }
}

/// The statistics that a norm subtracts and divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormStatistics {
    /// Mean and variance: layer norm.
    MeanVariance,
    /// Mean square: RMS norm.
    MeanSquare,
}

/// Parameters of a norm.
#[derive(Clone, Debug)]
pub struct Norm {
    /// The statistics that it uses.
    pub statistics: NormStatistics,
    /// Weight.
    pub weight: Vec<f32>,
    /// Bias; zeros if the norm has none.
    pub shift: Vec<f32>,
    /// Epsilon.
    pub epsilon: f32,
}

impl Norm {
    /// Normalizes the first `weight.len()` values of each row of `x`; rows are `stride` apart.
    pub fn apply(&self, isa: Isa, x: &mut [f32], stride: usize) {
        struct Work<'a>(&'a Norm, &'a mut [f32], usize);
        impl Vectorized for Work<'_> {
            #[inline(always)]
            fn run(self) {
                let Work(norm, x, stride) = self;
                for row in x.chunks_exact_mut(stride) {
                    norm.row(&mut row[..norm.weight.len()]);
                }
            }
        }
        isa.run(Work(self, x, stride));
    }

    /// Normalizes one row.
    #[inline(always)]
    pub(crate) fn row(&self, row: &mut [f32]) {
        normalize(row, self.statistics, &self.weight, &self.shift, self.epsilon);
    }
}

/// `norm(row) · weight + shift`.
#[inline(always)]
pub fn normalize(row: &mut [f32], statistics: NormStatistics, weight: &[f32], shift: &[f32], epsilon: f32) {
    let count = row.len() as f32;
    let mean = match statistics {
        NormStatistics::MeanVariance => sum(row, |x| x) / count,
        NormStatistics::MeanSquare => 0.0,
    };
    let variance = sum(row, |x| (x - mean) * (x - mean)) / count;
    let scale = 1.0 / (variance + epsilon).sqrt();
    for ((x, weight), shift) in row.iter_mut().zip(weight).zip(shift) {
        *x = (*x - mean) * scale * weight + shift;
    }
}

/// `activation(row + bias)` for contiguous rows.
pub fn bias_activation(isa: Isa, rows: &mut [f32], bias: &[f32], activation: Activation) {
    struct Work<'a>(&'a mut [f32], &'a [f32], Activation);
    impl Vectorized for Work<'_> {
        #[inline(always)]
        fn run(self) {
            let Work(rows, bias, activation) = self;
            for row in rows.chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
                activation.apply(row);
            }
        }
    }
    isa.run(Work(rows, bias, activation));
}

/// `activation(gate) · up` for rows of gate and up values, after adding `bias`; writes rows of half the width.
pub fn gate(isa: Isa, rows: &mut [f32], bias: &[f32], activation: Activation, to: &mut [f32]) {
    struct Work<'a>(&'a mut [f32], &'a [f32], Activation, &'a mut [f32]);
    impl Vectorized for Work<'_> {
        #[inline(always)]
        fn run(self) {
            let Work(rows, bias, activation, to) = self;
            let half = bias.len() / 2;
            for (row, to) in rows.chunks_exact_mut(bias.len()).zip(to.chunks_exact_mut(half)) {
                row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
                let (gate, up) = row.split_at_mut(half);
                activation.apply(gate);
                for ((to, gate), up) in to.iter_mut().zip(gate).zip(up) {
                    *to = *gate * *up;
                }
            }
        }
    }
    isa.run(Work(rows, bias, activation, to));
}

/// Copies a few values without a call to memcpy.
#[inline(always)]
pub(crate) fn copy(from: &[f32], to: &mut [f32]) {
    let ((from, last), (to, tail)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    tail.iter_mut().zip(last).for_each(|(to, from)| *to = *from);
}

/// The sum of `f` over `row`, with several partial sums.
#[inline(always)]
pub(crate) fn sum(row: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += f(*x);
        }
    }
    folded(sums, |a, b| a + b) + rest.iter().map(|x| f(*x)).sum::<f32>()
}

/// Reduces the lanes pairwise: a sequential reduction would wait for each step.
#[inline(always)]
pub(crate) fn folded(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = f(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn larger(top: f32, x: f32) -> f32 {
    if x > top { x } else { top }
}

/// The largest value of `row`.
#[inline(always)]
pub(crate) fn largest(row: &[f32]) -> f32 {
    let mut tops = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (top, &x) in tops.iter_mut().zip(chunk) {
            *top = larger(*top, x);
        }
    }
    rest.iter().fold(folded(tops, larger), |top, &x| larger(top, x))
}
