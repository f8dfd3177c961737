//! The memory estimator: predicts the footprint of a load from the measured footprints of earlier loads.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use sconce::core::report::Footprint;

/// Maximum number of records.
const MAX_RECORDS: usize = 512;
/// Number of recent loads of the same model that an estimate uses. Single loads are measured too low if they reuse pages of
/// the allocator, and too high if requests run beside them: two such loads must not move the median.
const RECENT_LOADS: usize = 5;
/// Overhead beside the weights for a model without records.
const DEFAULT_OVERHEAD: u64 = 48 << 20;

/// The record of one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadRecord {
    /// Identity of the weights.
    pub(crate) identity: String,
    pub(crate) placement: String,
    /// Engine, device and dtype, which determine most of the overhead.
    pub(crate) backend: String,
    /// Bytes of the weights in the dtype of the placement.
    pub(crate) weights: u64,
    pub(crate) estimated: Footprint,
    pub(crate) measured: Footprint,
    /// How long it took from the request to load it; 0 if unknown.
    #[serde(default)]
    pub(crate) seconds: f64,
}

/// A load to estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) identity: String,
    pub(crate) placement: String,
    pub(crate) backend: String,
    pub(crate) weights: u64,
}

/// The records of all loads, persisted in a file.
#[derive(Debug, Default)]
pub(crate) struct MemoryEstimator {
    path: PathBuf,
    records: Vec<LoadRecord>,
}

impl MemoryEstimator {
    /// Reads the records. A missing file and malformed lines are ignored.
    pub(crate) fn open(path: &Path) -> MemoryEstimator {
        let text = fs::read_to_string(path).unwrap_or_default();
        let records = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        MemoryEstimator { path: path.to_owned(), records }
    }

    /// The estimated footprint of a load.
    pub(crate) fn estimate(&self, load: &Load) -> Footprint {
        estimate(&self.records, load)
    }

    /// The expected seconds of a load: the median of recent loads of the same model and placement, else of all loads on the
    /// same backend in proportion to the weights. `None` without such loads.
    pub(crate) fn expected_seconds(&self, load: &Load) -> Option<f64> {
        let timed = || self.records.iter().rev().filter(|record| record.seconds > 0.0);
        let same =
            |record: &&LoadRecord| record.identity == load.identity && record.placement == load.placement;
        let own: Vec<f64> = timed().filter(same).take(RECENT_LOADS).map(|record| record.seconds).collect();
        if !own.is_empty() {
            return Some(median(own.into_iter()));
        }
        let similar = timed().filter(|record| record.backend == load.backend && record.weights > 0);
        let ratios: Vec<f64> = similar.map(|record| record.seconds / record.weights as f64).collect();
        (!ratios.is_empty()).then(|| median(ratios.into_iter()) * load.weights as f64)
    }

