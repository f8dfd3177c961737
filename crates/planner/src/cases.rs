//! The questions to put to a placement before it is believed.

use sconce_core::batch::OutputKind;
use sconce_core::card::ModelCard;
use sconce_core::probe::{Op, ProbeCase};

/// Lengths at which kernels were seen to break: one token, and around the sizes of their tiles.
const EDGES: [usize; 9] = [1, 31, 32, 33, 127, 128, 129, 300, 2100];
/// Every length up to here is tried, and from here on the multiples of the widest tiles with their neighbours: a text
/// costs the square of its length, and every length of a long model would take the better part of an hour.
const EVERY_LENGTH: usize = 512;
/// The multiples of this are tried beyond.
const WIDE_TILE: usize = 64;
/// The most tokens that the longest twin has.
const LONGEST: usize = 2100;

/// Small models of the same architecture: every token at the edges, then a sweep over all lengths, each as the
/// longest of a batch of two so that padding takes part where an engine pads.
pub fn twins(card: &ModelCard) -> Vec<ProbeCase> {
    let longest = card.max_length.value.min(LONGEST);
    let edges = EDGES
        .into_iter()
        .filter(|&length| length <= longest)
        .map(|length| (vec![length], OutputKind::Tokens));
    let mixed = [vec![longest.min(96), 1, longest.min(7), longest.min(33)]]
        .map(|lengths| (lengths, OutputKind::Tokens));
    let sweep =
        (1..=longest).filter(|&length| length <= EVERY_LENGTH || matches!((length + 1) % WIDE_TILE, 0..=2));
    let sweep = sweep.map(|length| (vec![length, (length - length / 10).max(1)], OutputKind::Pooled));
    let cases = edges.chain(mixed).chain(sweep).enumerate();
    cases
        .map(|(seed, (lengths, output_kind))| ProbeCase::Twin { lengths, seed: seed as u64, output_kind })
        .collect()
}

/// Lengths for real weights up to `longest` tokens, two to a batch: for graphs, of which no twin can be made.
pub fn sweep(longest: usize) -> Vec<[usize; 2]> {
    let around = (1..).map(|power| 1 << power).take_while(|&size| size <= longest);
    let mut lengths: Vec<usize> = around.flat_map(|size: usize| [size - 1, size, size + 1]).collect();
    lengths.push(longest);
    lengths.retain(|length| (1..=longest).contains(length));
    lengths.sort_unstable();
    lengths.dedup();
    lengths.into_iter().map(|length| [length, (length - length / 10).max(1)]).collect()
}

/// One layer at real widths: a lone short text, a small batch, a large one.
pub fn speeds(card: &ModelCard) -> Vec<ProbeCase> {
    let longest = card.max_length.value;
    [(1, 16), (8, 128), (32, 256)]
        .map(|(batch, length)| ProbeCase::Speed { batch, length: longest.min(length) })
        .to_vec()
}

/// Every op alone: in `doctor`, and to name the op after a twin was wrong.
pub fn ops() -> Vec<ProbeCase> {
    let shapes = [[1, 64], [7, 384], [33, 257], [128, 1024]];
    Op::ALL.into_iter().flat_map(|op| shapes.map(|shape| ProbeCase::Op { op, shape })).collect()
}

/// Texts of unlike lengths on which real weights are tried.
pub const CANARIES: [&str; 8] = [
    "candle",
    "A sconce holds a candle in its place.",
    "how do I place a model on the right device?",
    "Der schnelle braune Fuchs springt über den faulen Hund, während die Sonne langsam untergeht.",
    "El mar estaba tranquilo aquella mañana; 日本語の文も少し混ぜておきます。 Ça ira très bien, 42 times out of 43.",
    "fn main() { let answer: u32 = (1..=6).product(); println!(\"{answer}\"); } // 720, and not a number more",
    "A library keeps its promises in small print: what is measured on one machine says little of another, so the \
     numbers are taken again wherever the program runs, compared with a slow and careful reference, and written \
     down beside the version of everything that took part.",
    "When the lamplighter reached the last street he turned around and counted the lights he had left behind him. \
     There were forty-three, which was one more than the night before, and he could not say where the other had \
     come from. He walked back slowly, looking into every glass, until he found one that burned without a wick. \
     It was a little brighter than the rest, and it gave no warmth at all. He wrote its number in his book, drew a \
     line under it, and decided that he would not trust it before he had seen it burn through a whole night beside \
     a lamp that he had lit with his own hand. In the morning the two were alike, and he crossed the line out.",
];
