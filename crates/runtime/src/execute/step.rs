//! Steps of text generation on the active placement. A placement that fails is quarantined, and the caller computes its
//! sequences again on the next one.

use std::sync::Arc;

use sconce_core::batch::{Batch, Output, Rows};
use sconce_core::engine::EngineError;
use sconce_core::generator::CacheLayout;
use sconce_core::placement::Placement;
use tracing::debug_span;

use super::attempt::{Failure, timeout};
use super::loader::ActivePlacement;
use super::outcome::IncidentKind;
use super::serving::Serving;
use crate::error::Error;

/// Tokens that a step is timed for in addition to its own: reading all weights takes as long as computing many tokens.
const STEP_OVERHEAD: usize = 512;

/// A placement with a reserved KV cache.
pub(crate) struct Decoder {
    active: Arc<ActivePlacement>,
    /// Number of blocks.
    pub(crate) blocks: usize,
    /// The layout of the blocks.
    pub(crate) layout: CacheLayout,
}

impl Decoder {
    pub(crate) fn placement(&self) -> &Placement {
        &self.active.placement
    }

    pub(crate) fn class(&self) -> &str {
        &self.active.class
    }
}

/// Why a step has no logits.
pub(crate) enum StepError {
    /// The placement was quarantined. The cache content is lost.
    Placement,
    /// The request can't be computed anywhere.
    Error(Box<Error>),
}

impl Serving {
    /// The active placement with a KV cache of the blocks that `blocks` chooses for it. Placements that can't reserve it are
    /// quarantined.
    pub(crate) fn decoder(
        &self,
        blocks: impl Fn(&Placement, CacheLayout) -> usize,
    ) -> Result<Decoder, Error> {
        loop {
            let active = self.active(&mut |_| {})?;
            let layout = self.on_generator(&active, 0, |generator| Ok(generator.cache_layout()));
            let reserved = layout.and_then(|layout| {
                let blocks = blocks(&active.placement, layout);
                self.on_generator(&active, 0, move |generator| generator.reserve(blocks))?;
                Ok((blocks, layout))
            });
            match reserved {
                Ok((blocks, layout)) => {
                    self.lock().committed_band.get_or_insert(active.band);
                    return Ok(Decoder { active, blocks, layout });
                }
                Err(failure) => {
                    self.retire(&active.placement, failure);
                }
            }
        }
    }

    /// Whether the placement of `decoder` is still the active one. It is not after a quarantine, a readmission of another,
    /// or a change of its files.
    pub(crate) fn is_active(&self, decoder: &Decoder) -> bool {
        self.lock().active.as_ref().is_some_and(|active| Arc::ptr_eq(active, &decoder.active))
    }

    /// Copies blocks and computes a step. Returns a row of finite logits for each requested token.
    pub(crate) fn step(
        &self,
        decoder: &Decoder,
        copies: Vec<(u32, u32)>,
        batch: Batch,
    ) -> Result<Rows, StepError> {
        let active = &decoder.active;
        let _span = debug_span!("step", placement = %active.placement, tokens = batch.tokens()).entered();
        let rows = batch.rows_of(0..batch.sequences.len()).len();
        // Attention reads all cached tokens.
        let cached: usize = batch.cached.iter().map(|cached| cached.length).sum();
        let tokens = batch.tokens() + cached;
        let computed = self.on_generator(active, tokens, move |generator| {
            if !copies.is_empty() {
                generator.copy(&copies)?;
            }
            generator.step(&batch).map(Output::into_rows)
        });
        let failure = match computed {
            Ok(logits) => match breach(&logits, rows) {
                None => return Ok(logits),
                Some(what) => Failure::Placement(IncidentKind::Guard, what),
            },
            Err(Failure::Malformed(what)) => return Err(StepError::Error(Box::new(Error::Request(what)))),
            Err(failure) => failure,
        };
        if self.is_active(decoder) {
            self.retire(&active.placement, failure);
        }
        Err(StepError::Placement)
    }

    fn on_generator<T: Send + 'static>(
        &self,
        active: &ActivePlacement,
        tokens: usize,
        work: impl FnOnce(&dyn sconce_core::generator::Generator) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, Failure> {
        let inner = &self.loader().runtime.inner;
        let timeout = timeout(tokens + STEP_OVERHEAD, active.tokens_per_second, inner.min_timeout);
        let error = match inner.executors.generate(&active.loaded, timeout, work) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        Err(Failure::of(&error, active.placement.device))
    }
}

/// Why logits can't be right: a wrong shape, values that are not finite, or a constant row.
fn breach(logits: &Rows, rows: usize) -> Option<String> {
    if logits.width == 0 || logits.values.len() != rows * logits.width {
        return Some(format!("{} logits for {rows} tokens of {} words", logits.values.len(), logits.width));
    }
    logits.iter().find_map(|row| {
        // The bits of an infinity and of NaN are above those of finite values. This is vectorized: it does not end early.
        let most = row.iter().fold(0, |most, x| most.max(x.abs().to_bits().cast_signed()));
        if most >= f32::INFINITY.to_bits().cast_signed() {
            return Some("a logit that is not finite".to_owned());
        }
        row.iter().all(|x| x.to_bits() == row[0].to_bits()).then(|| "logits that are all equal".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_finite_not_constant_and_as_many_as_requested() {
        let rows = |values: &[f32]| Rows { width: 3, values: values.to_vec(), norms: Vec::new() };
        assert_eq!(breach(&rows(&[1.0, 2.0, 3.0]), 1), None);
        for (values, count, what) in [
            (&[1.0, 2.0, 3.0][..], 2, "3 logits for 2 tokens"),
            (&[1.0, f32::NAN, 3.0], 1, "not finite"),
            (&[1.0, 2.0, 3.0, 1.0, f32::INFINITY, 0.0], 2, "not finite"),
            (&[1.0, f32::NEG_INFINITY, 3.0], 1, "not finite"),
            (&[1.0, -f32::NAN, 3.0], 1, "not finite"),
            (&[1.0, 2.0, 3.0, 4.0, 4.0, 4.0], 2, "all equal"),
        ] {
            let said = breach(&rows(values), count).expect("it is wrong");
            assert!(said.contains(what), "{said}");
        }
    }
}