    /// Records a load and rewrites the file atomically. If writing fails, records stay in memory.
    pub(crate) fn record(&mut self, load: Load, estimated: Footprint, measured: Footprint, took: Duration) {
        let Load { identity, placement, backend, weights } = load;
        let seconds = took.as_secs_f64();
        self.records.push(LoadRecord { identity, placement, backend, weights, estimated, measured, seconds });
        if self.records.len() > MAX_RECORDS {
            self.records.remove(0);
        }
        let text: String = self
            .records
            .iter()
            .filter_map(|record| serde_json::to_string(record).ok())
            .map(|line| line + "\n")
            .collect();
        let draft = self.path.with_extension(format!("{}.draft", std::process::id()));
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // A crashed process with the same id may have left a draft. `create_new` follows no links.
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

/// Estimates a footprint from the recent loads of the same model and placement; else from the ratio of footprint to
/// weights of other models on the same backend; else from the weights and a default overhead.
fn estimate(records: &[LoadRecord], load: &Load) -> Footprint {
    let same = |record: &&LoadRecord| record.identity == load.identity && record.placement == load.placement;
    let own: Vec<&LoadRecord> = records.iter().rev().filter(same).take(RECENT_LOADS).collect();
    if !own.is_empty() {
        let resident = median(own.iter().map(|record| record.measured.resident as f64)) as u64;
        let peak = own.iter().map(|record| record.measured.peak).max().unwrap_or(0);
        return Footprint { resident, peak: peak.max(resident) };
    }
    let similar: Vec<&LoadRecord> =
        records.iter().filter(|record| record.backend == load.backend && record.weights > 0).collect();
    if similar.is_empty() {
        let resident = load.weights + load.weights / 4 + DEFAULT_OVERHEAD;
        // Weights are held twice while they are read.
        return Footprint { resident, peak: resident + load.weights };
    }
    let scaled = |of: fn(&Footprint) -> u64| {
        let ratios = similar.iter().map(|record| of(&record.measured) as f64 / record.weights as f64);
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
        let (placement, backend) = ("candle/cpu/model/f32".to_owned(), "candle/f32".to_owned());
        Load { identity: identity.to_owned(), placement, backend, weights }
    }

    #[test]
    fn an_estimate_is_corrected_by_other_models_and_most_by_the_model_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/load-memory.jsonl");
        let mut estimator = MemoryEstimator::open(&path);
        let first = estimator.estimate(&load("a", 100 << 20));
        assert_eq!(first, Footprint { resident: 173 << 20, peak: 273 << 20 });
        estimator.record(
            load("a", 100 << 20),
            first,
            Footprint { resident: 120 << 20, peak: 150 << 20 },
            Duration::from_secs(2),
        );
        assert_eq!(
            estimator.estimate(&load("b", 200 << 20)),
            Footprint { resident: 240 << 20, peak: 300 << 20 }
        );
        for stays in [118, 122, 124, 300] {
            estimator.record(
                load("a", 100 << 20),
                first,
                Footprint { resident: stays << 20, peak: stays << 20 },
                Duration::from_secs(2),
            );
        }
        assert_eq!(
            estimator.estimate(&load("a", 100 << 20)),
            Footprint { resident: 122 << 20, peak: 300 << 20 }
        );
        let again = MemoryEstimator::open(&path);
        assert_eq!(again.records, estimator.records);
    }

    #[test]
    fn the_oldest_record_is_dropped_beyond_the_maximum() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        // No file can be created below a file: records stay in memory.
        let mut estimator = MemoryEstimator::open(&file.path().join("load-memory.jsonl"));
        let bytes = Footprint { resident: 1, peak: 1 };
        for number in 0..=MAX_RECORDS {
            assert_eq!(estimator.records.len(), number);
            estimator.record(load(&number.to_string(), 1), bytes, bytes, Duration::from_secs(2));
        }
        let (first, last) = (&estimator.records[0], &estimator.records[MAX_RECORDS - 1]);
        assert_eq!((first.identity.as_str(), &last.identity), ("1", &MAX_RECORDS.to_string()));
        assert_eq!(estimator.records.len(), MAX_RECORDS);
    }

    #[test]
    fn only_records_of_the_same_backend_and_with_weights_correct_an_estimate() {
        let mut estimator = MemoryEstimator::default();
        let (unknown, measured) =
            (load("new", 100 << 20), Footprint { resident: 300 << 20, peak: 400 << 20 });
        let first = estimator.estimate(&unknown);
        let record = |backend: &str, weights| {
            let Load { identity, placement, .. } = load("old", weights);
            let (backend, estimated) = (backend.to_owned(), measured);
            LoadRecord { identity, placement, backend, weights, estimated, measured, seconds: 0.0 }
        };
        estimator.records = vec![record("native/bf16", 100 << 20), record("candle/f32", 0)];
        assert_eq!(estimator.estimate(&unknown), first);
        estimator.records.push(record("candle/f32", 100 << 20));
        assert_eq!(estimator.estimate(&unknown), measured);
    }

