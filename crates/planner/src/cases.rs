//! The probe cases of a placement.

use sconce_core::batch::OutputKind;
use sconce_core::card::{ModelCard, Sizes, Task};
use sconce_core::probe::{Op, ProbeCase};

/// Lengths at which kernels tend to break: one token, and around tile sizes.
const EDGES: [usize; 9] = [1, 31, 32, 33, 127, 128, 129, 300, 2100];
/// Every length up to this one is probed, and beyond it multiples of `WIDE_TILE` with their neighbours: attention is
/// quadratic, and all lengths of a long model would take most of an hour.
const EVERY_LENGTH: usize = 512;
/// The same for language models, whose prompts are computed in steps of any length beside others.
const EVERY_PROMPT: usize = 64;
/// Maximum length of their sweep: longer prompts are computed in several steps, with the KV cache.
const LONGEST_PROMPT: usize = 512;
/// The widest tile of a kernel.
const WIDE_TILE: usize = 64;
/// Lengths of prompts around tile sizes and cache blocks.
const PROMPTS: [usize; 6] = [1, 31, 32, 33, 129, 300];
/// Tokens of a prompt per step: less than a cache block, no multiple of one, and a whole prompt.
const CHUNKS: [usize; 3] = [7, 50, 512];
/// Maximum operations of a speed case, about two seconds of two cores in f32.
const MAX_SPEED_OPERATIONS: usize = 256 << 30;
/// Cached tokens of a timed decode step.
const CACHED: usize = 128;
/// Maximum sequence length of a twin.
const MAX_TWIN_LENGTH: usize = 2100;

/// Twin cases: every token at the edge lengths, then a sweep over all lengths, each as the longest of a batch of two, so
/// that padding takes part.
pub fn twins(card: &ModelCard) -> Vec<ProbeCase> {
    let longest = card.max_length.value.min(MAX_TWIN_LENGTH);
    let edges = EDGES
        .into_iter()
        .filter(|&length| length <= longest)
        .map(|length| (vec![length], OutputKind::Tokens));
    let mixed = [vec![longest.min(96), 1, longest.min(7), longest.min(33)]]
        .map(|lengths| (lengths, OutputKind::Tokens));
    let (every, end) = if generates(card) {
        (EVERY_PROMPT, longest.min(LONGEST_PROMPT + 1))
    } else {
        (EVERY_LENGTH, longest)
    };
    let sweep = (1..=end).filter(|&length| length <= every || matches!((length + 1) % WIDE_TILE, 0..=2));
    let sweep = sweep.map(|length| (vec![length, (length - length / 10).max(1)], OutputKind::Pooled));
    let cases = edges.chain(mixed).chain(sweep).enumerate();
    let twins = cases.map(|(seed, (lengths, output_kind))| ProbeCase::Twin {
        lengths,
        seed: seed as u64,
        output_kind,
    });
    let chunks = if generates(card) { &CHUNKS[..] } else { &[] };
    let prompts = PROMPTS.map(|length| length.min(longest / 2).max(1)).to_vec();
    let steps =
        chunks.iter().map(|&chunk| ProbeCase::Steps { lengths: prompts.clone(), chunk, seed: chunk as u64 });
    twins.chain(steps).collect()
}

fn generates(card: &ModelCard) -> bool {
    card.task.value == Task::Generate
}

/// Sweep of lengths for real weights up to `longest` tokens, two per batch: for graphs, which have no twin.
pub fn sweep(longest: usize) -> Vec<[usize; 2]> {
    let around = (1..).map(|power| 1 << power).take_while(|&size| size <= longest);
    let mut lengths: Vec<usize> = around.flat_map(|size: usize| [size - 1, size, size + 1]).collect();
    lengths.push(longest);
    lengths.retain(|length| (1..=longest).contains(length));
    lengths.sort_unstable();
    lengths.dedup();
    lengths.into_iter().map(|length| [length, (length - length / 10).max(1)]).collect()
}

/// Speed cases: a single short text and a small batch. For text generation, decode steps of one and of eight sequences.
pub fn speeds(card: &ModelCard) -> Vec<ProbeCase> {
    let longest = card.max_length.value;
    if generates(card) {
        return [1, 8].map(|batch| ProbeCase::Decode { batch, cached: CACHED.min(longest - 1) }).to_vec();
    }
    let texts =
        (MAX_SPEED_OPERATIONS / operations_per_token(&card.sizes.value) / longest.clamp(1, 128)).clamp(1, 8);
    [(1, 16), (texts, 128)]
        .map(|(batch, length)| ProbeCase::Speed { batch, length: longest.min(length) })
        .to_vec()
}

/// Operations of one layer per token, about.
fn operations_per_token(sizes: &Sizes) -> usize {
    let width = sizes.hidden.saturating_mul(4).saturating_add(sizes.intermediate.saturating_mul(3));
    sizes.hidden.saturating_mul(width).saturating_mul(2).max(1)
}

/// Every op alone: for `doctor`, and to find the wrong op after a twin failed.
pub fn ops() -> Vec<ProbeCase> {
    let shapes = [[1, 64], [7, 384], [33, 257], [128, 1024]];
    Op::ALL.into_iter().flat_map(|op| shapes.map(|shape| ProbeCase::Op { op, shape })).collect()
}

/// The canary's texts, of mixed lengths.
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
