//! Detects drift: how far the output of a placement lies from the reference over several shadow checks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sconce_core::batch::{Batch, Rows};
use sconce_core::placement::Placement;
use sconce_planner::band::Band;

use crate::device::{DeviceExecutors, Loaded};

/// Consecutive checks outside the band after which a placement is quarantined.
pub(super) const MAX_STRIKES: usize = 2;
/// Sample size of a check: enough to detect drift at little cost.
const MAX_TEXTS: usize = 8;
const MAX_TOKENS: usize = 1024;
/// Number of scores that are judged together, over several batches if necessary.
const MIN_SCORES: usize = 8;

/// Result of a shadow check.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadowCheck {
    /// The checked placement.
    pub placement: Placement,
    /// The reference.
    pub reference: Placement,
    /// Cosine similarity of each row to the reference; one value for all scores.
    pub cosines: Vec<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

/// Verdict of a shadow check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The placement is within its band.
    Agrees,
    /// The placement is outside its band.
    Drifts,
    /// The placement was outside its band repeatedly, and was quarantined for this reason.
    Demoted(String),
}

/// The loaded reference, and the drift of the active placement.
#[derive(Default)]
pub(crate) struct DriftMonitor {
    /// Separate executors: a hang of the reference affects no serving placement.
    pub(super) executors: DeviceExecutors,
    state: Mutex<DriftState>,
}

#[derive(Default)]
pub(super) struct DriftState {
    pub(super) reference: Option<Arc<Loaded>>,
    /// Number of checks.
    pub(super) checks: usize,
    /// Scores of the placement and of the reference that are not judged yet.
    scores: (Vec<f32>, Vec<f32>),
    drifted: Option<(Placement, usize)>,
}

impl DriftMonitor {
    pub(super) fn lock(&self) -> MutexGuard<'_, DriftState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DriftMonitor {
    fn drop(&mut self) {
        self.lock().reference = None;
        self.executors.drain();
    }
}

impl DriftState {
    /// Number of consecutive checks in which `placement` drifted, including this one.
    pub(super) fn strikes(&mut self, placement: &Placement, within_band: bool) -> usize {
        let before = self.drifted.take().filter(|(drifted, _)| drifted == placement);
        let strikes = if within_band { 0 } else { before.map_or(0, |(_, strikes)| strikes) + 1 };
        self.drifted = (!within_band).then(|| (placement.clone(), strikes));
        strikes
    }

    /// Adds scores to those of earlier batches. Returns all of them once there are enough.
    pub(super) fn collect_scores(&mut self, given: Rows, expected: Rows) -> Option<(Rows, Rows)> {
        let width = expected.width;
        self.scores.0.extend(given.values);
        self.scores.1.extend(expected.values);
        if self.scores.1.len() < MIN_SCORES {
            return None;
        }
        let rows = |values| Rows { width, values, norms: Vec::new() };
        let (given, expected) = std::mem::take(&mut self.scores);
        Some((rows(given), rows(expected)))
    }
}

/// Whether a mean distance from the reference is within `band`.
pub(super) fn is_within(mean: f64, band: Band) -> bool {
    mean <= band.tolerance()
}

/// A sample of a batch that rotates with `turn`, and its rows.
pub(super) fn sample(batch: &Batch, rows: &Rows, turn: usize) -> (Batch, Rows) {
    let sequences = &batch.sequences;
    let first = turn % sequences.len().max(1);
    let mut tokens = 0;
    let fits = sequences[first..].iter().take(MAX_TEXTS).take_while(|sequence| {
        tokens += sequence.length;
        tokens <= MAX_TOKENS
    });
    let last = first + fits.count().max(1);
    let given = rows.part(batch.rows_of(first..last));
    (batch.part(first..last), Rows { norms: Vec::new(), ..given })
}

/// Distance of each row from the reference, which is `1 - cos` for normalized vectors. Scores are compared as one row: a
/// relative error of a score near zero is meaningless.
pub(super) fn distances(rows: &Rows, reference: &Rows, joined: bool) -> Vec<f64> {
    if rows.width != reference.width || rows.values.len() != reference.values.len() {
        return vec![f64::INFINITY];
    }
    let distance = |a: &[f32], b: &[f32]| {
        let square = |x: f64| x * x;
        let difference: f64 = a.iter().zip(b).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
        let size: f64 = b.iter().map(|&b| square(f64::from(b))).sum();
        let relative = if difference == 0.0 { 0.0 } else { difference / (2.0 * size) };
        if relative.is_finite() { relative } else { f64::INFINITY }
    };
    if joined {
        return vec![distance(&rows.values, &reference.values)];
    }
    rows.iter().zip(reference.iter()).map(|(a, b)| distance(a, b)).collect()
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
            assert!(is_within(band.tolerance(), band) && is_within(0.0, band), "{band}");
            for mean in [band.tolerance() * 1.01, f64::INFINITY, f64::NAN] {
                assert!(!is_within(mean, band), "{mean} in {band}");
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
        let mut state = DriftState::default();
        let checks =
            [(&cpu, false), (&cpu, false), (&cpu, true), (&cpu, false), (&metal, false), (&cpu, false)];
        let strikes = checks.map(|(placement, keeps)| state.strikes(placement, keeps));
        assert_eq!(strikes, [1, 2, 0, 1, 1, 1]);
    }

    #[test]
    fn scores_are_judged_once_there_are_eight_of_them() {
        let rows = |values: &[f32]| Rows { width: 1, values: values.to_vec(), norms: Vec::new() };
        let mut state = DriftState::default();
        let seven = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        assert_eq!(state.collect_scores(rows(&seven), rows(&seven)), None);
        let all = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let reference = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0];
        assert_eq!(state.collect_scores(rows(&[8.0]), rows(&[9.0])), Some((rows(&all), rows(&reference))));
        assert_eq!(state.collect_scores(rows(&[8.0]), rows(&[9.0])), None, "those before were judged");
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
                let (some, given) = sample(&batch, &rows, turn);
                let each = if output_kind == OutputKind::Pooled { 1 } else { 300 };
                assert_eq!(given.values.len(), some.sequences.len() * each);
                assert!(some.tokens() <= MAX_TOKENS);
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
