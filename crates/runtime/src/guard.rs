//! The last look at vectors before they leave: what is not a vector of this model never does.

use sconce_core::batch::Rows;
use sconce_planner::judge::breach;

/// How far beyond the norms seen with real weights a vector's may lie: texts differ, broken devices differ more.
const SLACK: f32 = 8.0;

/// What vectors of a model are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Guard {
    /// Numbers a vector.
    pub(crate) width: usize,
    /// The least and largest norm seen before normalisation.
    pub(crate) norms: [f32; 2],
}

impl Guard {
    /// What is wrong with `rows`, of which there should be `count`.
    pub(crate) fn breach(&self, rows: &Rows, count: usize) -> Option<String> {
        if rows.width != self.width || rows.values.len() != count * self.width || rows.norms.len() != count {
            return Some(format!("{} numbers for {count} vectors of {}", rows.values.len(), self.width));
        }
        if let Some(what) = breach(rows) {
            return Some(what.to_owned());
        }
        let [least, most] = self.norms;
        let (least, most) = (least / SLACK, most * SLACK);
        let strange = rows.norms.iter().find(|&&norm| norm.is_nan() || norm < least || norm > most);
        strange.map(|norm| format!("a vector of norm {norm}, where {least:.3} to {most:.3} is known"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_finite_nonzero_vectors_of_known_norm_pass() {
        let guard = Guard { width: 2, norms: [1.0, 2.0] };
        let rows =
            |values: &[f32], norms: &[f32]| Rows { width: 2, values: values.to_vec(), norms: norms.to_vec() };
        assert_eq!(guard.breach(&rows(&[0.6, 0.8], &[1.5]), 1), None);
        for (values, norms) in [
            (&[f32::NAN, 1.0][..], &[1.5][..]),
            (&[0.0, 0.0], &[1.5]),
            (&[f32::INFINITY, 0.0], &[1.5]),
            (&[0.6, 0.8], &[1e-4]),
            (&[0.6, 0.8], &[1e4]),
            (&[0.6, 0.8], &[f32::NAN]),
            (&[0.6], &[1.5]),
            (&[0.6, 0.8, 0.6, 0.8], &[1.5, 1.5]),
        ] {
            assert!(guard.breach(&rows(values, norms), 1).is_some(), "{values:?} {norms:?}");
        }
    }
}
