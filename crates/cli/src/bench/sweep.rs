//! Measures every runner at growing batch sizes and growing text lengths. Runners alternate at every point.

use sconce::tokenize::ModelTokenizer;

use super::point::Point;
use super::runner::Runner;
use super::workload::of_length;

/// Batch sizes, with texts of `LENGTH` tokens.
const BATCHES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const LENGTH: usize = 64;
/// Text lengths in tokens, with batches of `BATCH` texts.
const LENGTHS: [usize; 7] = [8, 16, 32, 64, 128, 256, 512];
const BATCH: usize = 32;
/// A point is measured up to `RUNS` times or for `SECONDS`, whichever ends first.
const SECONDS: f64 = 0.3;
const RUNS: usize = 7;

/// Measures every point with every runner. Skips lengths above `max_length`.
pub(super) fn run(runners: &mut [Runner], tokens: &ModelTokenizer, max_length: usize) -> anyhow::Result<()> {
    for batch in BATCHES {
        eprintln!("{batch} texts per call");
        for (runner, point) in points(runners, tokens, batch, LENGTH.min(max_length))? {
            runner.sweep.by_batch.push(point);
        }
    }
    for length in LENGTHS.into_iter().filter(|&length| length <= max_length) {
        eprintln!("{length} tokens per text");
        for (runner, point) in points(runners, tokens, BATCH, length)? {
            runner.sweep.by_length.push(point);
        }
    }
    Ok(())
}

fn points<'a>(
    runners: &'a mut [Runner],
    tokens: &ModelTokenizer,
    batch: usize,
    length: usize,
) -> anyhow::Result<Vec<(&'a mut Runner, Point)>> {
    let (texts, tokens) = of_length(tokens, batch, length)?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut points = Vec::new();
    for runner in runners {
        let (mut best, mut spent) = (f64::INFINITY, 0.0);
        for _ in 0..RUNS {
            let Some((seconds, _)) = runner.time(&texts)? else { break };
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
