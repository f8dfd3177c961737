//! A second opinion: a batch that was answered is computed again on the reference, and a placement that has drifted
//! away from it is taken out of service.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sconce_core::batch::{Batch, Rows};
use sconce_core::placement::Placement;
use sconce_planner::band::Band;

use crate::active::told;
use crate::error::Error;
use crate::executor::{DeviceExecutors, Loaded};
use crate::low_level::Computed;
use crate::model::{Claim, Model};
use crate::serving::Serving;

/// How often in a row a placement may lie beyond its band before it has to go.
const STRIKES: usize = 2;
/// How long the reference may take for a batch.
const TIMEOUT: Duration = Duration::from_mins(2);
/// Texts of a batch that are checked, and their tokens: enough to see a drift, few enough to take little from others.
const TEXTS: usize = 8;
const TOKENS: usize = 1024;
/// Scores that are judged together, from several batches if need be: one near zero says little.
const SCORES: usize = 8;

/// What the reference said of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Shadow {
    /// The placement that was checked.
    pub placement: Placement,
    /// The placement that it was checked by.
    pub reference: Placement,
    /// How alike each row is to the reference's; of scores, all together.
    pub cosines: Vec<f64>,
    /// What follows.
    pub verdict: Verdict,
}

/// What follows from a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It keeps its band.
    Agrees,
    /// It does not.
    Drifts,
    /// It did not again, and was taken out of service, with the reason.
    Demoted(String),
}

/// The reference as it is loaded, and how often the placement that serves has drifted in a row.
#[derive(Default)]
pub(crate) struct Watch {
    /// DeviceExecutors of its own: nothing that serves goes down with the reference, or waits for more than a block of it.
    executors: DeviceExecutors,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reference: Option<Arc<Loaded>>,
    checks: usize,
    /// Scores that were given and those of the reference, until there are enough.
    scores: (Vec<f32>, Vec<f32>),
    drifted: Option<(Placement, usize)>,
}

impl Model {
    /// Has the reference compute some texts of `batch` again, which gave `computed`, and takes the placement out of
    /// service where it drifts. None where there is nothing to compare: the reference itself serves, or the placement
    /// is gone.
    pub fn shadow(&self, batch: &Batch, computed: &Computed) -> Result<Option<Shadow>, Error> {
        self.serving().shadow(batch, computed)
    }

    /// What the reference will take, where the next check has to load it.
    pub fn reference_to_load(&self) -> Option<Claim> {
        let serving = self.serving();
        let loaded = serving.watch().lock().reference.is_some();
        let reference = serving.plan().reference.filter(|_| !loaded)?;
        Claim::of(self.card(), &reference).filter(|claim| Some(&claim.placement) != self.placement().as_ref())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.lock().reference = None;
        self.executors.settle();
    }
}

impl State {
    /// How often in a row `placement` has drifted by now.
    fn strikes(&mut self, placement: &Placement, keeps: bool) -> usize {
        let before = self.drifted.take().filter(|(drifted, _)| drifted == placement);
        let strikes = if keeps { 0 } else { before.map_or(0, |(_, strikes)| strikes) + 1 };
        self.drifted = (!keeps).then(|| (placement.clone(), strikes));
        strikes
    }

