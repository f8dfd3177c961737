//! What models were thought to take and what they took: each load corrects the next guess.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use sconce::core::report::Footprint;

/// Lines that are kept.
const LINES: usize = 512;
/// Loads of the same model that a guess is made from.
const LATEST: usize = 3;
/// What a model takes beside its weights, where nothing is known yet.
const BESIDE: u64 = 48 << 20;

/// A load: the guess, and the truth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// What the weights are.
    pub(crate) identity: String,
    /// Where they were loaded.
    pub(crate) placement: String,
    /// The engine and the numbers that they were computed in, which say most about what is kept beside them.
    pub(crate) manner: String,
    /// Footprint of the weights in those numbers.
    pub(crate) weights: u64,
    /// What was guessed.
    pub(crate) guess: Footprint,
    /// What was measured.
    pub(crate) truth: Footprint,
}

/// A model that is to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) identity: String,
    pub(crate) placement: String,
    pub(crate) manner: String,
    pub(crate) weights: u64,
}

/// All loads, kept in a file.
#[derive(Debug, Default)]
pub(crate) struct MemoryEstimator {
    path: PathBuf,
    lines: Vec<Line>,
}

impl MemoryEstimator {
    /// What is known; nothing where no file can be read.
    pub(crate) fn open(path: &Path) -> MemoryEstimator {
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        MemoryEstimator { path: path.to_owned(), lines }
    }

    /// What a model will take.
    pub(crate) fn guess(&self, load: &Load) -> Footprint {
        guess(&self.lines, load)
    }

    /// Writes down what a model took. A estimator that can't be written is kept in memory.
    pub(crate) fn note(&mut self, load: Load, guess: Footprint, truth: Footprint) {
        let Load { identity, placement, manner, weights } = load;
        self.lines.push(Line { identity, placement, manner, weights, guess, truth });
        if self.lines.len() > LINES {
            self.lines.remove(0);
        }
        let text: String = self
            .lines
            .iter()
            .filter_map(|line| serde_json::to_string(line).ok())
            .map(|line| line + "\n")
            .collect();
        let draft = self.path.with_extension(format!("{}.draft", std::process::id()));
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // A process of the same id may have died and left it. Links are not followed.
        let _ = fs::remove_file(&draft);
        let written = fs::create_dir_all(folder)
            .and_then(|()| File::options().write(true).create_new(true).open(&draft))
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&draft, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
    }
}

