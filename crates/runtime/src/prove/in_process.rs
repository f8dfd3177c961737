//! Runs probe cases on a thread of this process. A crash marker on disk names the running case: after a crash, the next
//! start reads it.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use sconce_core::engine::Engine;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_core::probe::Sample;

use super::child::run_case;
use super::deadline;
use super::request::{ProbeRequest, ProbeResults, ends_run};
use crate::device::RunDelays;
use crate::digest::hash;

/// Runs probe cases on a watched thread.
pub(crate) struct InProcessProver {
    folder: PathBuf,
}

impl InProcessProver {
    pub(super) fn new(folder: &Path) -> InProcessProver {
        InProcessProver { folder: folder.to_owned() }
    }

    fn marker_path(&self, placement: &Placement) -> PathBuf {
        self.folder.join(format!("underway-{}.txt", hash(placement)))
    }

    pub(super) fn run(
        &self,
        engine: &Arc<dyn Engine>,
        request: &ProbeRequest,
        time_limit: Duration,
        progress: &mut dyn FnMut(usize),
    ) -> ProbeResults {
        let path = self.marker_path(&request.placement);
        let marker = CrashMarker::lock(&path);
        if let Some(case) = marker.as_ref().and_then(|marker| marker.read()) {
            let _ = fs::remove_file(&path);
            return vec![Err(Obstacle::Crashed {
                case,
                cause: "an earlier run of this program ended there".to_owned(),
            })];
        }
        let (sender, lines) = mpsc::channel();
        let (engine, own_request, own_marker) = (Arc::clone(engine), request.clone(), marker.clone());
        thread::spawn(move || {
            for case in &own_request.cases {
                if let Some(marker) = &own_marker {
                    marker.write(&case.to_string());
                }
                let result = run_case(engine.as_ref(), &own_request, case);
                let stop = ends_run(case, &result);
                // The memory of this process is not that of the model alone.
                let result = result.map(|sample| Sample { memory: None, ..sample });
                if sender.send(result).is_err() || stop {
                    return;
                }
            }
        });
        let mut results = ProbeResults::new();
        for case in &request.cases {
            let result = match deadline::receive(&lines, time_limit, RunDelays::now) {
                Ok(result) => result,
                Err(RecvTimeoutError::Timeout) => {
                    Err(Obstacle::TimedOut { case: case.to_string(), seconds: time_limit.as_secs_f64() })
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let stop = ends_run(case, &result);
            results.push(result);
            progress(results.len());
            if stop {
                break;
            }
        }
        if let Some(marker) = marker {
            marker.write("");
            let _ = fs::remove_file(path);
        }
        results
    }
}

/// A file with the running case. It stays locked while its process lives: a concurrent run is not taken for a crashed
/// one.
struct CrashMarker(File);

impl CrashMarker {
    /// Opens and locks the marker at `path`. `None` if another process holds it, or it can't be written.
    fn lock(path: &Path) -> Option<Arc<CrashMarker>> {
        fs::create_dir_all(path.parent()?).ok()?;
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).ok()?;
        file.try_lock().ok()?;
        Some(Arc::new(CrashMarker(file)))
    }

    /// The case that was running when the process crashed.
    fn read(&self) -> Option<String> {
        let mut text = String::new();
        (&self.0).read_to_string(&mut text).ok()?;
        Some(text).filter(|text| !text.is_empty())
    }

    fn write(&self, text: &str) {
        let mut file = &self.0;
        // Without a marker, the next start after a crash probes the case again.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
    }
}
