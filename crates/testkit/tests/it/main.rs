//! Tests of the repository itself: layers, module cycles, names and style.

mod book;
mod code;
mod http_dependencies;
mod imports;
mod layers;
mod markdown;
mod modules;
mod tidy;
mod tree;
mod trust;
mod words;
