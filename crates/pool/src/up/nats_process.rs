//! Runs `nats-server` until standard input is closed, so that it ends with the process that started it. A server that crashes
//! is started again.

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

/// A server that ends sooner after the first start can't run.
const MIN_RUN: Duration = Duration::from_secs(2);
/// Pause before a start, after the first crash and at most. It doubles with each crash.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// A server that runs for this long has recovered: the next pause is the first one again.
const RECOVERED: Duration = Duration::from_mins(1);

/// Runs `program` with `arguments` until standard input is closed. It is then ended gracefully. If it ends by itself, it is
/// started again, unless it never ran.
pub fn run_nats_server(program: &OsStr, arguments: &[OsString]) -> io::Result<Exit> {
    let closed = Arc::new(AtomicBool::new(false));
    let at_end = Arc::clone(&closed);
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        at_end.store(true, Ordering::SeqCst);
    });
    let (mut has_run, mut backoff) = (false, BACKOFF.0);
    loop {
        let start = Instant::now();
        let mut child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn()?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if closed.load(Ordering::SeqCst) {
                return stop(program, &mut child);
            }
            sleep(POLL_INTERVAL);
        };
        let ran = start.elapsed();
        has_run |= ran >= MIN_RUN;
        if !has_run {
            return Ok(Exit::from(status));
        }
        if ran >= RECOVERED {
            backoff = BACKOFF.0;
        }
        eprintln!("nats-server: it ended with {status} and is started again in {} ms", backoff.as_millis());
        sleep(backoff);
        if closed.load(Ordering::SeqCst) {
            return Ok(Exit::from(status));
        }
        backoff = BACKOFF.1.min(2 * backoff);
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
