//! Shadow checks: the reference computes a sample of a batch again, and a placement that drifts is quarantined.

use std::sync::Arc;
use std::time::Duration;

use sconce_core::batch::Batch;
use sconce_core::placement::Placement;
use sconce_planner::band::Band;

use super::attempt::error_chain;
use super::drift::{MAX_STRIKES, ShadowCheck, Verdict, distances, is_within, sample};
use super::outcome::BatchOutput;
use super::serving::Serving;
use crate::device::Loaded;
use crate::error::Error;
use crate::memory::Claim;

/// Timeout of the reference for a batch.
const TIMEOUT: Duration = Duration::from_mins(2);

impl Serving {
    /// Checks a sample of `batch`, whose output is `output`, against the reference. `None` if the reference itself serves,
    /// the placement no longer serves, or more scores are needed.
    pub(crate) fn shadow(&self, batch: &Batch, output: &BatchOutput) -> Result<Option<ShadowCheck>, Error> {
        let placement = &output.placement;
        let (Some(reference), Some(band)) = (self.plan().reference, self.band_of(placement)) else {
            return Ok(None);
        };
        if reference == *placement {
            return Ok(None);
        }
        let loaded = self.load_reference(&reference)?;
        let checks = {
            let mut state = self.drift().lock();
            state.checks += 1;
            state.checks
        };
        let (batch, given) = sample(batch, &output.rows, checks);
        let expected = match self.drift().executors.encode(&loaded, &Arc::new(batch), TIMEOUT) {
            Ok(output) => output.into_rows(),
            Err(error) => {
                // The next check loads it again.
                self.drift().lock().reference = None;
                let why = error_chain(&error);
                return Err(Error::Machine(format!("the reference {reference} gave no rows: {why}")));
            }
        };
        let scores = self.spec().card.task.value.scores();
        let compared = if scores {
            self.drift().lock().collect_scores(given, expected)
        } else {
            Some((given, expected))
        };
        let Some((given, expected)) = compared else { return Ok(None) };
        let distances = distances(&given, &expected, scores);
        let mean = distances.iter().sum::<f64>() / distances.len().max(1) as f64;
        let verdict = self.judge(placement, &reference, mean, band);
        let cosines = distances.iter().map(|distance| (1.0 - distance).max(-1.0)).collect();
        Ok(Some(ShadowCheck { placement: placement.clone(), reference, cosines, verdict }))
    }

    fn judge(&self, placement: &Placement, reference: &Placement, mean: f64, band: Band) -> Verdict {
        let strikes = self.drift().lock().strikes(placement, is_within(mean, band));
        if strikes == 0 {
            return Verdict::Agrees;
        }
        if strikes < MAX_STRIKES {
            return Verdict::Drifts;
        }
        let why = format!(
            "it drifted: {strikes} batches in a row lay {mean:.1e} from {reference} on the mean, and band `{band}` \
             allows {:.0e}",
            band.tolerance()
        );
        self.demote(placement, &why);
        Verdict::Demoted(why)
    }

    /// The reference, loaded on the first call.
    fn load_reference(&self, reference: &Placement) -> Result<Arc<Loaded>, Error> {
        if let Some(loaded) = &self.drift().lock().reference {
            return Ok(Arc::clone(loaded));
        }
        let loaded = self.loader().load(&self.drift().executors, reference, &mut |_| {});
        let loaded = loaded.map_err(|obstacle| {
            Error::Machine(format!("the reference {reference} can't be loaded: {obstacle}"))
        })?;
        Ok(Arc::clone(self.drift().lock().reference.insert(Arc::new(loaded))))
    }

    /// Memory of the reference, if the next check has to load it.
    pub(crate) fn reference_to_load(&self) -> Option<Claim> {
        let loaded = self.drift().lock().reference.is_some();
        let plan = self.plan();
        let reference = plan.reference.filter(|_| !loaded)?;
        let serving = plan.chosen.map(|chosen| chosen.placement);
        Claim::of(&self.spec().card, &reference).filter(|claim| Some(&claim.placement) != serving.as_ref())
    }
}
