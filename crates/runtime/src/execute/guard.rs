//! Checks every row before it is returned: shape, finite values, and the range of norms.

use sconce_core::batch::{OutputKind, Rows};
use sconce_core::card::Task;
use sconce_planner::judge::breach;

/// Tolerance factor on the range of norms of the canary.
const NORM_TOLERANCE: f32 = 8.0;

/// Expected shape and norms of a model's output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Guard {
    /// Task of the model.
    pub(super) task: Task,
    /// Values per row.
    pub(super) width: usize,
    /// Hidden size.
    pub(super) hidden: usize,
    /// Smallest and largest norm of the canary: of vectors before normalization, or of the input of a score head.
    pub(super) norms: [f32; 2],
}

/// A failed check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Breach {
    /// Wrong number of rows, or wrong width.
    Shape(String),
    /// Non-finite values, or zeros.
    Values(String),
    /// A norm outside the range of the canary.
    Norm(String),
}

impl Breach {
    pub(super) fn why(&self) -> &str {
        match self {
            Breach::Shape(why) | Breach::Values(why) | Breach::Norm(why) => why,
        }
    }
}

impl Guard {
    /// Values per row for a requested output.
    pub(super) fn width_of(&self, output_kind: OutputKind) -> usize {
        match output_kind {
            OutputKind::Pooled | OutputKind::Projected => self.width,
            // Logits are checked in `step`.
            OutputKind::Tokens | OutputKind::Logits => self.hidden,
        }
    }

    /// Checks the rows of a batch with this number of sequences and tokens.
    pub(super) fn check(
        &self,
        rows: &Rows,
        output_kind: OutputKind,
        sequences: usize,
        tokens: usize,
    ) -> Option<Breach> {
        match output_kind {
            OutputKind::Pooled => self.breach(rows, sequences),
            OutputKind::Projected => self.breach(rows, tokens),
            OutputKind::Tokens | OutputKind::Logits => self.breach_of_states(rows, tokens),
        }
    }

    /// Checks `count` output rows.
    pub(super) fn breach(&self, rows: &Rows, count: usize) -> Option<Breach> {
        // Engines that compute the score head themselves report no norms.
        let unreported = self.task.scores() && rows.norms.is_empty();
        let has_norms = unreported || rows.norms.len() == count;
        if rows.width != self.width || rows.values.len() != count * self.width || !has_norms {
            let what =
                format!("{} values for {count} vectors of dimension {}", rows.values.len(), self.width);
            return Some(Breach::Shape(what));
        }
        let may_be_zero = match self.task {
            Task::Embed | Task::Tokens | Task::Generate => false,
            Task::Rerank | Task::Classify | Task::Sparse => true,
        };
        if may_be_zero {
            if rows.values.iter().any(|x| !x.is_finite()) {
                return Some(Breach::Values("a value that is not finite".to_owned()));
            }
        } else if let Some(what) = breach(rows) {
            return Some(Breach::Values(what.to_owned()));
        }
        if rows.norms.iter().any(|norm| !norm.is_finite()) {
            return Some(Breach::Values("a vector whose norm is not finite".to_owned()));
        }
        let [least, most] = self.norms;
        let least = if self.task == Task::Sparse { 0.0 } else { least / NORM_TOLERANCE };
        let most = most * NORM_TOLERANCE;
        let outlier = rows.norms.iter().find(|&&norm| norm < least || norm > most);
        outlier.map(|norm| {
            Breach::Norm(format!("a vector of norm {norm}, where {least:.3} to {most:.3} is known"))
        })
    }

