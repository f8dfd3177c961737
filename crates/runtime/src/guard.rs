//! The last look at vectors before they leave: what is not a vector of this model never does.

use sconce_core::batch::Rows;
use sconce_core::card::Task;
use sconce_planner::judge::breach;

/// How far beyond the norms seen with real weights a vector's may lie: texts differ, broken devices differ more.
const SLACK: f32 = 8.0;

/// What answers of a model are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Guard {
    /// What the model is for.
    pub(crate) task: Task,
    /// Numbers a row.
    pub(crate) width: usize,
    /// Numbers a token inside the model.
    pub(crate) hidden: usize,
    /// The least and largest norm seen: of vectors before normalisation, of what a head of scores was given.
    pub(crate) norms: [f32; 2],
}

impl Guard {
    /// What is wrong with `rows`, of which there should be `count`.
    pub(crate) fn breach(&self, rows: &Rows, count: usize) -> Option<String> {
        // An engine that computes scores inside does not say what its head was given.
        let untold = self.task.scores() && rows.norms.is_empty();
        let told = untold || rows.norms.len() == count;
        if rows.width != self.width || rows.values.len() != count * self.width || !told {
            return Some(format!("{} numbers for {count} vectors of {}", rows.values.len(), self.width));
        }
        let may_be_zero = match self.task {
            Task::Embed | Task::Tokens => false,
            Task::Rerank | Task::Classify | Task::Sparse => true,
        };
        if may_be_zero {
            if rows.values.iter().any(|x| !x.is_finite()) {
                return Some("a number that is not finite".to_owned());
            }
        } else if let Some(what) = breach(rows) {
            return Some(what.to_owned());
        }
        let [least, most] = self.norms;
        let least = if self.task == Task::Sparse { 0.0 } else { least / SLACK };
        let most = most * SLACK;
        let strange = rows.norms.iter().find(|&&norm| norm.is_nan() || norm < least || norm > most);
        strange.map(|norm| format!("a vector of norm {norm}, where {least:.3} to {most:.3} is known"))
    }

    /// What is wrong with hidden states of `count` tokens, whose norms nobody knows.
    pub(crate) fn breach_of_states(&self, rows: &Rows, count: usize) -> Option<String> {
        if rows.width != self.hidden || rows.values.len() != count * self.hidden {
            return Some(format!("{} numbers for {count} tokens of {}", rows.values.len(), self.hidden));
        }
        breach(rows).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_finite_nonzero_vectors_of_known_norm_pass() {
        let guard = Guard { task: Task::Embed, width: 2, hidden: 4, norms: [1.0, 2.0] };
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

    #[test]
    fn hidden_states_are_whole_finite_and_not_zero() {
        let guard = Guard { task: Task::Embed, width: 2, hidden: 2, norms: [1.0, 2.0] };
        let rows = |values: &[f32]| Rows { width: 2, values: values.to_vec(), norms: Vec::new() };
        assert_eq!(guard.breach_of_states(&rows(&[300.0, 1.0]), 1), None);
        for values in [&[f32::NAN, 1.0][..], &[0.0, 0.0], &[1.0], &[1.0, 1.0, 1.0, 1.0]] {
            assert!(guard.breach_of_states(&rows(values), 1).is_some(), "{values:?}");
        }
    }

    #[test]
    fn scores_may_be_zero_and_their_head_must_have_been_given_something_known() {
        let guard = Guard { task: Task::Rerank, width: 1, hidden: 4, norms: [1.0, 2.0] };
        let rows =
            |values: &[f32], norms: &[f32]| Rows { width: 1, values: values.to_vec(), norms: norms.to_vec() };
        assert_eq!(guard.breach(&rows(&[0.0], &[1.5]), 1), None);
        assert_eq!(guard.breach(&rows(&[-11.0, 9.0], &[]), 2), None);
        for (values, norms) in [
            (&[f32::NAN][..], &[1.5][..]),
            (&[f32::INFINITY], &[1.5]),
            (&[0.5], &[0.0]),
            (&[0.5], &[f32::NAN]),
        ] {
            assert!(guard.breach(&rows(values, norms), 1).is_some(), "{values:?} {norms:?}");
        }
    }

    #[test]
    fn sparse_rows_may_be_empty_but_never_strange() {
        let guard = Guard { task: Task::Sparse, width: 2, hidden: 4, norms: [1.0, 2.0] };
        let rows = |values: &[f32], norm: f32| Rows { width: 2, values: values.to_vec(), norms: vec![norm] };
        assert_eq!(guard.breach(&rows(&[0.0, 0.0], 0.0), 1), None);
        assert!(guard.breach(&rows(&[0.0, f32::NAN], f32::NAN), 1).is_some());
        assert!(guard.breach(&rows(&[0.0, 100.0], 100.0), 1).is_some());
    }
}
