//! sconce models as embedding models of `rig` and `swiftide`. Each adapter is one file, to be copied.

pub mod rig;
pub mod swiftide;
