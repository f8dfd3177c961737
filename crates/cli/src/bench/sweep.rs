//! The same placements at growing batches and growing lengths, in turns at every point.

use sconce::tokens::Tokens;
use serde_json::{Value, json};

use super::runner::Runner;
use super::workload::of_length;

/// Texts of a call, each of `LENGTH` tokens.
const BATCHES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const LENGTH: usize = 64;
/// Tokens of a text, `BATCH` texts a call.
const LENGTHS: [usize; 7] = [8, 16, 32, 64, 128, 256, 512];
const BATCH: usize = 32;
/// A point is tried until it has taken so long, and no more than so often.
const SECONDS: f64 = 0.3;
const TRIES: usize = 7;

/// One call: how many texts, how many tokens in all, and how long in the best try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) texts: usize,
    pub(super) tokens: usize,
    pub(super) seconds: f64,
}

impl Point {
    /// Tokens of one text.
    pub(super) fn length(&self) -> f64 {
        self.tokens as f64 / self.texts as f64
    }

    pub(super) fn texts_per_s(&self) -> f64 {
        self.texts as f64 / self.seconds
    }

    pub(super) fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

#[derive(Default)]
pub(super) struct Sweep {
    pub(super) by_batch: Vec<Point>,
    pub(super) by_length: Vec<Point>,
}

impl Sweep {
    pub(super) fn json(&self) -> Value {
        let points = |points: &[Point]| {
            let point = |point: &Point| {
                json!({
                    "texts": point.texts, "tokens_per_text": point.length(),
                    "texts_per_s": point.texts_per_s(), "tokens_per_s": point.tokens_per_s(),
                })
            };
            points.iter().map(point).collect::<Vec<_>>()
        };
        json!({ "by_batch": points(&self.by_batch), "by_length": points(&self.by_length) })
    }
}

/// Takes every point with every runner; texts longer than `longest` are left out.
pub(super) fn run(runners: &mut [Runner], tokens: &Tokens, longest: usize) -> anyhow::Result<()> {
    for batch in BATCHES {
        eprintln!("{batch} texts a call");
        for (runner, point) in points(runners, tokens, batch, LENGTH.min(longest))? {
            runner.sweep.by_batch.push(point);
        }
    }
    for length in LENGTHS.into_iter().filter(|&length| length <= longest) {
        eprintln!("{length} tokens a text");
        for (runner, point) in points(runners, tokens, BATCH, length)? {
            runner.sweep.by_length.push(point);
        }
    }
    Ok(())
}

fn points<'a>(
    runners: &'a mut [Runner],
    tokens: &Tokens,
    batch: usize,
    length: usize,
) -> anyhow::Result<Vec<(&'a mut Runner, Point)>> {
    let (texts, tokens) = of_length(tokens, batch, length)?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut points = Vec::new();
    for runner in runners {
        let (mut best, mut spent) = (f64::INFINITY, 0.0);
        for _ in 0..TRIES {
            let Some((seconds, _)) = runner.timed(&texts)? else { break };
            best = best.min(seconds);
            spent += seconds;
            if spent > SECONDS {
                break;
            }
        }
        if best.is_finite() {
            points.push((runner, Point { texts: batch, tokens, seconds: best }));
        }
    }
    Ok(points)
}
