//! Runs a vendor tool under a time limit.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use sconce_core::hardware::Tool;

/// Limit of a tool's output in bytes.
const MAX_OUTPUT_BYTES: u64 = 4 << 20;

/// Runs a tool: program, arguments, time limit. Tests use their own.
pub(super) type RunTool<'a> = &'a dyn Fn(&str, &[&str], Duration) -> ToolOutput;

/// Output of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolOutput {
    /// The tool, its time and its outcome.
    pub(super) tool: Tool,
    /// Its stdout; empty on failure.
    pub(super) text: String,
}

impl ToolOutput {
    /// The output of a tool that is not installed.
    pub(super) fn not_installed(program: &str) -> ToolOutput {
        ToolOutput {
            tool: Tool { name: name(program), seconds: 0.0, outcome: "not installed".into() },
            text: String::new(),
        }
    }
}

/// Runs `program`, and kills it at the time limit.
pub(super) fn run_tool(program: &str, arguments: &[&str], limit: Duration) -> ToolOutput {
    let start = Instant::now();
    let result = run(program, arguments, start + limit);
    let seconds = start.elapsed().as_secs_f64();
    let (outcome, text) = match result {
        Ok(Finished { status, text }) if status.success() => ("answered".to_owned(), text),
        Ok(Finished { status, text }) => (format!("failed: {}", reason(status, &text)), String::new()),
        Err(RunError::Timeout) => (format!("gave no answer in {} s", limit.as_secs_f64()), String::new()),
        Err(RunError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            ("not installed".to_owned(), String::new())
        }
        Err(RunError::Io(error)) => (format!("failed: {error}"), String::new()),
    };
    ToolOutput { tool: Tool { name: name(program), seconds, outcome }, text }
}

struct Finished {
    status: ExitStatus,
    text: String,
}

enum RunError {
    Timeout,
    Io(io::Error),
}

impl From<io::Error> for RunError {
    fn from(error: io::Error) -> RunError {
        RunError::Io(error)
    }
}

fn run(program: &str, arguments: &[&str], deadline: Instant) -> Result<Finished, RunError> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let pipe = child.stdout.take();
    let (send, receive) = mpsc::channel();
    // A separate thread reads: a grandchild may hold the pipe open after the tool was killed.
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |pipe| pipe.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes));
        send.send(read.map(|_| bytes))
    });
    let Ok(bytes) = receive.recv_timeout(remaining(deadline)) else {
        kill(child);
        return Err(RunError::Timeout);
    };
    let text = String::from_utf8_lossy(&bytes?).into_owned();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Finished { status, text });
        }
        if remaining(deadline).is_zero() {
            kill(child);
            return Err(RunError::Timeout);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Kills the tool. A separate thread reaps it: a tool that hangs in its driver can't be waited for.
fn kill(mut child: Child) {
    let _ = child.kill();
    thread::spawn(move || child.wait());
}

/// Exit status and first line of output: some tools report errors on stdout.
fn reason(status: ExitStatus, text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    match line {
        Some(line) => {
            let line: String = line.chars().filter(|c| !c.is_control()).take(160).collect();
            format!("{status}: {line}")
        }
        None => status.to_string(),
    }
}

/// File name of the program.
fn name(program: &str) -> String {
    program.rsplit(['/', '\\']).next().unwrap_or(program).to_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn the_output_of_a_tool_is_read() {
        let answer = run_tool("sh", &["-c", "echo hello"], LONG);
        assert_eq!((answer.text.as_str(), answer.tool.outcome.as_str()), ("hello\n", "answered"));
        assert_eq!(answer.tool.name, "sh");
    }

    #[test]
    fn a_tool_that_hangs_is_killed_and_its_outcome_says_so() {
        let start = Instant::now();
        let answer = run_tool("sleep", &["30"], Duration::from_millis(100));
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(answer.tool.outcome, "gave no answer in 0.1 s");
        assert!(answer.tool.seconds >= 0.1);
    }

    #[test]
    fn a_tool_that_closes_stdout_and_stays_is_killed_too() {
        let answer = run_tool("sh", &["-c", "exec >&-; exec sleep 30"], Duration::from_millis(100));
        assert_eq!(answer.tool.outcome, "gave no answer in 0.1 s");
    }

    #[test]
    fn a_child_of_the_tool_that_keeps_the_pipe_does_not_hold_us() {
        let start = Instant::now();
        let answer = run_tool("sh", &["-c", "sleep 3 & echo hello"], Duration::from_millis(100));
        assert!(start.elapsed() < Duration::from_secs(2));
        assert_eq!(answer.tool.outcome, "gave no answer in 0.1 s");
    }

    #[test]
    fn a_tool_that_is_not_there_is_not_installed() {
        let answer = run_tool("sconce-no-such-tool", &[], LONG);
        assert_eq!(answer.tool.outcome, "not installed");
    }

    #[test]
    fn a_tool_that_fails_has_a_reason_and_its_output_is_not_parsed() {
        let answer = run_tool("sh", &["-c", "printf '\\n\\033[31mno driver\\n'; exit 9"], LONG);
        assert_eq!(answer.tool.outcome, "failed: exit status: 9: [31mno driver");
        assert_eq!(answer.text, "");
    }

    #[test]
    fn a_tool_that_never_stops_talking_is_cut_short() {
        let answer =
            run_tool("sh", &["-c", "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done"], LONG);
        assert!(answer.text.len() as u64 <= MAX_OUTPUT_BYTES);
        assert!(answer.tool.outcome.starts_with("failed"), "{}", answer.tool.outcome);
    }

    #[test]
    fn an_answer_that_is_not_text_is_read_as_well_as_it_goes() {
        assert_eq!(run_tool("sh", &["-c", "printf '\\377ok'"], LONG).text, "\u{fffd}ok");
    }
}
