//! Fakes, tiny models and goldens for sconce's tests.

pub mod goldens;
