//! Attributes a failure: to the sequence, if a second placement fails on it too, or to the placement.

use std::sync::Arc;

use sconce_core::batch::{Batch, Rows};
use sconce_planner::band::Band;
use sconce_planner::judge::distance;

use super::attempt::Failure;
use super::guard::Breach;
use super::outcome::{
    BatchOutcome, BatchOutput, Incident, IncidentKind, SequenceFailure, UnresolvedSequence,
};
use super::serving::Serving;
use crate::error::{Error, SequenceError};

/// Result of an attribution, with the incidents on the way.
enum Attribution {
    /// Both placements agree: the rows of the first are valid.
    Sequence(Rows, Vec<Incident>),
    /// The first placement was wrong, and was quarantined.
    Placement(Vec<Incident>),
}

impl Serving {
    /// Attributes a failure, by the results of other placements, to the sequence or to its placement.
    fn attribute(&self, sequence: &UnresolvedSequence) -> Result<Attribution, Error> {
        let UnresolvedSequence { batch, origin, failure: failed, .. } = sequence;
        let mut tried = vec![origin.placement.clone()];
        let mut incidents = Vec::new();
        let unusual = |says: &str| {
            let why = format!("{} gave {}; {says}", origin.placement, failed.why());
            Error::Sequence(SequenceError::Unusual { tokens: batch.tokens(), why })
        };
        while let Some(second) = self.second(&tried, origin.band) {
            tried.push(second.placement.clone());
            let disagrees = |why: &str| unusual(&format!("{} gave {why}", second.placement));
            let failure = match (self.loader().attempt(&second, batch), failed) {
                (Ok(rows) | Err(Failure::Rows(rows, Breach::Norm(_))), SequenceFailure::Norm(own, _))
                    if same_norms(own, &rows, [origin.band, second.band]) =>
                {
                    if near(own, &rows, [origin.band, second.band]) {
                        return Ok(Attribution::Sequence(own.clone(), incidents));
                    }
                    return Err(disagrees("other values"));
                }
                (Ok(_), failed) => {
                    let kind = match failed {
                        SequenceFailure::Norm(..) => IncidentKind::Guard,
                        SequenceFailure::Failed(kind, _) => *kind,
                    };
                    let failure = Failure::Placement(kind, failed.why().to_owned());
                    incidents.push(self.retire(&origin.placement, failure));
                    return Ok(Attribution::Placement(incidents));
                }
                (Err(Failure::Rows(_, Breach::Norm(why))), _) => return Err(disagrees(&why)),
                (Err(Failure::Malformed(what)), _) => return Err(SequenceError::Malformed(what).into()),
                (Err(failure @ (Failure::Placement(..) | Failure::Device(..))), _) => failure,
                (Err(failure), _) => match self.passes_control(&second, batch.output_kind) {
                    Ok(true) => return Err(disagrees(&failure.incident(&second.placement).why)),
                    Ok(false) => failure,
                    Err(hung) => hung,
                },
            };
            incidents.push(self.retire(&second.placement, failure));
        }
        Err(unusual("there is no other placement to compare with"))
    }

    /// Computes `batch` on the first placement that works. Fails if a sequence can't be computed.
    pub(crate) fn compute(&self, batch: &Arc<Batch>) -> Result<BatchOutput, Error> {
        let mut incidents = Vec::new();
        'placements: loop {
            let BatchOutcome { mut output, rejected, unresolved, .. } = self.compute_each(batch, None)?;
            incidents.append(&mut output.incidents);
            if let Some((_, error)) = rejected.into_iter().next() {
                return Err(error.into());
            }
            for sequence in unresolved {
                match self.attribute(&sequence)? {
                    Attribution::Sequence(rows, others) => {
                        incidents.extend(others);
                        let range = batch.rows_of(sequence.index..sequence.index + 1);
                        let values = range.start * rows.width..range.end * rows.width;
                        output.rows.values[values].copy_from_slice(&rows.values);
                        output.rows.norms[range].copy_from_slice(&rows.norms);
                    }
                    Attribution::Placement(others) => {
                        incidents.extend(others);
                        continue 'placements;
                    }
                }
            }
            return Ok(BatchOutput { incidents, ..output });
        }
    }

    /// Resolves a sequence with a second placement.
    pub(crate) fn resolve(&self, sequence: &UnresolvedSequence) -> Result<BatchOutput, Error> {
        match self.attribute(sequence)? {
            Attribution::Sequence(rows, incidents) => {
                let (placement, class) = (sequence.origin.placement.clone(), sequence.origin.class.clone());
                Ok(BatchOutput { rows, placement, class, incidents, splits: 0 })
            }
            Attribution::Placement(mut incidents) => {
                let output = self.compute(&sequence.batch)?;
                incidents.extend(output.incidents);
                Ok(BatchOutput { incidents, ..output })
            }
        }
    }
}

/// Distance that the rows of two placements may have from each other, each within its band.
fn allowed(bands: [Band; 2]) -> f64 {
    let [one, other] = bands.map(|band| band.tolerance().sqrt());
    (one + other).powi(2)
}

fn near(own: &Rows, other: &Rows, bands: [Band; 2]) -> bool {
    distance(own, other).within(allowed(bands))
}

fn same_norms(own: &Rows, other: &Rows, bands: [Band; 2]) -> bool {
    let norms = |rows: &Rows| Rows { width: 1, values: rows.norms.clone(), norms: Vec::new() };
    near(&norms(own), &norms(other), bands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_placements_may_lie_as_far_apart_as_their_bands_together() {
        assert!((allowed([Band::Exact, Band::Exact]) - 4e-5).abs() < 1e-12);
        assert!((allowed([Band::Half, Band::Exact]) - 1.21e-3).abs() < 1e-12);
    }

    #[test]
    fn agreement_is_of_values_and_of_norms() {
        let rows =
            |values: [f32; 2], norm: f32| Rows { width: 2, values: values.to_vec(), norms: vec![norm] };
        let exact = [Band::Exact; 2];
        let own = rows([0.6, 0.8], 40.0);
        assert!(near(&own, &rows([0.6, 0.8], 1.0), exact));
        assert!(!near(&own, &rows([0.8, 0.6], 40.0), exact));
        assert!(!near(&own, &rows([f32::NAN, 0.8], 40.0), exact));
        assert!(same_norms(&own, &rows([0.8, 0.6], 40.01), exact));
        assert!(!same_norms(&own, &rows([0.6, 0.8], 41.0), exact));
        assert!(!same_norms(&own, &rows([0.6, 0.8], f32::NAN), exact));
    }
}
