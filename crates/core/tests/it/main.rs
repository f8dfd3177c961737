//! The shared types: what they print, read back and compute.

mod batches;
mod cards;
mod names;
mod obstacles;
mod probes;
