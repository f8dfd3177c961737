//! Limits of the bands, and judgement by them.

use sconce_core::batch::{Batch, OutputKind, Rows};
use sconce_core::device::Device;
use sconce_core::obstacle::{Distance, Obstacle};
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_core::probe::{Op, ProbeCase};
use sconce_planner::band::Band;
use sconce_planner::judge::{breach, distance, judge};

const BANDS: [(Band, f64); 3] =
    [(Band::Exact, 1e-5), (Band::Half, 1e-3), (Band::Coarse, 0.292_893_218_813_452_5)];

fn rows(width: usize, values: &[f32]) -> Rows {
    Rows { width, values: values.to_vec(), norms: Vec::new() }
}

/// Two rows; the second has this `distance` from its reference.
fn apart(distance: f64) -> (Rows, Rows) {
    let off = (2.0 * distance).sqrt() as f32;
    (rows(2, &[0.0, 1.0, 1.0, off]), rows(2, &[0.0, 1.0, 1.0, 0.0]))
}

#[test]
fn each_band_ends_at_its_tolerance() {
    for (at, (band, tolerance)) in BANDS.into_iter().enumerate() {
        assert!((band.tolerance() / tolerance - 1.0).abs() < 1e-12, "{band}: {}", band.tolerance());
        let next = BANDS.get(at + 1).map(|(band, _)| *band);
        assert_eq!(Band::of(Distance(Some(band.tolerance()))), Some(band));
        assert_eq!(Band::of(Distance(Some(band.tolerance() * 0.999))), Some(band));
        assert_eq!(Band::of(Distance(Some(band.tolerance() * 1.001))), next);
    }
    assert_eq!(Band::of(Distance::ZERO), Some(Band::Exact));
    for none in [None, Some(f64::NAN), Some(f64::INFINITY)] {
        assert_eq!(Band::of(Distance(none)), None, "{none:?}");
    }
}

#[test]
fn a_placement_is_held_to_the_band_of_its_rounding() {
    let expected = |engine, device| {
        Dtype::ALL.map(|dtype| Band::expected(&Placement { engine, device, weights: String::new(), dtype }))
    };
    // Generated weights are quantized without an error.
    let exact_products = [Band::Exact, Band::Half, Band::Half, Band::Half, Band::Half];
    assert_eq!(expected(EngineId::Native, Device::Cpu), exact_products);
    assert_eq!(expected(EngineId::Candle, Device::Metal(0)), exact_products);
    // Activations are rounded to 8 bits for quantized products.
    let rounded = [Band::Exact, Band::Half, Band::Half, Band::Coarse, Band::Coarse];
    assert_eq!(expected(EngineId::Candle, Device::Cuda(1)), rounded);
    assert_eq!(expected(EngineId::Candle, Device::Cpu), rounded);
}

#[test]
fn a_band_reads_back_what_it_prints() {
    for ((band, _), name) in BANDS.into_iter().zip(["exact", "half", "coarse"]) {
        assert_eq!((band.to_string().as_str(), name.parse()), (name, Ok(band)));
        assert_eq!(serde_json::to_value(band).expect("it can be written"), name);
        assert_eq!(format!("{band:>8}").len(), 8);
    }
    let error = "loose".parse::<Band>().expect_err("no such band").to_string();
    assert_eq!(error, "unknown band `loose`; known: exact, half, coarse");
}

#[test]
fn the_judge_lets_pass_what_lies_within_the_band_and_nothing_else() {
    let case = ProbeCase::Twin { lengths: vec![2], seed: 0, output_kind: OutputKind::Tokens };
    for (band, tolerance) in BANDS {
        let (within, reference) = apart(tolerance * 0.99);
        let error = judge(&case, &within, &reference, band).expect("it lies within the band");
        assert!(error.0.is_some_and(|error| (error / tolerance - 0.99).abs() < 1e-3), "{band}: {error}");
        let (beyond, reference) = apart(tolerance * 1.01);
        let Err(Obstacle::ModelWrong { case: told, error, tolerance: allowed }) =
            judge(&case, &beyond, &reference, band)
        else {
            panic!("{band}: it lies beyond the band");
        };
        assert_eq!(told, "twin of lengths [2]");
        assert!(error.0.is_some_and(|error| (error / tolerance - 1.01).abs() < 1e-3), "{band}: {error}");
        assert!((allowed / tolerance - 1.0).abs() < 1e-12, "{band}");
    }
}

