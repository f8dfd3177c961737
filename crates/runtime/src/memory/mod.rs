//! Memory of this process, and of models by device.

mod account;
mod claim;
mod process;

pub use account::{MemoryAccount, MemoryPurpose};
pub use claim::Claim;
pub(crate) use claim::prover_bytes;
pub(crate) use process::resident_of;
pub use process::{available, limit_arenas, peak, resident};
