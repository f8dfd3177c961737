//! A worker process: its standard input keeps it alive, its standard error is its log.
//!
//! The agent holds the write end of the pipe on standard input. When the agent ends, for whatever reason, the system
//! closes it, and the worker reads the end of file and exits (`sconce serve --exit-with-parent`). This needs no signal and
//! works on every system.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::Value;
use tokio::sync::watch;

use super::exit::Exit;
use super::log_tail::LogTail;

/// Maximum bytes of a log line that are read at once.
const MAX_LINE: u64 = 64 * 1024;

/// The command of a worker.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    /// Id of the worker.
    pub id: String,
    /// Its program.
    pub program: PathBuf,
    /// Its arguments. They include `--exit-with-parent`.
    pub arguments: Vec<OsString>,
    /// Environment variables that it does not inherit.
    pub without: Vec<String>,
}

/// A running worker process. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    tail: Arc<Mutex<LogTail>>,
    /// The URL of `/livez`, once the worker listens.
    probe_url: watch::Receiver<Option<String>>,
}

impl Process {
    /// Starts a process. Each line of its log is passed to `on_line`.
    pub(super) fn start(
        command: &WorkerCommand,
        on_line: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Process> {
        let mut started = Command::new(&command.program);
        started.args(&command.arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        for name in &command.without {
            started.env_remove(name);
        }
        detach(&mut started);
        let mut child = started.spawn()?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let (tail, (sender, probe_url)) = (Arc::default(), watch::channel(None));
        if let Some(stderr) = stderr {
            let tail = Arc::clone(&tail);
            let read = move || {
                read_lines(stderr, |line| {
                    lock(&tail).push(line);
                    if let Some(url) = probe_url_of(line) {
                        sender
                            .send_if_modified(|known| known.is_none().then(|| *known = Some(url)).is_some());
                    }
                    on_line(line);
                });
            };
            thread::Builder::new().name("sconce-worker-log".to_owned()).spawn(read)?;
        }
        Ok(Process { child, stdin, tail, probe_url })
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Receives the URL of `/livez` once the worker listens. The channel closes at the end of its log.
    pub(super) fn probe_url(&self) -> watch::Receiver<Option<String>> {
        self.probe_url.clone()
    }

    /// How it ended, if it has.
    pub(super) fn try_exit(&mut self) -> Option<Exit> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(Exit::from(status)),
            Err(error) => Some(Exit::NotStarted(error.to_string())),
        }
    }

    /// Lets it finish its requests and end.
    pub(super) fn drain(&mut self) {
        if let Some(stdin) = &mut self.stdin {
            // A worker that has ended reads nothing.
            let _ = stdin.write_all(b"drain\n").and_then(|()| stdin.flush());
        }
    }

    /// Kills it, even if it is stopped.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// The last lines of its log.
    pub(super) fn tail(&self) -> Vec<String> {
        lock(&self.tail).lines()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both do nothing if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock(tail: &Mutex<LogTail>) -> std::sync::MutexGuard<'_, LogTail> {
    tail.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a process a group of its own: Ctrl-C in a terminal reaches the agent alone, which drains its workers.
#[cfg(unix)]
pub(crate) fn detach(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
}

/// Other systems have no process groups.
#[cfg(not(unix))]
pub(crate) fn detach(_command: &mut Command) {}

/// Passes each line to `on_line` until the end.
fn read_lines(input: impl Read, mut on_line: impl FnMut(&str)) {
    let (mut input, mut line) = (BufReader::new(input), Vec::new());
    loop {
        line.clear();
        match input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => on_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r'])),
        }
    }
}

/// The URL of `/livez` of a worker whose log has this line, if it is the one that says where it listens.
fn probe_url_of(line: &str) -> Option<String> {
    let address = match line.strip_prefix("listening on ") {
        Some(address) => address.to_owned(),
        None if line.starts_with('{') => {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["event"] == "listening").then(|| line["address"].as_str().map(str::to_owned))??
        }
        None => return None,
    };
    let (scheme, address) = address.split_once("://")?;
    let (host, port) = address.rsplit_once(':')?;
    let ip: IpAddr = host.trim_matches(['[', ']']).parse().ok()?;
    // Every address of the machine includes loopback.
    let host = match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => "127.0.0.1",
        IpAddr::V6(ip) if ip.is_unspecified() => "[::1]",
        IpAddr::V4(_) | IpAddr::V6(_) => host,
    };
    Some(format!("{scheme}://{host}:{port}/livez"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_where_a_worker_is_probed() {
        for (line, url) in [
            ("listening on http://127.0.0.1:41873", Some("http://127.0.0.1:41873/livez")),
            ("listening on https://0.0.0.0:80", Some("https://127.0.0.1:80/livez")),
            ("listening on http://[::]:80", Some("http://[::1]:80/livez")),
            ("listening on http://[fe80::1]:80", Some("http://[fe80::1]:80/livez")),
            (
                r#"{"time":"t","event":"listening","address":"http://10.0.0.7:1"}"#,
                Some("http://10.0.0.7:1/livez"),
            ),
            (r#"{"event":"registered","address":"http://10.0.0.7:1"}"#, None),
            ("{ not JSON", None),
            ("error: no model is listening on http://127.0.0.1:1", None),
            ("listening on something", None),
        ] {
            assert_eq!(probe_url_of(line).as_deref(), url, "{line}");
        }
    }

    #[test]
    fn lines_are_read_whole_even_if_they_are_not_text() {
        let mut lines = Vec::new();
        read_lines(&b"one\r\ntwo\xff\n\nlast"[..], |line| lines.push(line.to_owned()));
        assert_eq!(lines, ["one", "two\u{fffd}", "", "last"]);
    }
}
