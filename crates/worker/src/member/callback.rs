//! The callback client: tells the manager of a pool that the worker is ready, sends heartbeats, and says when it stops.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, Mac};
use sconce::http::client;
use serde_json::json;
use sha2::Sha256;
use tracing::{info, warn};

use crate::models::readiness::check_readiness;
use crate::models::report::report_of;
use crate::settings::{Callback, Worker};
use crate::state::app::App;

/// Interval at which readiness and shutdown are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Initial backoff after a failed registration.
const INITIAL_BACKOFF: Duration = Duration::from_millis(250);
/// Maximum backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Timeout of a callback.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the last callback, during shutdown.
const FINAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the client of a worker at `url` until the server stops.
pub(crate) fn run(app: &Arc<App>, url: &str, worker: &Worker) {
    let Some(callback) = &worker.callback else { return };
    let failing = Cell::new(false);
    let notify = |event: &str, last: bool| {
        let body = json!({
            "event": event, "worker_id": worker.id, "url": url, "report": report_of(app),
        });
        let (target, body) = (callback.clone(), body.to_string());
        let (sender, receiver) = mpsc::sync_channel(1);
        let timeout = if last { FINAL_TIMEOUT } else { TIMEOUT };
        let thread = thread::Builder::new().name("sconce-callback".to_owned());
        let _ = thread.spawn(move || sender.send(post(&target, &body, timeout)));
        // Shutdown does not wait for a callback that hangs.
        let outcome = loop {
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok(outcome) => break outcome,
                Err(RecvTimeoutError::Timeout) if last || !app.is_shutting_down() => {}
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => break Err("cannot spawn a thread".to_owned()),
            }
        };
        match &outcome {
            Ok(()) if failing.replace(false) => {
                app.edge.telemetry.log(|| info!(event, to = callback.url, "callback recovered"));
            }
            Ok(()) => {}
            Err(why) => {
                app.metrics.callback_failures.inc();
                if !failing.replace(true) {
                    app.edge.telemetry.log(|| warn!(event, to = callback.url, why, "callback failed"));
                }
            }
        }
        outcome.is_ok()
    };
    let wait = |time: Duration| {
        let began = Instant::now();
        while began.elapsed() < time && !app.is_shutting_down() {
            thread::sleep(POLL_INTERVAL.min(time));
        }
        !app.is_shutting_down()
    };
    while check_readiness(app, None, true).is_some() {
        if !wait(POLL_INTERVAL) {
            return;
        }
    }
    let mut backoff = INITIAL_BACKOFF;
    while !notify("ready", false) {
        if !wait(backoff) {
            return;
        }
        backoff = (2 * backoff).min(MAX_BACKOFF);
    }
    while wait(worker.heartbeat.unwrap_or(MAX_BACKOFF)) {
        if worker.heartbeat.is_some() {
            notify("heartbeat", false);
        }
    }
    notify("stopping", true);
}

/// Sends a callback. The error is the reason for the log.
fn post(Callback { url, token }: &Callback, body: &str, timeout: Duration) -> Result<(), String> {
    let agent = client(timeout).build().new_agent();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()).to_string();
    let mut request =
        agent.post(url).header("content-type", "application/json").header("x-sconce-timestamp", &now);
    if !token.is_empty() {
        request = request
            .header("x-sconce-signature", format!("sha256={}", signature(token.as_bytes(), &now, body)));
    }
    let status = request.send(body).map_err(|error| error.to_string())?.status();
    if status.is_success() { Ok(()) } else { Err(format!("HTTP status {status}")) }
}

/// HMAC-SHA-256 of timestamp and body, in hexadecimal.
fn signature(token: &[u8], time: &str, body: &str) -> String {
    // HMAC accepts keys of any length.
    let Ok(mut hash) = Hmac::<Sha256>::new_from_slice(token) else { return String::new() };
    hash.update(time.as_bytes());
    hash.update(b".");
    hash.update(body.as_bytes());
    hash.finalize().into_bytes().iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_openssl() {
        // printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac secret
        let expected = "49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686";
        assert_eq!(signature(b"secret", "1700000000", "{\"a\":1}"), expected);
    }
}
