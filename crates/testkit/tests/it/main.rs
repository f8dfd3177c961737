//! Tests of the repository itself: the house keeps its shape.

mod arrows;
mod code;
mod imports;
mod modules;
mod tidy;
mod tree;
mod trust;
