//! Peak performance of this machine: FLOP/s with sconce's kernels, and memory bandwidth.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sconce_core::placement::Dtype;
use sconce_kernels::bf16::{Bf16, EpilogueBf16, InputBf16, MatrixBf16, Panels, narrow};
use sconce_kernels::columns::ColumnsMut;
use sconce_kernels::gemm::{GemmScratch, PackedMatrix, Store};
use sconce_kernels::isa::{Isa, Vectorized};
use sconce_kernels::rows::Activation;

use crate::threads::Threads;

/// Rows of a block, and shapes (inputs, outputs) that fit a core's cache; the best one counts.
const ROWS: usize = 256;
const SHAPES: [(usize, usize); 3] = [(384, 384), (512, 512), (1024, 512)];
/// Duration and number of the runs.
const TRY: Duration = Duration::from_millis(40);
const TRIES: usize = 4;
/// Size of the streamed buffer: far larger than caches.
const BYTES: usize = 512 << 20;

/// Peak performance of all threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// GFLOP/s of f32 products.
    pub f32_gflops: f64,
    /// GFLOP/s of bf16 products, if the processor has instructions for them.
    pub bf16_gflops: Option<f64>,
    /// Memory bandwidth in GB/s, sequential reads.
    pub bandwidth_gb_s: f64,
}

impl Peak {
    /// Measures for about a second, on `threads` threads.
    pub fn measure(threads: usize) -> Peak {
        let threads = Threads::with_team(threads);
        let isa = Isa::best();
        let best = |one: &(dyn Fn((usize, usize)) -> f64 + Sync)| {
            SHAPES.into_iter().map(one).fold(0.0, f64::max) / 1e9
        };
        Peak {
            f32_gflops: best(&|shape| f32_rate(&threads, isa, shape)),
            bf16_gflops: Bf16::of(isa).map(|unit| best(&|shape| bf16_rate(&threads, unit, shape))),
            bandwidth_gb_s: bandwidth(&threads, isa) / 1e9,
        }
    }

    /// GFLOP/s of products in `dtype`; none without a kernel.
    pub fn gflops(&self, dtype: Dtype) -> Option<f64> {
        match dtype {
            Dtype::F32 => Some(self.f32_gflops),
            Dtype::Bf16 => self.bf16_gflops,
            Dtype::F16 | Dtype::Int8 | Dtype::Int4 => None,
        }
    }
}

fn f32_rate(threads: &Threads, isa: Isa, (inputs, outputs): (usize, usize)) -> f64 {
    let matrix = PackedMatrix::pack(isa, &vec![0.5; outputs * inputs], outputs, inputs);
    let (a, bias) = (vec![0.25; ROWS * inputs], vec![0.125; outputs]);
    rate(threads, 2 * ROWS * inputs * outputs, || {
        let mut to = vec![0.0; ROWS * outputs];
        let mut scratch = GemmScratch::default();
        let (a, bias, matrix) = (&a, &bias, &matrix);
        move || {
            let columns = ColumnsMut::new(&mut to, outputs);
            let mut store = Store { bias, activation: Activation::Identity, to: columns };
            matrix.multiply(a, inputs, ROWS, &mut scratch, &mut store);
            black_box(&mut to);
        }
    })
}

fn bf16_rate(threads: &Threads, unit: Bf16, (inputs, outputs): (usize, usize)) -> f64 {
    let matrix = MatrixBf16::pack(unit, &vec![0.5; outputs * inputs], outputs, inputs);
    let (row, bias) = (vec![narrow(0.25); inputs], vec![0.125; outputs]);
    let mut a = Panels::default();
    a.shape(ROWS, inputs);
    (0..ROWS).for_each(|number| a.set(number, &row));
    rate(threads, 2 * ROWS * inputs * outputs, || {
        let mut to = Panels::default();
        to.shape(ROWS, outputs);
        let (a, bias, matrix) = (&a, &bias, &matrix);
        move || {
            unit.with_tiles(|tiles| {
                let finish = EpilogueBf16::Store { bias, activation: Activation::Identity, to: to.all() };
                matrix.multiply(InputBf16 { tiles, a, rows: ROWS }, 0..matrix.panels(), finish);
            });
            black_box(&mut to);
        }
    })
}

/// Units per second of the best run; each thread does `units` per call.
fn rate<W: FnMut()>(threads: &Threads, units: usize, work: impl Fn() -> W + Sync) -> f64 {
    let once = || {
        let total = Mutex::new(0.0);
        threads.singles(|| {
            let mut work = work();
            work();
            let (started, mut done) = (Instant::now(), 0);
            while started.elapsed() < TRY {
                work();
                done += units;
            }
            *total.lock().unwrap_or_else(PoisonError::into_inner) +=
                done as f64 / started.elapsed().as_secs_f64();
        });
        total.into_inner().unwrap_or_else(PoisonError::into_inner)
    };
    (0..TRIES).map(|_| once()).fold(0.0, f64::max)
}

struct Read<'a>(&'a [u64]);

impl Vectorized for Read<'_> {
    #[inline(always)]
    fn run(self) {
        black_box(self.0.iter().fold(0u64, |sum, x| sum.wrapping_add(*x)));
    }
}

/// Bytes per second of the best pass over one buffer, split over the threads.
fn bandwidth(threads: &Threads, isa: Isa) -> f64 {
    let mut values: Vec<u64> = Vec::new();
    let mut count = BYTES / 8;
    while values.try_reserve_exact(count).is_err() && count > 1 {
        count /= 2;
    }
    // Pages are allocated on the first write.
    values.resize(count, 1);
    let parts: Vec<&[u64]> = values.chunks(count.div_ceil(threads.count())).collect();
    let pass = || {
        let left = Mutex::new(parts.clone());
        let started = Instant::now();
        threads.singles(|| {
            let part = left.lock().unwrap_or_else(PoisonError::into_inner).pop();
            isa.run(Read(part.unwrap_or_default()));
        });
        (count * 8) as f64 / started.elapsed().as_secs_f64()
    };
    (0..TRIES).map(|_| pass()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_peaks_and_they_are_soon_found() {
        let started = Instant::now();
        let peak = Peak::measure(2);
        assert!(peak.f32_gflops > 0.1 && peak.bandwidth_gb_s > 0.1, "{peak:?}");
        assert_eq!(peak.bf16_gflops.is_some(), Bf16::of(Isa::best()).is_some());
        assert_eq!(peak.gflops(Dtype::F16), None);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }
}