    /// Puts scores to those of earlier batches; all of them once there are enough.
    fn gather(&mut self, given: Rows, rows: Rows) -> Option<(Rows, Rows)> {
        let width = rows.width;
        self.scores.0.extend(given.values);
        self.scores.1.extend(rows.values);
        if self.scores.1.len() < SCORES {
            return None;
        }
        let of = |values| Rows { width, values, norms: Vec::new() };
        let (given, rows) = std::mem::take(&mut self.scores);
        Some((of(given), of(rows)))
    }
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Serving {
    fn shadow(&self, batch: &Batch, computed: &Computed) -> Result<Option<Shadow>, Error> {
        let placement = &computed.placement;
        let (Some(reference), Some(band)) = (self.plan().reference, self.band_of(placement)) else {
            return Ok(None);
        };
        if reference == *placement {
            return Ok(None);
        }
        let loaded = self.reference(&reference)?;
        let checks = {
            let mut state = self.watch().lock();
            state.checks += 1;
            state.checks
        };
        let (some, given) = some_of(batch, &computed.rows, checks);
        let rows = match self.watch().executors.encode(&loaded, &Arc::new(some), TIMEOUT) {
            Ok(output) => output.into_rows(),
            Err(error) => {
                // The next check has it loaded anew.
                self.watch().lock().reference = None;
                let says = told(&error);
                return Err(Error::Machine(format!("the reference {reference} gave no rows: {says}")));
            }
        };
        let scores = self.subject().card.task.value.scores();
        let enough = if scores { self.watch().lock().gather(given, rows) } else { Some((given, rows)) };
        let Some((given, rows)) = enough else { return Ok(None) };
        let distances = distances(&given, &rows, scores);
        let mean = distances.iter().sum::<f64>() / distances.len().max(1) as f64;
        let verdict = self.judge(placement, &reference, mean, band);
        let cosines = distances.iter().map(|distance| (1.0 - distance).max(-1.0)).collect();
        Ok(Some(Shadow { placement: placement.clone(), reference, cosines, verdict }))
    }

    fn judge(&self, placement: &Placement, reference: &Placement, mean: f64, band: Band) -> Verdict {
        let strikes = self.watch().lock().strikes(placement, keeps(mean, band));
        if strikes == 0 {
            return Verdict::Agrees;
        }
        if strikes < STRIKES {
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

    /// The reference, loaded once.
    fn reference(&self, reference: &Placement) -> Result<Arc<Loaded>, Error> {
        if let Some(loaded) = &self.watch().lock().reference {
            return Ok(Arc::clone(loaded));
        }
        let loaded = self.loader().load_on(&self.watch().executors, reference).map_err(|obstacle| {
            Error::Machine(format!("the reference {reference} can't be loaded: {obstacle}"))
        })?;
        Ok(Arc::clone(self.watch().lock().reference.insert(Arc::new(loaded))))
    }
}

/// Whether a mean distance from the reference lies in `band`.
fn keeps(mean: f64, band: Band) -> bool {
    mean <= band.tolerance()
}

/// Some texts of a batch, other ones each time, and the rows that were given for them.
fn some_of(batch: &Batch, rows: &Rows, turn: usize) -> (Batch, Rows) {
    let sequences = &batch.sequences;
    let first = turn % sequences.len().max(1);
    let mut tokens = 0;
    let fits = sequences[first..].iter().take(TEXTS).take_while(|sequence| {
        tokens += sequence.length;
        tokens <= TOKENS
    });
    let last = first + fits.count().max(1);
    let given = rows.part(batch.rows_of(first..last));
    (batch.part(first..last), Rows { norms: Vec::new(), ..given })
}

/// How far each row lies from the reference's, as `1 - cos` is for vectors of one length; all of them together where
/// they are scores, since one near zero has no length to be held against.
fn distances(rows: &Rows, reference: &Rows, together: bool) -> Vec<f64> {
    if rows.width != reference.width || rows.values.len() != reference.values.len() {
        return vec![f64::INFINITY];
    }
    let apart = |a: &[f32], b: &[f32]| {
        let square = |x: f64| x * x;
        let apart: f64 = a.iter().zip(b).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
        let size: f64 = b.iter().map(|&b| square(f64::from(b))).sum();
        let distance = if apart == 0.0 { 0.0 } else { apart / (2.0 * size) };
        if distance.is_finite() { distance } else { f64::INFINITY }
    };
    if together {
        return vec![apart(&rows.values, &reference.values)];
    }
    rows.iter().zip(reference.iter()).map(|(a, b)| apart(a, b)).collect()
}

#[cfg(test)]
mod tests {
    use sconce_core::batch::OutputKind;
    use sconce_core::device::Device;
    use sconce_core::placement::{Dtype, EngineId};

    use super::*;

    #[test]
    fn a_placement_drifts_once_it_lies_beyond_its_band() {
        for band in [Band::Exact, Band::Half, Band::Coarse] {
            assert!(keeps(band.tolerance(), band) && keeps(0.0, band), "{band}");
            for mean in [band.tolerance() * 1.01, f64::INFINITY, f64::NAN] {
                assert!(!keeps(mean, band), "{mean} in {band}");
            }
        }
    }

    #[test]
    fn only_what_drifts_in_a_row_counts_together() {
        let placement = |device| Placement {
            engine: EngineId::Candle,
            device,
            weights: String::new(),
            dtype: Dtype::F16,
        };
        let (cpu, metal) = (placement(Device::Cpu), placement(Device::Metal(0)));
        let mut state = State::default();
        let checks =
            [(&cpu, false), (&cpu, false), (&cpu, true), (&cpu, false), (&metal, false), (&cpu, false)];
        let strikes = checks.map(|(placement, keeps)| state.strikes(placement, keeps));
        assert_eq!(strikes, [1, 2, 0, 1, 1, 1]);
    }

    #[test]
    fn scores_are_judged_once_there_are_eight_of_them() {
        let rows = |values: &[f32]| Rows { width: 1, values: values.to_vec(), norms: Vec::new() };
        let mut state = State::default();
        let seven = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        assert_eq!(state.gather(rows(&seven), rows(&seven)), None);
        let all = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let reference = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0];
        assert_eq!(state.gather(rows(&[8.0]), rows(&[9.0])), Some((rows(&all), rows(&reference))));
        assert_eq!(state.gather(rows(&[8.0]), rows(&[9.0])), None, "those before were judged");
    }

    #[test]
    fn some_texts_are_checked_and_other_ones_each_time() {
        for output_kind in [OutputKind::Pooled, OutputKind::Tokens] {
            let mut batch = Batch::new(output_kind);
            let mut rows = Rows { width: 1, ..Rows::default() };
            for n in 0..20u16 {
                let length = 300;
                batch.push(&vec![u32::from(n); length], &vec![0; length], 0);
                let count = if output_kind == OutputKind::Pooled { 1 } else { length };
                rows.values.extend(vec![f32::from(n); count]);
            }
            let mut seen = [false; 20];
            for turn in 0..20 {
                let (some, given) = some_of(&batch, &rows, turn);
                let each = if output_kind == OutputKind::Pooled { 1 } else { 300 };
                assert_eq!(given.values.len(), some.sequences.len() * each);
                assert!(some.tokens() <= TOKENS);
                for (sequence, values) in some.sequences.iter().zip(given.values.chunks(each)) {
                    let id = some.ids[sequence.start];
                    seen[id as usize] = true;
                    assert!(values.iter().all(|&value| (value - id as f32).abs() < 0.5));
                }
            }
            assert_eq!(seen, [true; 20]);
        }
    }

    #[test]
    fn what_is_not_finite_is_never_near() {
        let rows = |values: &[f32]| Rows { width: 2, values: values.to_vec(), norms: Vec::new() };
        let same = distances(&rows(&[0.6, 0.8, 1.0, 0.0]), &rows(&[0.6, 0.8, 0.0, 1.0]), false);
        assert_eq!(same, [0.0, 1.0]);
        assert_eq!(distances(&rows(&[f32::NAN, 0.8]), &rows(&[0.6, 0.8]), false), [f64::INFINITY]);
        assert_eq!(distances(&rows(&[0.6, 0.8]), &rows(&[0.6, 0.8, 0.6, 0.8]), false), [f64::INFINITY]);
        let scores = distances(&rows(&[3.0, 0.01]), &rows(&[3.0, 0.0]), true);
        assert!(scores[0] < 1e-5, "{scores:?}");
    }
}
