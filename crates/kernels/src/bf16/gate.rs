//! Gates and sums of panels.

use super::panels::{Panels, STEP};
use super::tiles::Bf16;
use super::vectors::{add, load, multiply, round, silu, store, widen};
use crate::rows::Activation;

/// `activation(gate) · up` for the first `rows` rows of `wide`, whose first half is the gate, into `to`.
pub fn gate_rows(_: Bf16, rows: usize, wide: &Panels<u16>, activation: Activation, to: &mut Panels<u16>) {
    assert!(wide.panels() == 2 * to.panels() && rows <= wide.height() && rows <= to.height());
    for panel in 0..to.panels() {
        let (gate, up) = (wide.rows_from(panel, 0), wide.rows_from(to.panels() + panel, 0));
        let rows = gate.as_chunks().0.iter().zip(up.as_chunks().0).take(rows);
        let rows = rows.zip(to.rows_from_mut(panel, 0).as_chunks_mut().0);
        // SAFETY: a `Bf16` guarantees the vectors.
        unsafe { gate_panel(rows, activation) }
    }
}

/// Gates rows of a panel: the gate, what it scales, and the destination.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
fn gate_panel<'a>(
    rows: impl Iterator<Item = ((&'a [u16; STEP], &'a [u16; STEP]), &'a mut [u16; STEP])>,
    activation: Activation,
) {
    for ((gate, up), to) in rows {
        let gate = widen(gate);
        let activated = if activation == Activation::Silu {
            [silu(gate[0]), silu(gate[1])]
        } else {
            let mut values = [0.0; STEP];
            store(gate, &mut values);
            activation.apply(&mut values);
            load(&values)
        };
        round(multiply(activated, widen(up)), to);
    }
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
