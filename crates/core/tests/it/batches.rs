//! Batches and rows.

use sconce_core::batch::{Batch, Output, OutputKind, Rows, Sequence};

fn batch() -> Batch {
    let mut batch = Batch::new(OutputKind::Tokens);
    batch.push(&[1, 2, 3], &[0, 1, 0], 1);
    batch.push_masked(&[4, 5], &[1, 0], 0, 1);
    batch
}

#[test]
fn sequences_lie_end_to_end() {
    let batch = batch();
    assert_eq!((batch.tokens(), batch.output_kind), (5, OutputKind::Tokens));
    assert_eq!((batch.ids.as_slice(), batch.types.as_slice()), (&[1, 2, 3, 4, 5][..], &[0, 1, 0, 1, 0][..]));
    let sequence = |start, length, skip, masked| Sequence { start, length, skip, masked };
    assert_eq!(batch.sequences, [sequence(0, 3, 1, 0), sequence(3, 2, 0, 1)]);
    assert_eq!(batch.sequences.iter().map(Sequence::attended).collect::<Vec<_>>(), [3, 1]);
    assert_eq!(Batch::new(OutputKind::Projected).output_kind, OutputKind::Projected);
    assert_eq!(Batch::default().output_kind, OutputKind::Pooled);
}

#[test]
fn a_part_asks_for_what_the_whole_asks_for() {
    let part = batch().part(1..2);
    assert_eq!(
        (part.output_kind, part.ids.as_slice(), part.types.as_slice()),
        (OutputKind::Tokens, &[4, 5][..], &[1, 0][..])
    );
    assert_eq!(part.sequences, [Sequence { start: 0, length: 2, skip: 0, masked: 1 }]);
}

#[test]
fn gaps_overlaps_rests_and_missing_types_are_not_well_formed() {
    assert!(batch().is_well_formed() && Batch::default().is_well_formed());
    let changes: [fn(&mut Batch); 8] = [
        |batch| batch.sequences[1].start = 4,
        |batch| batch.sequences[1].start = 2,
        |batch| batch.sequences[0].start = 1,
        |batch| batch.sequences[1].length = 1,
        |batch| batch.sequences[1].length = 3,
        |batch| batch.sequences[1].masked = 2,
        |batch| batch.types.truncate(4),
        |batch| batch.sequences.truncate(1),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut broken = batch();
        change(&mut broken);
        assert!(!broken.is_well_formed(), "change {number}");
    }
}

#[test]
fn rows_come_one_by_one_whatever_they_stand_for() {
    let rows = Rows { width: 2, values: vec![1.0, 2.0, 3.0, 4.0], norms: vec![0.5] };
    assert_eq!(rows.iter().collect::<Vec<_>>(), [[1.0, 2.0], [3.0, 4.0]]);
    assert_eq!(Rows::default().iter().len(), 0, "no width, and no division by it");
    for output in [Output::Rows(rows.clone()), Output::Tokens(rows.clone())] {
        assert_eq!(output.rows(), &rows);
        assert_eq!(output.into_rows(), rows);
    }
}

#[test]
fn a_part_of_rows_is_cut_at_both_ends() {
    let rows =
        Rows { width: 3, values: (0..12).map(|x| x as f32).collect(), norms: vec![0.0, 1.0, 2.0, 3.0] };
    let part = rows.part(1..3);
    assert_eq!(part.values, [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!((part.width, part.norms), (3, vec![1.0, 2.0]));
}
