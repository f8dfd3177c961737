//! Text generation: a step loop over the engine, and the pure decisions that it takes: options, sampling, stop strings,
//! blocks of the KV cache, and the schedule of steps.

mod blocks;
mod cache_budget;
mod constraint;
mod detokenize;
mod events;
mod fair_share;
mod generation;
mod line_fit;
mod load;
mod mask;
mod options;
mod prefill_budget;
mod sample;
mod schedule;
mod select;
mod sequence;
mod step_loop;
mod step_timer;
mod stop;
mod structured_output;

pub(crate) use cache_budget::CacheBudget;
pub use cache_budget::CacheEstimate;
pub use generation::{FinishReason, GeneratedToken, Generation, GenerationStream, GenerationSummary, Piece};
pub use load::GenerationLoad;
pub use options::{GenerateOptions, InvalidOption};
pub use schedule::{Priority, Scheduling};
pub(crate) use step_loop::StepLoop;
pub use step_timer::StepTimer;
pub use structured_output::StructuredOutput;