/// What a model will take: what it took the last times; what others of its manner took for each byte of their
/// weights; where neither is known, its weights once, again while they are read, and something beside.
fn guess(lines: &[Line], load: &Load) -> Footprint {
    let same = |line: &&Line| line.identity == load.identity && line.placement == load.placement;
    let own: Vec<&Line> = lines.iter().rev().filter(same).take(LATEST).collect();
    if !own.is_empty() {
        let resident = median(own.iter().map(|line| line.truth.resident as f64)) as u64;
        let peak = own.iter().map(|line| line.truth.peak).max().unwrap_or(0);
        return Footprint { resident, peak: peak.max(resident) };
    }
    let alike: Vec<&Line> =
        lines.iter().filter(|line| line.manner == load.manner && line.weights > 0).collect();
    if alike.is_empty() {
        let resident = load.weights + load.weights / 4 + BESIDE;
        return Footprint { resident, peak: resident + load.weights };
    }
    let scaled = |of: fn(&Footprint) -> u64| {
        let ratios = alike.iter().map(|line| of(&line.truth) as f64 / line.weights as f64);
        (median(ratios) * load.weights as f64) as u64
    };
    let resident = scaled(|bytes| bytes.resident);
    Footprint { resident, peak: scaled(|bytes| bytes.peak).max(resident) }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(identity: &str, weights: u64) -> Load {
        let (placement, manner) = ("candle/cpu/model/f32".to_owned(), "candle/f32".to_owned());
        Load { identity: identity.to_owned(), placement, manner, weights }
    }

    #[test]
    fn a_guess_is_corrected_by_others_and_most_by_the_model_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/memory.estimator");
        let mut estimator = MemoryEstimator::open(&path);
        let first = estimator.guess(&load("a", 100 << 20));
        assert_eq!(first, Footprint { resident: 173 << 20, peak: 273 << 20 });
        estimator.note(load("a", 100 << 20), first, Footprint { resident: 120 << 20, peak: 150 << 20 });
        assert_eq!(
            estimator.guess(&load("b", 200 << 20)),
            Footprint { resident: 240 << 20, peak: 300 << 20 }
        );
        for stays in [118, 122, 300] {
            estimator.note(
                load("a", 100 << 20),
                first,
                Footprint { resident: stays << 20, peak: stays << 20 },
            );
        }
        assert_eq!(
            estimator.guess(&load("a", 100 << 20)),
            Footprint { resident: 122 << 20, peak: 300 << 20 }
        );
        let again = MemoryEstimator::open(&path);
        assert_eq!(again.lines, estimator.lines);
    }

    #[test]
    fn the_oldest_line_goes_once_there_are_too_many() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        // Nothing is written below a file: the lines stay in memory.
        let mut estimator = MemoryEstimator::open(&file.path().join("memory.estimator"));
        let bytes = Footprint { resident: 1, peak: 1 };
        for number in 0..=LINES {
            assert_eq!(estimator.lines.len(), number);
            estimator.note(load(&number.to_string(), 1), bytes, bytes);
        }
        let (first, last) = (&estimator.lines[0], &estimator.lines[LINES - 1]);
        assert_eq!((first.identity.as_str(), &last.identity), ("1", &LINES.to_string()));
        assert_eq!(estimator.lines.len(), LINES);
    }

    #[test]
    fn only_lines_of_the_same_manner_and_with_weights_correct_a_guess() {
        let mut estimator = MemoryEstimator::default();
        let (unknown, truth) = (load("new", 100 << 20), Footprint { resident: 300 << 20, peak: 400 << 20 });
        let first = estimator.guess(&unknown);
        let line = |manner: &str, weights| {
            let Load { identity, placement, .. } = load("old", weights);
            Line { identity, placement, manner: manner.to_owned(), weights, guess: truth, truth }
        };
        estimator.lines = vec![line("native/bf16", 100 << 20), line("candle/f32", 0)];
        assert_eq!(estimator.guess(&unknown), first);
        estimator.lines.push(line("candle/f32", 100 << 20));
        assert_eq!(estimator.guess(&unknown), truth);
    }

    #[test]
    fn the_newest_lines_are_kept_and_the_oldest_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("memory.estimator");
        let mut estimator = MemoryEstimator::open(&path);
        let taken = |resident: u64| Footprint { resident, peak: 2 * resident };
        for number in 1..=(LINES as u64 + 3) {
            estimator.note(load(&format!("model {number}"), 1), taken(7), taken(number));
            if number > 3 && number < LINES as u64 {
                continue;
            }
            // What is written is what is known, the line of just now among it.
            let last = MemoryEstimator::open(&path).lines.last().map(|line| (line.guess, line.truth));
            assert_eq!(last, Some((taken(7), taken(number))));
        }
        let again = MemoryEstimator::open(&path);
        assert_eq!(again.lines, estimator.lines);
        assert_eq!(again.lines.len(), LINES);
        assert_eq!(again.lines[0].identity, "model 4");
        assert_eq!(again.guess(&load(&format!("model {}", LINES + 3), 1)), taken(LINES as u64 + 3));
        let files: Vec<_> = fs::read_dir(folder.path()).expect("a folder").flatten().collect();
        assert_eq!(files.len(), 1, "no draft is left");
    }

    #[test]
    fn a_guess_is_made_of_the_last_loads_at_the_same_place_alone() {
        let line = |identity: &str, place: &str, manner: &str, weights: u64, resident: u64, peak: u64| Line {
            identity: identity.to_owned(),
            placement: place.to_owned(),
            manner: manner.to_owned(),
            weights,
            guess: Footprint::default(),
            truth: Footprint { resident, peak },
        };
        let own = load("a", 100);
        let (place, manner) = (own.placement.as_str(), own.manner.as_str());
        // Three loads count, the newest ones; a peak is never below what resident.
        let lines = [900, 10, 30, 20].map(|stays| line("a", place, manner, 100, stays, stays / 2));
        assert_eq!(guess(&lines, &own), Footprint { resident: 20, peak: 20 });
        // Elsewhere it is as any other model of that manner, by its weights.
        let lines = [line("a", "elsewhere", manner, 50, 100, 200), line("b", place, "other", 1, 9, 9)];
        assert_eq!(guess(&lines, &own), Footprint { resident: 200, peak: 400 });
        let lines = [line("b", place, manner, 0, 9, 9), line("c", place, manner, 10, 30, 10)];
        assert_eq!(guess(&lines, &own), Footprint { resident: 300, peak: 300 }, "no weights say nothing");
        assert_eq!(guess(&[], &own), Footprint { resident: 125 + BESIDE, peak: 225 + BESIDE });
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("memory.estimator");
        let mut estimator = MemoryEstimator::open(&path);
        estimator.note(load("a", 1), Footprint::default(), Footprint { resident: 5, peak: 6 });
        let text = fs::read_to_string(&path).expect("a file");
        fs::write(&path, format!("no line\n{text}{{}}\n")).expect("a file");
        assert_eq!(MemoryEstimator::open(&path).lines, estimator.lines);
        // One that can't be written is kept in memory.
        let mut blocked = MemoryEstimator::open(&path.join("below a file"));
        blocked.note(load("a", 1), Footprint::default(), Footprint { resident: 5, peak: 6 });
        assert_eq!(blocked.guess(&load("a", 1)), Footprint { resident: 5, peak: 6 });
    }
}
