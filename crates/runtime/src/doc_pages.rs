//! Rust examples of the README and of the book, compiled as documentation tests.

#[doc = include_str!("../../../README.md")]
mod readme {}

#[doc = include_str!("../../../docs/generate.md")]
mod generate {}

#[doc = include_str!("../../../docs/start/rust.md")]
mod rust {}

#[doc = include_str!("../../../docs/guides/from-fastembed.md")]
mod from_fastembed {}
