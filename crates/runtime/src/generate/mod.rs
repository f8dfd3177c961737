//! Text generation without an engine: options, sampling, stop strings, blocks of the KV cache, and the schedule of steps.
//!
//! Every file is a pure decision on values. The step loop provides logits, tokens and the computed steps.

#![cfg_attr(
    not(test),
    expect(dead_code, reason = "the step loop, which uses these modules, is not here yet")
)]

mod blocks;
mod detokenize;
mod mask;
pub(crate) mod options;
mod sample;
mod schedule;
mod select;
mod stop;