    /// Checks hidden states of `count` tokens, whose norms have no known range.
    pub(super) fn breach_of_states(&self, rows: &Rows, count: usize) -> Option<Breach> {
        if rows.width != self.hidden || rows.values.len() != count * self.hidden {
            let what =
                format!("{} values for {count} tokens of hidden size {}", rows.values.len(), self.hidden);
            return Some(Breach::Shape(what));
        }
        breach(rows).map(|what| Breach::Values(what.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_finite_nonzero_vectors_of_known_norm_pass() {
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
    fn hidden_states_are_complete_finite_and_nonzero() {
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

    #[test]
    fn norms_pass_up_to_the_exact_bounds() {
        // An eighth of the least norm that was seen, and eight times the largest.
        for (task, norm, passes) in [
            (Task::Embed, 0.125, true),
            (Task::Embed, 0.1249, false),
            (Task::Embed, 16.0, true),
            (Task::Embed, 16.001, false),
            (Task::Tokens, 0.125, true),
            (Task::Tokens, 0.1249, false),
            (Task::Rerank, 0.125, true),
            (Task::Rerank, 0.1249, false),
            (Task::Classify, 16.0, true),
            (Task::Classify, 16.001, false),
            (Task::Sparse, 0.0, true),
            (Task::Sparse, 16.001, false),
            (Task::Sparse, f32::NAN, false),
        ] {
            let guard = Guard { task, width: 2, hidden: 4, norms: [1.0, 2.0] };
            let rows = Rows { width: 2, values: vec![0.6, 0.8], norms: vec![norm] };
            assert_eq!(guard.breach(&rows, 1).is_none(), passes, "{task} with norm {norm}");
        }
    }

    #[test]
    fn only_scores_may_come_without_norms_and_never_with_some_of_them() {
        for (task, norms, passes) in [
            (Task::Embed, 0, false),
            (Task::Tokens, 0, false),
            (Task::Sparse, 0, false),
            (Task::Rerank, 0, true),
            (Task::Classify, 0, true),
            (Task::Rerank, 1, false),
            (Task::Rerank, 2, true),
            (Task::Rerank, 3, false),
            (Task::Embed, 2, true),
            (Task::Embed, 1, false),
            (Task::Embed, 3, false),
        ] {
            let guard = Guard { task, width: 1, hidden: 4, norms: [1.0, 2.0] };
            let rows = Rows { width: 1, values: vec![0.5, 0.5], norms: vec![1.5; norms] };
            assert_eq!(guard.breach(&rows, 2).is_none(), passes, "{task} with {norms} norms");
        }
    }

    #[test]
    fn vectors_are_never_zero_and_rows_have_the_width_of_the_model() {
        for (task, passes) in [
            (Task::Embed, false),
            (Task::Tokens, false),
            (Task::Rerank, true),
            (Task::Classify, true),
            (Task::Sparse, true),
        ] {
            let guard = Guard { task, width: 2, hidden: 4, norms: [1.0, 2.0] };
            let rows = |width, values| Rows { width, values, norms: vec![1.5] };
            assert_eq!(guard.breach(&rows(2, vec![0.0, 0.0]), 1).is_none(), passes, "{task}");
            assert!(guard.breach(&rows(1, vec![0.6, 0.8]), 1).is_some(), "{task}: another width");
            assert!(guard.breach(&rows(2, vec![0.6]), 1).is_some(), "{task}: half a row");
            let strange = guard.breach(&rows(2, vec![0.6, f32::NEG_INFINITY]), 1);
            assert!(strange.is_some(), "{task}: not finite");
        }
    }

    #[test]
    fn states_have_the_width_of_the_hidden_size() {
        let guard = Guard { task: Task::Embed, width: 2, hidden: 4, norms: [1.0, 2.0] };
        let states = |width, count| Rows { width, values: vec![0.5; count], norms: Vec::new() };
        assert_eq!(guard.breach_of_states(&states(4, 8), 2), None);
        for (rows, count) in [(states(2, 8), 2), (states(4, 8), 1), (states(4, 4), 2), (states(2, 4), 2)] {
            assert!(guard.breach_of_states(&rows, count).is_some(), "{rows:?}");
        }
        let some = guard.breach_of_states(&Rows { values: vec![0.0; 8], ..states(4, 8) }, 2);
        assert!(some.is_some(), "states of zeros");
    }

    #[test]
    fn norms_may_lie_eight_times_beyond_those_seen_and_no_farther() {
        let guard = Guard { task: Task::Embed, width: 1, hidden: 1, norms: [1.0, 2.0] };
        let of = |norm: f32| guard.breach(&Rows { width: 1, values: vec![1.0], norms: vec![norm] }, 1);
        for norm in [0.126, 1.0, 2.0, 15.9] {
            assert_eq!(of(norm), None, "{norm}");
        }
        for norm in [0.124, 16.1] {
            let breach = of(norm).expect("it lies beyond");
            assert!(matches!(&breach, Breach::Norm(why) if why.contains("0.125 to 16.000")), "{breach:?}");
        }
        for norm in [f32::NAN, f32::INFINITY] {
            assert!(matches!(of(norm), Some(Breach::Values(_))), "{norm}");
        }
    }

    #[test]
    fn each_kind_of_rows_is_held_to_its_own_count_and_width() {
        let guard = Guard { task: Task::Tokens, width: 1, hidden: 2, norms: [1.0, 1.0] };
        let rows = |width: usize, count: usize| Rows {
            width,
            values: vec![1.0; width * count],
            norms: vec![1.0; count],
        };
        // Two sequences of five tokens.
        for (output_kind, width, count) in
            [(OutputKind::Pooled, 1, 2), (OutputKind::Projected, 1, 5), (OutputKind::Tokens, 2, 5)]
        {
            assert_eq!(guard.check(&rows(width, count), output_kind, 2, 5), None, "{output_kind:?}");
            for (width, count) in [(width, count + 1), (width, count - 1), (3 - width, count)] {
                let found = guard.check(&rows(width, count), output_kind, 2, 5);
                assert!(
                    matches!(found, Some(Breach::Shape(_))),
                    "{output_kind:?} {width} {count}: {found:?}"
                );
            }
            let mut spoilt = rows(width, count);
            spoilt.values[0] = f32::NAN;
            assert!(
                matches!(guard.check(&spoilt, output_kind, 2, 5), Some(Breach::Values(_))),
                "{output_kind:?}"
            );
        }
    }

    #[test]
    fn rows_are_counted_and_as_wide_as_the_batch_asks() {
        let guard = Guard { task: Task::Embed, width: 2, hidden: 4, norms: [1.0, 2.0] };
        // Three tokens in two sequences.
        for (output_kind, width, count) in
            [(OutputKind::Pooled, 2, 2), (OutputKind::Projected, 2, 3), (OutputKind::Tokens, 4, 3)]
        {
            assert_eq!(guard.width_of(output_kind), width, "{output_kind:?}");
            let rows = |count| Rows { width, values: vec![0.5; count * width], norms: vec![1.5; count] };
            assert_eq!(guard.check(&rows(count), output_kind, 2, 3), None, "{output_kind:?}");
            let wrong = guard.check(&rows(5 - count), output_kind, 2, 3).expect("another number of rows");
            assert!(wrong.why().starts_with(&format!("{} values for", (5 - count) * width)), "{wrong:?}");
        }
    }
}
