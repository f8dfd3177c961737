//! The parent's side: starts a child, keeps its time, and turns its death into an obstacle.

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
use sconce_core::probe::Sample;
use serde::Deserialize;

use super::child::{ARGUMENT, MARK};
use super::{Answers, Question};
use crate::resident::resident_of;

/// A program to start as a prover.
pub(crate) struct Launch {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    /// The children that run now.
    running: Mutex<Vec<u32>>,
}

impl Launch {
    /// What `command` would start.
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

    /// This very program, which has said that it answers.
    pub(crate) fn this_program() -> Option<Launch> {
        let mut command = Command::new(std::env::current_exe().ok()?);
        command.arg(ARGUMENT);
        Some(Launch::of(&command))
    }

    pub(super) fn ask(
        &self,
        question: &Question,
        limit: Duration,
        answered: &mut dyn FnMut(usize),
    ) -> Answers {
        let mut child = match self.start() {
            Ok(child) => child,
            Err(error) => {
                let says = format!("the prover `{}` could not be started: {error}", self.program.display());
                return vec![Err(Obstacle::LoadFailed { says })];
            }
        };
        self.running().push(child.id());
        let answers = converse(&mut child, question, limit, answered);
        // Whatever happened, the child is gone when this returns.
        let _ = child.kill();
        let _ = child.wait();
        self.running().retain(|&id| id != child.id());
        answers
    }

    fn running(&self) -> MutexGuard<'_, Vec<u32>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of main memory that the running children have.
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

fn converse(
    child: &mut Child,
    question: &Question,
    limit: Duration,
    answered: &mut dyn FnMut(usize),
) -> Answers {
    let (sender, lines) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix(MARK)
                    && sender.send(answer.to_owned()).is_err()
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
    if let (Some(mut input), Ok(text)) = (child.stdin.take(), serde_json::to_vec(question)) {
        // A child that died before it read is noticed below.
        thread::spawn(move || input.write_all(&text));
    }
    let mut answers = Answers::new();
    for case in &question.cases {
        let answer = match lines.recv_timeout(limit) {
            Ok(line) => heard(&line),
            Err(RecvTimeoutError::Timeout) => {
                Err(Obstacle::TimedOut { case: case.to_string(), seconds: limit.as_secs_f64() })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait().ok();
                let said = errors.and_then(|errors| errors.join().ok()).unwrap_or_default();
                let (case, how) = (case.to_string(), death(status, &said));
                answers.push(Err(if status.is_some_and(was_killed) {
                    Obstacle::Killed { case, how }
                } else {
                    Obstacle::Crashed { case, how }
                }));
                return answers;
            }
        };
        let stop = super::is_last(case, &answer);
        answers.push(answer);
        answered(answers.len());
        if stop {
            break;
        }
    }
    answers
}

/// A sample as it comes over: JSON has no word for a number that is not finite, and says null.
#[derive(Deserialize)]
struct Heard {
    rows: HeardRows,
    seconds: f64,
    memory: Option<u64>,
    nodes: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
struct HeardRows {
    width: usize,
    values: Vec<Option<f32>>,
    norms: Vec<Option<f32>>,
}

fn heard(line: &str) -> Result<Sample, Obstacle> {
    let answer: Result<Heard, Obstacle> = serde_json::from_str(line)
        .map_err(|error| Obstacle::LoadFailed { says: format!("the prover's answer: {error}") })?;
    let Heard { rows, seconds, memory, nodes } = answer?;
    let numbers = |numbers: Vec<Option<f32>>| numbers.into_iter().map(|x| x.unwrap_or(f32::NAN)).collect();
    let rows = Rows { width: rows.width, values: numbers(rows.values), norms: numbers(rows.norms) };
    Ok(Sample { rows, seconds, memory, nodes })
}

/// Whether a process ended by the signal that only others send: the system where memory runs out, or a user.
#[cfg(unix)]
fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    const SIGKILL: i32 = 9;
    status.signal() == Some(SIGKILL)
}

#[cfg(not(unix))]
fn was_killed(_status: ExitStatus) -> bool {
    false
}

/// How a child died, with the last thing it said.
fn death(status: Option<ExitStatus>, said: &str) -> String {
    let how = status.map_or_else(|| "its end could not be read".to_owned(), |status| status.to_string());
    match said.lines().rev().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("note:")) {
        Some(last) => format!("{how}, saying `{}`", last.chars().take(200).collect::<String>()),
        None => how,
    }
}