    #[test]
    fn the_newest_records_are_persisted_and_the_oldest_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("load-memory.jsonl");
        let mut estimator = MemoryEstimator::open(&path);
        let taken = |resident: u64| Footprint { resident, peak: 2 * resident };
        for number in 1..=(MAX_RECORDS as u64 + 3) {
            estimator.record(
                load(&format!("model {number}"), 1),
                taken(7),
                taken(number),
                Duration::from_secs(2),
            );
            if number > 3 && number < MAX_RECORDS as u64 {
                continue;
            }
            // The file holds all records, the last one included.
            let read = MemoryEstimator::open(&path);
            let last = read.records.last().map(|record| (record.estimated, record.measured));
            assert_eq!(last, Some((taken(7), taken(number))));
        }
        let again = MemoryEstimator::open(&path);
        assert_eq!(again.records, estimator.records);
        assert_eq!(again.records.len(), MAX_RECORDS);
        assert_eq!(again.records[0].identity, "model 4");
        assert_eq!(
            again.estimate(&load(&format!("model {}", MAX_RECORDS + 3), 1)),
            taken(MAX_RECORDS as u64 + 3)
        );
        let files: Vec<_> = fs::read_dir(folder.path()).expect("a folder").flatten().collect();
        assert_eq!(files.len(), 1, "no draft is left");
    }

    #[test]
    fn an_estimate_uses_the_recent_loads_of_the_same_placement() {
        let record =
            |identity: &str, placement: &str, backend: &str, weights: u64, resident: u64, peak: u64| {
                LoadRecord {
                    identity: identity.to_owned(),
                    placement: placement.to_owned(),
                    backend: backend.to_owned(),
                    weights,
                    estimated: Footprint::default(),
                    measured: Footprint { resident, peak },
                    seconds: 0.0,
                }
            };
        let own = load("a", 100);
        let (placement, backend) = (own.placement.as_str(), own.backend.as_str());
        // The five newest loads count; the peak is at least the resident size.
        let records =
            [900, 10, 30, 20, 1, 36].map(|bytes| record("a", placement, backend, 100, bytes, bytes / 2));
        assert_eq!(estimate(&records, &own), Footprint { resident: 20, peak: 20 });
        // On another placement it is scaled by its weights, as any model of that backend.
        let elsewhere = record("a", "elsewhere", backend, 50, 100, 200);
        let records = [elsewhere, record("b", placement, "other", 1, 9, 9)];
        assert_eq!(estimate(&records, &own), Footprint { resident: 200, peak: 400 });
        let records = [record("b", placement, backend, 0, 9, 9), record("c", placement, backend, 10, 30, 10)];
        let expected = Footprint { resident: 300, peak: 300 };
        assert_eq!(estimate(&records, &own), expected, "a record without weights is ignored");
        let (resident, peak) = (125 + DEFAULT_OVERHEAD, 225 + DEFAULT_OVERHEAD);
        assert_eq!(estimate(&[], &own), Footprint { resident, peak });
    }

    #[test]
    fn malformed_lines_are_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("load-memory.jsonl");
        let mut estimator = MemoryEstimator::open(&path);
        estimator.record(
            load("a", 1),
            Footprint::default(),
            Footprint { resident: 5, peak: 6 },
            Duration::from_secs(2),
        );
        let text = fs::read_to_string(&path).expect("a file");
        fs::write(&path, format!("no line\n{text}{{}}\n")).expect("a file");
        assert_eq!(MemoryEstimator::open(&path).records, estimator.records);
        // Records that cannot be written stay in memory.
        let mut blocked = MemoryEstimator::open(&path.join("below a file"));
        blocked.record(
            load("a", 1),
            Footprint::default(),
            Footprint { resident: 5, peak: 6 },
            Duration::from_secs(2),
        );
        assert_eq!(blocked.estimate(&load("a", 1)), Footprint { resident: 5, peak: 6 });
    }

    #[test]
    fn the_time_of_a_load_is_that_of_earlier_loads() {
        let mut estimator = MemoryEstimator::default();
        let (bytes, weights) = (Footprint::default(), 100 << 20);
        assert_eq!(estimator.expected_seconds(&load("a", weights)), None);
        for seconds in [9, 2, 3, 4, 1, 5] {
            estimator.record(load("a", weights), bytes, bytes, Duration::from_secs(seconds));
        }
        assert_eq!(estimator.expected_seconds(&load("a", weights)), Some(3.0), "of the last five");
        let other = estimator.expected_seconds(&load("b", 2 * weights)).expect("a proportion");
        assert!((other - 8.0).abs() < 1e-6, "twice the median of all: {other}");
        let elsewhere = Load { backend: "other".to_owned(), ..load("b", weights) };
        assert_eq!(estimator.expected_seconds(&elsewhere), None);
    }
}
