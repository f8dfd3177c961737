//! Limits of a rendering: steps, bytes and nesting.

use std::cell::Cell;

use super::error::TemplateError;

/// Nesting of expressions, statements and macro calls.
pub(super) const MAX_DEPTH: usize = 200;
/// Nesting of lists and mappings.
pub(super) const MAX_NESTING: usize = 128;

const STEPS: u64 = 500_000;
const STEPS_PER_VALUE: u64 = 2_000;
const BYTES: u64 = 16 << 20;
const BYTES_PER_BYTE: u64 = 32;
/// Bytes that are compared or copied in one step.
const BYTES_PER_STEP: usize = 256;
/// Characters that are examined one by one in one step.
const CHARACTERS_PER_STEP: usize = 16;

/// What a rendering may still use. Every loop charges steps, and every text and list charges bytes before it is built.
/// Bytes are not given back.
pub(super) struct Budget {
    steps: Cell<u64>,
    bytes: Cell<u64>,
    most_steps: u64,
    most_bytes: u64,
}

impl Budget {
    /// The budget for a conversation of this many values and bytes.
    pub(super) fn new(values: u64, bytes: u64) -> Budget {
        let most_steps = STEPS.saturating_add(values.saturating_mul(STEPS_PER_VALUE)).saturating_add(bytes);
        let most_bytes = BYTES.saturating_add(bytes.saturating_mul(BYTES_PER_BYTE));
        Budget { steps: Cell::new(most_steps), bytes: Cell::new(most_bytes), most_steps, most_bytes }
    }

    /// Charges steps.
    pub(super) fn step(&self, steps: usize) -> Result<(), TemplateError> {
        match self.steps.get().checked_sub(steps as u64) {
            Some(left) => {
                self.steps.set(left);
                Ok(())
            }
            None => Err(TemplateError::Steps(self.most_steps)),
        }
    }

    /// Charges the comparison or search of a text.
    pub(super) fn scan(&self, bytes: usize) -> Result<(), TemplateError> {
        self.step(1 + bytes / BYTES_PER_STEP)
    }

    /// Charges work on each character of a text.
    pub(super) fn examine(&self, bytes: usize) -> Result<(), TemplateError> {
        self.step(1 + bytes / CHARACTERS_PER_STEP)
    }

    /// Charges memory.
    pub(super) fn allocate(&self, bytes: usize) -> Result<(), TemplateError> {
        match self.bytes.get().checked_sub(bytes as u64) {
            Some(left) => {
                self.bytes.set(left);
                Ok(())
            }
            None => Err(TemplateError::Bytes(self.most_bytes)),
        }
    }
}
