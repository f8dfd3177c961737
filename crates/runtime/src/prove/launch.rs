//! The parent process: starts a child, enforces time limits, and reports its exit as an obstacle.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use sconce_core::batch::Rows;
use sconce_core::obstacle::Obstacle;
use sconce_core::probe::{Prediction, Sample};
use serde::Deserialize;

use super::child::RESULT_PREFIX;
use super::deadline;
use super::request::{ProbeRequest, ProbeResults, ends_run};
use crate::device::RunDelays;
use crate::memory::resident_of;

/// The command that starts a prover process.
pub(crate) struct Launch {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    /// Process ids of the running children.
    running: Mutex<Vec<u32>>,
}

impl Launch {
    /// From a command.
    pub(crate) fn of(command: &Command) -> Launch {
        let environment =
            command.get_envs().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
        Launch {
            program: command.get_program().into(),
            arguments: command.get_args().map(OsString::from).collect(),
            environment: environment.collect(),
            running: Mutex::default(),
        }
    }

    pub(super) fn run(
        &self,
        request: &ProbeRequest,
        time_limit: Duration,
        progress: &mut dyn FnMut(usize),
    ) -> ProbeResults {
        let mut child = match self.start() {
            Ok(child) => child,
            Err(error) => {
                let says = format!("the prover `{}` could not be started: {error}", self.program.display());
                return vec![Err(Obstacle::LoadFailed { reason: says })];
            }
        };
        self.running().push(child.id());
        let results = collect_results(&mut child, request, time_limit, progress);
        // The child must not outlive the request.
        let _ = child.kill();
        let _ = child.wait();
        self.running().retain(|&id| id != child.id());
        results
    }

    fn running(&self) -> MutexGuard<'_, Vec<u32>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resident memory of the running children in bytes.
    pub(super) fn resident(&self) -> u64 {
        self.running().iter().filter_map(|&id| resident_of(id)).sum()
    }

    fn start(&self) -> std::io::Result<Child> {
        Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }
}

/// Sends the request, and reads results until the run ends.
fn collect_results(
    child: &mut Child,
    request: &ProbeRequest,
    time_limit: Duration,
    progress: &mut dyn FnMut(usize),
) -> ProbeResults {
    let (sender, lines) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(result) = line.strip_prefix(RESULT_PREFIX)
                    && sender.send(result.to_owned()).is_err()
                {
                    return;
                }
            }
        });
    }
    let errors = child.stderr.take().map(|mut errors| {
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    });
    if let (Some(mut input), Ok(text)) = (child.stdin.take(), serde_json::to_vec(request)) {
        // The loop below detects a child that exits before it reads.
        thread::spawn(move || input.write_all(&text));
    }
    let id = child.id();
    let mut results = ProbeResults::new();
    for case in &request.cases {
        let result = match deadline::receive(&lines, time_limit, || RunDelays::of_process(id)) {
            Ok(line) => parse_result(&line),
            Err(RecvTimeoutError::Timeout) => {
                Err(Obstacle::TimedOut { case: case.to_string(), seconds: time_limit.as_secs_f64() })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait().ok();
                let stderr = errors.and_then(|errors| errors.join().ok()).unwrap_or_default();
                let (case, how) = (case.to_string(), exit_reason(status, &stderr));
                results.push(Err(if status.is_some_and(was_killed) {
                    Obstacle::Killed { case, cause: how }
                } else {
                    Obstacle::Crashed { case, cause: how }
                }));
                return results;
            }
        };
        let stop = ends_run(case, &result);
        results.push(result);
        progress(results.len());
        if stop {
            break;
        }
    }
    results
}

/// A sample as JSON, where non-finite values are null.
#[derive(Deserialize)]
struct JsonSample {
    rows: JsonRows,
    seconds: f64,
    memory: Option<u64>,
    nodes: BTreeMap<String, usize>,
    predictions: Vec<JsonPrediction>,
}

#[derive(Deserialize)]
struct JsonPrediction {
    logprob: Option<f32>,
    top: u32,
}

#[derive(Deserialize)]
struct JsonRows {
    width: usize,
    values: Vec<Option<f32>>,
    norms: Vec<Option<f32>>,
}

fn parse_result(line: &str) -> Result<Sample, Obstacle> {
    let result: Result<JsonSample, Obstacle> = serde_json::from_str(line)
        .map_err(|error| Obstacle::LoadFailed { reason: format!("the prover's result: {error}") })?;
    let JsonSample { rows, seconds, memory, nodes, predictions } = result?;
    let finite_or_nan =
        |values: Vec<Option<f32>>| values.into_iter().map(|x| x.unwrap_or(f32::NAN)).collect();
    let rows =
        Rows { width: rows.width, values: finite_or_nan(rows.values), norms: finite_or_nan(rows.norms) };
    let prediction =
        |JsonPrediction { logprob, top }| Prediction { logprob: logprob.unwrap_or(f32::NAN), top };
    let predictions = predictions.into_iter().map(prediction).collect();
    Ok(Sample { rows, seconds, memory, nodes, predictions })
}

/// Whether the OOM killer or a user ended the process: by SIGHUP, SIGINT, SIGKILL or SIGTERM.
#[cfg(unix)]
fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    const SIGNALS: [i32; 4] = [1, 2, 9, 15];
    status.signal().is_some_and(|signal| SIGNALS.contains(&signal))
}

#[cfg(not(unix))]
fn was_killed(_status: ExitStatus) -> bool {
    false
}

/// Exit status of a child, with the last line of its stderr.
fn exit_reason(status: Option<ExitStatus>, stderr: &str) -> String {
    let how = status.map_or_else(|| "its end could not be read".to_owned(), |status| status.to_string());
    match stderr.lines().rev().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("note:")) {
        Some(last) => format!("{how}, saying `{}`", last.chars().take(200).collect::<String>()),
        None => how,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_process_that_was_ended_is_told_from_one_that_crashed() {
        let (hangup, interrupt, abort, kill, segment, terminate, exit) = (1, 2, 6, 9, 11, 15, 1 << 8);
        for (status, expected) in [
            (hangup, true),
            (interrupt, true),
            (kill, true),
            (terminate, true),
            (abort, false),
            (segment, false),
            (exit, false),
        ] {
            assert_eq!(was_killed(ExitStatus::from_raw(status)), expected, "{status}");
        }
    }
}