#[test]
fn a_wrong_op_is_named_with_its_shape_and_every_other_case_by_its_words() {
    let (wrong, reference) = apart(0.1);
    let op = ProbeCase::Op { op: Op::Matmul, shape: [7, 384] };
    let found = judge(&op, &wrong, &reference, Band::Half);
    assert!(
        matches!(&found, Err(Obstacle::OpWrong { op, shape, .. }) if op == "matmul" && *shape == [7, 384]),
        "{found:?}"
    );
    for case in [
        ProbeCase::Speed { batch: 8, length: 128 },
        ProbeCase::Canary { batches: vec![Batch::new(OutputKind::Pooled)] },
    ] {
        let found = judge(&case, &wrong, &reference, Band::Half);
        let words = case.to_string();
        assert!(matches!(&found, Err(Obstacle::ModelWrong { case, .. }) if *case == words), "{found:?}");
    }
}

#[test]
fn distance_is_half_the_squared_difference_over_the_squared_length() {
    let near = |values: &[f32], reference: &[f32]| distance(&rows(2, values), &rows(2, reference)).0;
    let is = |found: Option<f64>, want: f64| found.is_some_and(|found| (found - want).abs() < 1e-6);
    assert!(is(near(&[3.0, 4.0], &[3.0, 4.0]), 0.0));
    // Orthogonal vectors of equal norm.
    assert!(is(near(&[0.0, 5.0], &[5.0, 0.0]), 1.0));
    assert!(is(near(&[2.0, 0.0], &[1.0, 0.0]), 0.5));
    assert!(is(near(&[2.0, 0.0], &[4.0, 0.0]), 0.125));
    // The largest distance counts, in any row.
    assert!(is(near(&[2.0, 0.0, 1.0, 0.0], &[1.0, 0.0, 1.0, 0.0]), 0.5));
    assert!(is(near(&[1.0, 0.0, 2.0, 0.0], &[1.0, 0.0, 1.0, 0.0]), 0.5));
    // Zeros agree with zeros only.
    assert!(is(near(&[0.0, 0.0], &[0.0, 0.0]), 0.0));
    assert_eq!(near(&[1.0, 0.0], &[0.0, 0.0]), None);
    assert_eq!(near(&[f32::NAN, 0.0], &[1.0, 0.0]), None);
    assert_eq!(near(&[1.0, 0.0], &[f32::NAN, 0.0]), None);
    assert_eq!(near(&[1.0, 0.0, 1.0, 0.0], &[1.0, 0.0]), None);
    assert_eq!(distance(&rows(1, &[1.0, 2.0]), &rows(2, &[1.0, 2.0])), Distance(None));
}

#[test]
fn rows_are_in_breach_for_what_they_are_in_themselves() {
    let cases: [(&[f32], &[f32], Option<&str>); 7] = [
        (&[1.0, 0.0], &[1.0], None),
        (&[1.0, 0.0], &[], None),
        (&[], &[], Some("no values")),
        (&[1.0, f32::NAN], &[], Some("a value that is not finite")),
        (&[1.0, f32::INFINITY], &[], Some("a value that is not finite")),
        (&[1.0, 0.0, 0.0, 0.0], &[], Some("a vector of zeros")),
        (&[1.0, 0.0], &[f32::NAN], Some("a norm that is not finite")),
    ];
    for (values, norms, expected) in cases {
        let rows = Rows { norms: norms.to_vec(), ..rows(2, values) };
        assert_eq!(breach(&rows), expected, "{values:?} {norms:?}");
    }
}

#[test]
fn what_is_in_breach_is_never_near_a_reference_that_is_not() {
    let case = ProbeCase::Twin { lengths: vec![1], seed: 0, output_kind: OutputKind::Tokens };
    let verdict =
        |values: &[f32], reference: &[f32]| judge(&case, &rows(2, values), &rows(2, reference), Band::Coarse);
    // Zeros are half as far from a vector as an orthogonal vector is, and still invalid.
    let small = [1e-30, 0.0];
    for wrong in [[0.0, 0.0], [f32::NAN, 0.0]] {
        let found = verdict(&wrong, &small);
        assert!(matches!(found, Err(Obstacle::ModelWrong { error: Distance(None), .. })), "{found:?}");
    }
    assert_eq!(verdict(&[0.0, 0.0], &[0.0, 0.0]), Ok(Distance::ZERO), "as the reference is");
    let norms = Rows { norms: vec![f32::NAN], ..rows(2, &[1.0, 0.0]) };
    assert!(judge(&case, &norms, &rows(2, &[1.0, 0.0]), Band::Coarse).is_err());
}
