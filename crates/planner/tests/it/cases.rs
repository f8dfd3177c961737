//! Probe cases.

use sconce_core::batch::OutputKind;
use sconce_core::card::{ModelCard, Task};
use sconce_core::probe::{Op, ProbeCase};
use sconce_core::sourced::Sourced;
use sconce_planner::cases::{CANARIES, ops, speeds, sweep, twins};

fn card(longest: usize) -> ModelCard {
    ModelCard { max_length: Sourced::new(longest, "a test"), ..crate::card() }
}

/// The lengths of the cases that return every token, and of the pooled ones.
fn lengths(longest: usize) -> (Vec<Vec<usize>>, Vec<Vec<usize>>) {
    let cases = twins(&card(longest));
    let mut by_want = (Vec::new(), Vec::new());
    for (number, case) in cases.into_iter().enumerate() {
        let ProbeCase::Twin { lengths, seed, output_kind } = case else { panic!("a twin") };
        assert_eq!(seed, number as u64, "each case has ids of its own");
        match output_kind {
            OutputKind::Tokens => by_want.0.push(lengths),
            OutputKind::Pooled => by_want.1.push(lengths),
            OutputKind::Projected | OutputKind::Logits => panic!("twins have no projection"),
        }
    }
    by_want
}

#[test]
fn twins_are_tried_at_the_edges_and_at_every_length_that_the_model_has() {
    let (tokens, pooled) = lengths(40);
    assert_eq!(tokens, [vec![1], vec![31], vec![32], vec![33], vec![40, 1, 7, 33]]);
    let expected: Vec<Vec<usize>> = (1..=40)
        .map(|length| vec![length, if length < 10 { length } else { length - length / 10 }])
        .collect();
    assert_eq!(pooled, expected);
    let (tokens, pooled) = lengths(5);
    assert_eq!(tokens, [vec![1], vec![5, 1, 5, 5]]);
    assert_eq!(pooled.len(), 5);
    assert_eq!(lengths(33).0.len(), 5, "an edge that is the longest is tried");
}

#[test]
fn long_twins_are_tried_around_the_multiples_of_wide_tiles() {
    let (tokens, pooled) = lengths(1 << 20);
    let edges: Vec<usize> =
        tokens.iter().filter(|lengths| lengths.len() == 1).map(|lengths| lengths[0]).collect();
    assert_eq!(edges, [1, 31, 32, 33, 127, 128, 129, 300, 2100]);
    assert_eq!(tokens[9], [96, 1, 7, 33]);
    let longest: Vec<usize> = pooled.iter().map(|lengths| lengths[0]).collect();
    let expected: Vec<usize> =
        (1..=512).chain((513..=2100).filter(|length| [63, 0, 1].contains(&(length % 64)))).collect();
    assert_eq!(longest, expected);
    assert_eq!(pooled[511], [512, 461]);
}

#[test]
fn graphs_are_tried_around_powers_of_two_up_to_their_longest() {
    let expected =
        [[1, 1], [2, 2], [3, 3], [4, 4], [5, 5], [7, 7], [8, 8], [9, 9], [15, 14], [16, 15], [17, 16]];
    assert_eq!(sweep(17), expected);
    assert_eq!(sweep(1), [[1, 1]]);
    assert_eq!(sweep(2), [[1, 1], [2, 2]]);
    // The value below a power of two that is itself too long, and the maximum length.
    assert_eq!(sweep(15).last(), Some(&[15, 14]));
    assert_eq!(sweep(12)[7..], [[9, 9], [12, 11]]);
    assert_eq!(sweep(100).last(), Some(&[100, 90]));
}

#[test]
fn speed_is_measured_at_two_shapes_within_the_models_length() {
    let shapes = |card: &ModelCard| {
        let shape = |case| {
            let ProbeCase::Speed { batch, length } = case else { panic!("{case}") };
            (batch, length)
        };
        speeds(card).into_iter().map(shape).collect::<Vec<_>>()
    };
    assert_eq!(shapes(&card(512)), [(1, 16), (8, 128)]);
    assert_eq!(shapes(&card(100)), [(1, 16), (8, 100)]);
    assert_eq!(shapes(&card(7)), [(1, 7), (8, 7)]);
    // A layer of a large model computes fewer texts.
    let sized = |hidden, intermediate| {
        let mut card = card(512);
        card.sizes.value.hidden = hidden;
        card.sizes.value.intermediate = intermediate;
        card
    };
    assert_eq!(shapes(&sized(2560, 9728)), [(1, 16), (8, 128)]);
    assert_eq!(shapes(&sized(5120, 17408)), [(1, 16), (2, 128)]);
    assert_eq!(shapes(&sized(8192, 28672)), [(1, 16), (1, 128)]);
    assert_eq!(shapes(&sized(usize::MAX, usize::MAX)), [(1, 16), (1, 128)]);
}

#[test]
fn decoders_are_also_tried_in_steps_and_timed_token_by_token() {
    let generating = |longest| ModelCard { task: Sourced::new(Task::Generate, "a test"), ..card(longest) };
    let steps = |longest| {
        let step = |case| {
            let ProbeCase::Steps { lengths, chunk, .. } = case else { return None };
            Some((lengths, chunk))
        };
        twins(&generating(longest)).into_iter().filter_map(step).collect::<Vec<_>>()
    };
    let lengths = vec![1, 31, 32, 33, 129, 300];
    assert_eq!(steps(4096), [(lengths.clone(), 7), (lengths.clone(), 50), (lengths, 512)]);
    // A sequence goes on after its prompt.
    assert_eq!(steps(64)[0].0, [1, 31, 32, 32, 32, 32]);
    let whole = twins(&generating(4096)).len() - steps(4096).len();
    // Nine edges, a mixed batch, every length up to 64, and up to 512 the multiples of 64 with their neighbours.
    assert_eq!(whole, 9 + 1 + 64 + 1 + 7 * 3, "{whole}");
    assert_eq!(speeds(&generating(512)), [1, 8].map(|batch| ProbeCase::Decode { batch, cached: 128 }));
    assert_eq!(speeds(&generating(64)).pop(), Some(ProbeCase::Decode { batch: 8, cached: 63 }));
}

#[test]
fn every_op_is_tried_at_every_shape() {
    let cases = ops();
    for op in Op::ALL {
        for shape in [[1, 64], [7, 384], [33, 257], [128, 1024]] {
            assert!(cases.contains(&ProbeCase::Op { op, shape }), "{op} {shape:?}");
        }
    }
    assert_eq!(cases.len(), 4 * Op::ALL.len());
}

#[test]
fn canaries_are_of_unlike_lengths() {
    let lengths = CANARIES.map(str::len);
    assert!(lengths[0] < 10 && lengths[7] > 500 && lengths.iter().all(|&length| length > 0), "{lengths:?}");
}
