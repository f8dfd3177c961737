//! Asks a vendor's tool, for no longer than it is given.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use sconce_core::hardware::Tool;

/// More than any of these tools says; the rest is not read.
const LONGEST_ANSWER: u64 = 4 << 20;

/// How the rooms beside this one ask a tool: program, arguments, time limit. Tests bring their own.
pub(super) type Ask<'a> = &'a dyn Fn(&str, &[&str], Duration) -> Answer;

/// What a tool said.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    /// The tool, its time and what came of it.
    pub(super) tool: Tool,
    /// What it wrote; empty unless it answered.
    pub(super) text: String,
}

impl Answer {
    /// The answer of a tool that was looked for and not found.
    pub(super) fn not_installed(program: &str) -> Answer {
        Answer {
            tool: Tool { name: name(program), seconds: 0.0, outcome: "not installed".into() },
            text: String::new(),
        }
    }
}

/// Runs `program` and waits for its answer; at the time limit it is killed.
pub(super) fn ask(program: &str, arguments: &[&str], limit: Duration) -> Answer {
    let start = Instant::now();
    let result = answer(program, arguments, start + limit);
    let seconds = start.elapsed().as_secs_f64();
    let (outcome, text) = match result {
        Ok(Said { status, text }) if status.success() => ("answered".to_owned(), text),
        Ok(Said { status, text }) => (format!("failed: {}", reason(status, &text)), String::new()),
        Err(Silent::Late) => (format!("gave no answer in {} s", limit.as_secs_f64()), String::new()),
        Err(Silent::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            ("not installed".to_owned(), String::new())
        }
        Err(Silent::Io(error)) => (format!("failed: {error}"), String::new()),
    };
    Answer { tool: Tool { name: name(program), seconds, outcome }, text }
}

struct Said {
    status: ExitStatus,
    text: String,
}

enum Silent {
    Late,
    Io(io::Error),
}

impl From<io::Error> for Silent {
    fn from(error: io::Error) -> Silent {
        Silent::Io(error)
    }
}

fn answer(program: &str, arguments: &[&str], deadline: Instant) -> Result<Said, Silent> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let pipe = child.stdout.take();
    let (send, receive) = mpsc::channel();
    // Read on a thread of its own: a grandchild may hold the pipe open after the tool was killed.
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |pipe| pipe.take(LONGEST_ANSWER).read_to_end(&mut bytes));
        send.send(read.map(|_| bytes))
    });
    let Ok(bytes) = receive.recv_timeout(left(deadline)) else {
        end(child);
        return Err(Silent::Late);
    };
    let text = String::from_utf8_lossy(&bytes?).into_owned();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Said { status, text });
        }
        if left(deadline).is_zero() {
            end(child);
            return Err(Silent::Late);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Kills the tool. It is reaped on a thread of its own: one that hangs in its driver can't be waited for.
fn end(mut child: Child) {
    let _ = child.kill();
    thread::spawn(move || child.wait());
}

/// The exit status and the first words, since some tools say on stdout why they failed.
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

/// The tool's name without the folder it was found in.
fn name(program: &str) -> String {
    program.rsplit(['/', '\\']).next().unwrap_or(program).to_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_tool_that_answers_is_heard() {
        let answer = ask("sh", &["-c", "echo hello"], LONG);
        assert_eq!((answer.text.as_str(), answer.tool.outcome.as_str()), ("hello\n", "answered"));
        assert_eq!(answer.tool.name, "sh");
    }

    #[test]
    fn a_tool_that_hangs_is_killed_and_its_outcome_says_so() {
        let start = Instant::now();
        let answer = ask("sleep", &["30"], Duration::from_millis(100));
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(answer.tool.outcome, "gave no answer in 0.1 s");
        assert!(answer.tool.seconds >= 0.1);
    }

    #[test]
    fn a_tool_that_closes_its_mouth_and_stays_is_killed_too() {
        let answer = ask("sh", &["-c", "exec >&-; exec sleep 30"], Duration::from_millis(100));
        assert_eq!(answer.tool.outcome, "gave no answer in 0.1 s");
    }

    #[test]
    fn a_child_of_the_tool_that_keeps_the_pipe_does_not_hold_us() {
        let start = Instant::now();
        let answer = ask("sh", &["-c", "sleep 3 & echo hello"], Duration::from_millis(100));
        assert!(start.elapsed() < Duration::from_secs(2));
        assert_eq!(answer.tool.outcome, "gave no answer in 0.1 s");
    }

    #[test]
    fn a_tool_that_is_not_there_is_not_installed() {
        let answer = ask("sconce-no-such-tool", &[], LONG);
        assert_eq!(answer.tool.outcome, "not installed");
    }

    #[test]
    fn a_tool_that_fails_says_why_and_its_words_are_not_parsed() {
        let answer = ask("sh", &["-c", "printf '\\n\\033[31mno driver\\n'; exit 9"], LONG);
        assert_eq!(answer.tool.outcome, "failed: exit status: 9: [31mno driver");
        assert_eq!(answer.text, "");
    }

    #[test]
    fn a_tool_that_never_stops_talking_is_cut_short() {
        let answer = ask("sh", &["-c", "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done"], LONG);
        assert!(answer.text.len() as u64 <= LONGEST_ANSWER);
        assert!(answer.tool.outcome.starts_with("failed"), "{}", answer.tool.outcome);
    }

    #[test]
    fn an_answer_that_is_not_text_is_read_as_well_as_it_goes() {
        assert_eq!(ask("sh", &["-c", "printf '\\377ok'"], LONG).text, "\u{fffd}ok");
    }
}
