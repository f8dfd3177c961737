//! Runs `nats-server` until standard input is closed, so that it ends with the process that started it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::agent::Exit;

/// Interval at which the end of the server and of the input are noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Time in which the server must end before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs `program` with `arguments` until it ends, or until standard input is closed. It is then ended gracefully.
pub fn run_nats_server(program: &OsStr, arguments: &[OsString]) -> io::Result<Exit> {
    let mut child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn()?;
    let closed = Arc::new(AtomicBool::new(false));
    let at_end = Arc::clone(&closed);
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        at_end.store(true, Ordering::SeqCst);
    });
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Exit::from(status));
        }
        if closed.load(Ordering::SeqCst) {
            return stop(program, &mut child);
        }
        sleep(POLL_INTERVAL);
    }
}

/// Ends the server: it writes its state, and is killed if that takes too long.
fn stop(program: &OsStr, child: &mut Child) -> io::Result<Exit> {
    let signal = format!("term={}", child.id());
    let _ = Command::new(program)
        .args(["--signal", &signal])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let start = Instant::now();
    while start.elapsed() < STOP_TIMEOUT {
        if let Some(status) = child.try_wait()? {
            return Ok(Exit::from(status));
        }
        sleep(POLL_INTERVAL);
    }
    child.kill()?;
    child.wait().map(Exit::from)
}
