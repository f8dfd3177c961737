//! Gates and sums of panels.

use super::panels::{Panels, STEP};
use super::tiles::Bf16;
use super::vectors::{add, load, multiply, round, store, widen};
use crate::rows::Activation;

/// `activation(gate) · up` for the first `rows` rows of `wide`, whose first half is the gate, into `to`.
pub fn gate_rows(_: Bf16, rows: usize, wide: &Panels<u16>, activation: Activation, to: &mut Panels<u16>) {
    assert!(wide.panels() == 2 * to.panels() && rows <= wide.height() && rows <= to.height());
    for panel in 0..to.panels() {
        for row in 0..rows {
            let (gate, up) = (wide.row(panel, row), wide.row(to.panels() + panel, row));
            // SAFETY: a `Bf16` guarantees the vectors.
            unsafe { gate_row(gate, up, activation, to.row_mut(panel, row)) }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
fn gate_row(gate: &[u16; STEP], up: &[u16; STEP], activation: Activation, to: &mut [u16; STEP]) {
    let mut activated = [0.0; STEP];
    store(widen(gate), &mut activated);
    activation.apply(&mut activated);
    round(multiply(load(&activated), widen(up)), to);
}

/// Adds the first `rows` rows of `from` to `to`.
pub fn add_rows(_: Bf16, rows: usize, from: &Panels<f32>, to: &mut Panels<f32>) {
    assert!(from.panels() == to.panels() && rows <= from.height() && rows <= to.height());
    for panel in 0..to.panels() {
        for row in 0..rows {
            // SAFETY: a `Bf16` guarantees the vectors.
            unsafe {
                let sum = add(load(to.row(panel, row)), load(from.row(panel, row)));
                store(sum, to.row_mut(panel, row));
            }
        }
    }
}
