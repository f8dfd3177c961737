//! Tells whoever manages a pool that this worker is ready, that it is alive, and that it goes.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, Mac};
use sconce::http::client;
use serde_json::json;
use sha2::Sha256;

use crate::models::readiness::waits_for;
use crate::models::report::report_of;
use crate::settings::{Callback, Worker};
use crate::state::app::App;

/// How often it looks whether something has changed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// After a call that was not taken.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// At most, after many.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last may.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Tells of a worker at `url` until the server stops.
pub(crate) fn run(app: &Arc<App>, url: &str, worker: &Worker) {
    let Some(callback) = &worker.callback else { return };
    let failing = Cell::new(false);
    let tell = |event: &str, last: bool| {
        let body = json!({
            "event": event, "worker_id": worker.id, "url": url, "report": report_of(app),
        });
        let (call, (told, answer)) = ((callback.clone(), body.to_string()), mpsc::sync_channel(1));
        let timeout = if last { LAST_PATIENCE } else { TIMEOUT };
        let thread = thread::Builder::new().name("sconce-call".to_owned());
        let _ = thread.spawn(move || told.send(post(&call.0, &call.1, timeout)));
        // Who is called may hang, and the server stops meanwhile.
        let outcome = loop {
            match answer.recv_timeout(POLL_INTERVAL) {
                Ok(outcome) => break outcome,
                Err(RecvTimeoutError::Timeout) if last || !app.is_shutting_down() => {}
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => break Err("no thread can be had".to_owned()),
            }
        };
        let fields = |why: &str| [("event", json!(event)), ("to", json!(callback.url)), ("why", json!(why))];
        match &outcome {
            Ok(()) if failing.replace(false) => {
                app.edge.telemetry.info("callback taken again", &fields("")[..2])
            }
            Ok(()) => {}
            Err(why) => {
                app.metrics.callback_failures.inc();
                if !failing.replace(true) {
                    app.edge.telemetry.warn("callback not taken", &fields(why));
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
    while waits_for(app, None, true).is_some() {
        if !wait(POLL_INTERVAL) {
            return;
        }
    }
    let mut pause = FIRST_PAUSE;
    while !tell("ready", false) {
        if !wait(pause) {
            return;
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
    while wait(worker.heartbeat.unwrap_or(LONGEST_PAUSE)) {
        if worker.heartbeat.is_some() {
            tell("heartbeat", false);
        }
    }
    tell("stopping", true);
}

/// Makes a call; why it was not taken.
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
    if status.is_success() { Ok(()) } else { Err(format!("the answer was {status}")) }
}

/// The keyed hash of time and body, in hexadecimal digits.
fn signature(token: &[u8], time: &str, body: &str) -> String {
    // A key may have any length.
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
        let told = "49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686";
        assert_eq!(signature(b"secret", "1700000000", "{\"a\":1}"), told);
    }
}
