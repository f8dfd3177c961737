//! The planner: probe cases, judgement, the grid and the plan, as pure functions of values.
//!
//! Nothing here depends on an engine, opens a file or starts a process.

pub mod accuracy;
pub mod band;
pub mod cases;
pub mod evidence;
pub mod explain;
pub mod grid;
pub mod judge;
pub mod plan;
