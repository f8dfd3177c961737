//! What a model needs, what was found, and the decision where it runs: pure functions of values.
//!
//! Nothing here knows an engine by name, opens a file or starts a process.

pub mod accuracy;
pub mod band;
pub mod cases;
pub mod evidence;
pub mod explain;
pub mod grid;
pub mod judge;
pub mod plan;
