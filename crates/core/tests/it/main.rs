//! The shared types: formatting, parsing and computed values.

mod batches;
mod cards;
mod names;
mod obstacles;
mod probes;
