//! Whose fault a failed batch is. A placement that fails on a known text too is at fault. Otherwise the sequences it
//! failed on are singled out, and a second placement says whether they are unusual or the first one is wrong.

use std::sync::Arc;

use sconce_core::batch::{Batch, OutputKind, Rows};
use sconce_core::placement::Placement;
use sconce_planner::band::Band;
use sconce_planner::judge::distance;

use crate::active::{ActivePlacement, Failure};
use crate::error::Error;
use crate::guard::Breach;
use crate::low_level::{Computed, Incident, IncidentKind};
use crate::model::Model;
use crate::second::{SecondLoad, SecondLoaded};
use crate::serving::Serving;

/// Why one sequence can't be computed, though the placement works.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// It is too long for the memory of the device.
    #[error(
        "a text of {tokens} tokens does not fit in the memory of {placement}\n\
         hint: send it in shorter pieces, or serve the model with `--device cpu`"
    )]
    DoesNotFit {
        /// Its length.
        tokens: usize,
        /// Where it was tried.
        placement: Placement,
    },
    /// No two placements agree on its result.
    #[error("no reliable result for a text of {tokens} tokens: {why}\nhint: send the other texts without it")]
    Unusual {
        /// Its length.
        tokens: usize,
        /// What each placement gave.
        why: String,
    },
    /// The engine rejected it.
    #[error("{0}")]
    Malformed(String),
}

/// What came of a batch, sequence by sequence.
pub struct Answered {
    /// The rows. Those of the sequences in `refused` and `suspects` are NaN.
    pub computed: Computed,
    /// The sequences that can't be computed, by their index.
    pub refused: Vec<(usize, SequenceError)>,
    /// The sequences that need a second opinion: [`Model::settle`].
    pub suspects: Vec<Suspect>,
}

/// A sequence on which a placement failed that computes a known text well.
pub struct Suspect {
    /// Its index in the batch.
    pub index: usize,
    batch: Arc<Batch>,
    first: First,
    finding: Finding,
}

/// The placement that failed. Its weights are not held: a suspect may wait for long.
struct First {
    placement: Placement,
    band: Band,
    class: String,
}

impl First {
    fn of(active: &ActivePlacement) -> First {
        First { placement: active.placement.clone(), band: active.band, class: active.class.clone() }
    }
}

/// What a placement made of a sequence.
enum Finding {
    /// Rows whose norm is unusual.
    Norm(Rows, String),
    /// An error, or rows that are no numbers.
    Failed(IncidentKind, String),
}

impl Finding {
    fn why(&self) -> &str {
        match self {
            Finding::Norm(_, why) | Finding::Failed(_, why) => why,
        }
    }
}

/// What a second placement decides.
enum Attribution {
    /// Both agree: the rows of the first are the answer. With what happened to other placements meanwhile.
    Answer(Rows, Vec<Incident>),
    /// The first was wrong, and was taken out of service.
    Placement(Vec<Incident>),
}

/// What one active made of a batch so far.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) rows: Rows,
    pub(crate) refused: Vec<(usize, SequenceError)>,
    pub(crate) suspects: Vec<Suspect>,
    pub(crate) splits: usize,
    /// Sequences that are done with.
    done: usize,
    /// Whether the active computed the known text well since the batch began.
    controlled: bool,
}

impl Parts {
    fn push(&mut self, rows: Rows, sequences: usize) {
        self.done += sequences;
        self.rows.width = rows.width;
        self.rows.values.extend(rows.values);
        self.rows.norms.extend(rows.norms);
    }

    /// A sequence without rows: NaN stands in for them.
    fn skip(&mut self, batch: &Batch, width: usize) {
        let count = batch.rows_of(0..1).len();
        let norms = if batch.output_kind == OutputKind::Tokens { Vec::new() } else { vec![f32::NAN; count] };
        self.push(Rows { width, values: vec![f32::NAN; count * width], norms }, 1);
    }
}

