//! Comparison of outputs with the reference's; NaN never agrees.

use sconce_core::batch::Rows;
use sconce_core::obstacle::{Distance, Obstacle};
use sconce_core::probe::ProbeCase;

use crate::band::Band;

/// The largest distance between corresponding rows; not finite if the shapes differ or a value is not finite.
pub fn distance(rows: &Rows, reference: &Rows) -> Distance {
    if rows.width != reference.width || rows.values.len() != reference.values.len() {
        return Distance(None);
    }
    let mut worst = 0.0f64;
    for (row, reference) in rows.iter().zip(reference.iter()) {
        let (mut apart, mut size) = (0.0f64, 0.0f64);
        for (&a, &b) in row.iter().zip(reference) {
            apart += (f64::from(a) - f64::from(b)).powi(2);
            size += f64::from(b).powi(2);
        }
        let distance = if apart == 0.0 { 0.0 } else { apart / (2.0 * size) };
        if !distance.is_finite() {
            return Distance(None);
        }
        worst = worst.max(distance);
    }
    Distance(Some(worst))
}

/// What is invalid about `rows` without comparison to a reference.
pub fn breach(rows: &Rows) -> Option<&'static str> {
    if rows.values.is_empty() {
        return Some("no values");
    }
    let row = rows.iter().find_map(|row| {
        if row.iter().any(|x| !x.is_finite()) {
            Some("a value that is not finite")
        } else if row.iter().all(|&x| x == 0.0) {
            Some("a vector of zeros")
        } else {
            None
        }
    });
    let norm = rows.norms.iter().any(|norm| !norm.is_finite()).then_some("a norm that is not finite");
    row.or(norm)
}

/// Compares `rows`, the output of `case`, with the reference's and checks that they are within `band`.
pub fn judge(case: &ProbeCase, rows: &Rows, reference: &Rows, band: Band) -> Result<Distance, Obstacle> {
    let error = if breach(rows).is_some_and(|_| breach(reference).is_none()) {
        Distance(None)
    } else {
        distance(rows, reference)
    };
    let tolerance = band.tolerance();
    if error.within(tolerance) {
        return Ok(error);
    }
    Err(match case {
        ProbeCase::Op { op, shape } => {
            Obstacle::OpWrong { op: op.to_string(), shape: shape.to_vec(), error, tolerance }
        }
        ProbeCase::Twin { .. }
        | ProbeCase::Speed { .. }
        | ProbeCase::Steps { .. }
        | ProbeCase::Decode { .. }
        | ProbeCase::Canary { .. } => Obstacle::ModelWrong { case: case.to_string(), error, tolerance },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_core::batch::OutputKind;

    fn rows(values: &[f32]) -> Rows {
        Rows { width: 2, values: values.to_vec(), norms: Vec::new() }
    }

    fn verdict(values: &[f32], reference: &[f32]) -> Result<Distance, Obstacle> {
        let case = ProbeCase::Twin { lengths: vec![1], seed: 0, output_kind: OutputKind::Tokens };
        judge(&case, &rows(values), &rows(reference), Band::Half)
    }

    #[test]
    fn equal_values_agree_and_a_small_error_is_reported() {
        assert_eq!(verdict(&[1.0, 2.0], &[1.0, 2.0]), Ok(Distance::ZERO));
        assert!(verdict(&[1.0, 2.001], &[1.0, 2.0]).is_ok_and(|d| d.0.is_some_and(|d| d > 1e-8)));
    }

    #[test]
    fn a_wrong_length_is_seen_though_the_angle_is_right() {
        assert!(verdict(&[2.0, 4.0], &[1.0, 2.0]).is_err());
    }

    #[test]
    fn nan_zeros_infinity_and_missing_rows_never_agree() {
        for wrong in
            [&[f32::NAN, f32::NAN][..], &[0.0, 0.0], &[f32::INFINITY, 1.0], &[], &[1.0, 2.0, 1.0, 2.0]]
        {
            assert!(verdict(wrong, &[1.0, 2.0]).is_err(), "{wrong:?}");
        }
        assert!(verdict(&[1.0, 2.0], &[f32::NAN, 2.0]).is_err());
    }

    #[test]
    fn one_wrong_row_among_many_is_enough() {
        assert!(verdict(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).is_ok());
        assert!(verdict(&[1.0, 2.0, 3.0, 4.0, 5.0, 9.0], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).is_err());
    }
}