impl Serving {
    /// Computes the sequences of `batch` on `active`, and singles out those that it fails on.
    pub(crate) fn isolate(
        &self,
        active: &ActivePlacement,
        batch: &Arc<Batch>,
        parts: &mut Parts,
    ) -> Result<(), Failure> {
        let count = batch.sequences.len();
        let failure = match self.loader().attempt(active, batch) {
            Ok(rows) => {
                parts.push(rows, count);
                return Ok(());
            }
            Err(failure @ (Failure::Placement(..) | Failure::Device(..))) => return Err(failure),
            Err(failure) => failure,
        };
        let lone = count == 1;
        let needs_control = match &failure {
            Failure::OutOfMemory(_) => lone,
            Failure::Malformed(_) => false,
            Failure::Engine(_) | Failure::Rows(..) | Failure::Placement(..) | Failure::Device(..) => true,
        };
        if needs_control && !parts.controlled {
            if !self.passes_control(active, batch.output_kind)? {
                return Err(failure);
            }
            parts.controlled = true;
        }
        if let Failure::Rows(rows, breach) = failure {
            return single_out(active, batch, &rows, breach, parts);
        }
        if !lone {
            parts.splits += 1;
            self.isolate(active, &Arc::new(batch.part(0..count / 2)), parts)?;
            return self.isolate(active, &Arc::new(batch.part(count / 2..count)), parts);
        }
        let (index, width) = (parts.done, active.guard.width_of(batch.output_kind));
        parts.skip(batch, width);
        match failure {
            Failure::OutOfMemory(_) => {
                let (tokens, placement) = (batch.tokens(), active.placement.clone());
                parts.refused.push((index, SequenceError::DoesNotFit { tokens, placement }));
            }
            Failure::Malformed(what) => parts.refused.push((index, SequenceError::Malformed(what))),
            Failure::Engine(why) => {
                let (batch, first) = (Arc::clone(batch), First::of(active));
                let finding = Finding::Failed(IncidentKind::Failed, why);
                parts.suspects.push(Suspect { index, batch, first, finding });
            }
            failure @ (Failure::Rows(..) | Failure::Placement(..) | Failure::Device(..)) => {
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Whether `active` computes a known text well.
    fn passes_control(&self, active: &ActivePlacement, output_kind: OutputKind) -> Result<bool, Failure> {
        let control = Batch { output_kind, ..self.control().clone() };
        match self.loader().attempt(active, &Arc::new(control)) {
            Ok(_) => Ok(true),
            Err(failure @ Failure::Device(..)) => Err(failure),
            Err(_) => Ok(false),
        }
    }

    /// Decides by what other placements say of a sequence whether it is unusual, or its placement is wrong.
    fn attribute(&self, suspect: &Suspect) -> Result<Attribution, Error> {
        let Suspect { batch, first, finding, .. } = suspect;
        let mut asked = vec![first.placement.clone()];
        let mut incidents = Vec::new();
        let refused = |says: &str| {
            let why = format!("{} gave {}; {says}", first.placement, finding.why());
            Error::Sequence(SequenceError::Unusual { tokens: batch.tokens(), why })
        };
        while let Some(second) = self.second(&asked, first.band) {
            asked.push(second.placement.clone());
            let said = |why: &str| refused(&format!("{} gave {why}", second.placement));
            let failure = match (self.loader().attempt(&second, batch), finding) {
                (Ok(rows) | Err(Failure::Rows(rows, Breach::Norm(_))), Finding::Norm(own, _))
                    if same_norms(own, &rows, [first.band, second.band]) =>
                {
                    if near(own, &rows, [first.band, second.band]) {
                        return Ok(Attribution::Answer(own.clone(), incidents));
                    }
                    return Err(said("other numbers"));
                }
                (Ok(_), finding) => {
                    let kind = match finding {
                        Finding::Norm(..) => IncidentKind::Guard,
                        Finding::Failed(kind, _) => *kind,
                    };
                    let failure = Failure::Placement(kind, finding.why().to_owned());
                    incidents.push(self.retire(&first.placement, failure));
                    return Ok(Attribution::Placement(incidents));
                }
                (Err(Failure::Rows(_, Breach::Norm(why))), _) => return Err(said(&why)),
                (Err(Failure::Malformed(what)), _) => return Err(SequenceError::Malformed(what).into()),
                (Err(failure @ (Failure::Placement(..) | Failure::Device(..))), _) => failure,
                (Err(failure), _) => match self.passes_control(&second, batch.output_kind) {
                    Ok(true) => return Err(said(&failure.incident(&second.placement).why)),
                    Ok(false) => failure,
                    Err(hung) => hung,
                },
            };
            incidents.push(self.retire(&second.placement, failure));
        }
        Err(refused("no other placement is there to compare it with"))
    }

    /// Computes `batch` on the first placement that does it right; an error where a sequence can't be computed.
    pub(crate) fn compute(&self, batch: &Arc<Batch>) -> Result<Computed, Error> {
        let mut incidents = Vec::new();
        'placements: loop {
            let Answered { mut computed, refused, suspects } = self.compute_each(batch)?;
            incidents.append(&mut computed.incidents);
            if let Some((_, error)) = refused.into_iter().next() {
                return Err(error.into());
            }
            for suspect in suspects {
                match self.attribute(&suspect)? {
                    Attribution::Answer(rows, others) => {
                        incidents.extend(others);
                        let place = batch.rows_of(suspect.index..suspect.index + 1);
                        let values = place.start * rows.width..place.end * rows.width;
                        computed.rows.values[values].copy_from_slice(&rows.values);
                        computed.rows.norms[place].copy_from_slice(&rows.norms);
                    }
                    Attribution::Placement(blamed) => {
                        incidents.extend(blamed);
                        continue 'placements;
                    }
                }
            }
            return Ok(Computed { incidents, ..computed });
        }
    }

    /// Settles one sequence by a second opinion.
    fn settle(&self, suspect: &Suspect) -> Result<Computed, Error> {
        match self.attribute(suspect)? {
            Attribution::Answer(rows, incidents) => {
                let (placement, class) = (suspect.first.placement.clone(), suspect.first.class.clone());
                Ok(Computed { rows, placement, class, incidents, splits: 0 })
            }
            Attribution::Placement(mut incidents) => {
                let computed = self.compute(&suspect.batch)?;
                incidents.extend(computed.incidents);
                Ok(Computed { incidents, ..computed })
            }
        }
    }
}

/// Splits computed rows into those that the guard accepts and those that it does not.
fn single_out(
    active: &ActivePlacement,
    batch: &Batch,
    rows: &Rows,
    breach: Breach,
    parts: &mut Parts,
) -> Result<(), Failure> {
    let before = parts.suspects.len();
    for index in 0..batch.sequences.len() {
        let own = rows.part(batch.rows_of(index..index + 1));
        let lone = batch.part(index..index + 1);
        let finding = match active.guard.check(&own, batch.output_kind, 1, lone.tokens()) {
            None => {
                parts.push(own, 1);
                continue;
            }
            Some(Breach::Norm(why)) => Finding::Norm(own, why),
            Some(Breach::Values(why) | Breach::Shape(why)) => Finding::Failed(IncidentKind::Guard, why),
        };
        let index = parts.done;
        parts.skip(&lone, rows.width);
        parts.suspects.push(Suspect { index, batch: Arc::new(lone), first: First::of(active), finding });
    }
    if parts.suspects.len() == before { Err(Failure::Rows(Rows::default(), breach)) } else { Ok(()) }
}

impl Model {
    /// Computes one batch under the guard as [`compute`](Model::compute) does, but answers each sequence on its own:
    /// one that can't be computed or needs a second opinion holds up no other.
    pub fn compute_each(&self, batch: Batch) -> Result<Answered, Error> {
        self.serving().compute_each(&Arc::new(Model::well_formed(batch)?))
    }

    /// Settles a sequence that needs a second opinion: computed by another placement as well, which may have to be
    /// proved and loaded first. It is answered where both agree, refused where neither can be relied on, and computed
    /// elsewhere where the first placement was wrong, which is taken out of service.
    pub fn settle(&self, suspect: &Suspect) -> Result<Computed, Error> {
        self.serving().settle(suspect)
    }

    /// The placement that has to be loaded before `suspect` can be settled; none where one is loaded, or none is left.
    /// Whoever loads it beforehand need not hold the model meanwhile.
    pub fn second_to_load(&self, suspect: &Suspect) -> Option<SecondLoad> {
        let First { placement, band, .. } = &suspect.first;
        self.serving().second_to_load(std::slice::from_ref(placement), *band)
    }

    /// Keeps a placement for second opinions, or remembers that it can't be loaded.
    pub fn admit_second(&self, second: SecondLoaded) {
        self.serving().admit_second(second);
    }
}

/// The distance that numbers of two placements may have from each other, where each keeps its band.
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
