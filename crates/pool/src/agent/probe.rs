//! Liveness probes of one worker: `GET /livez` at an interval, on a connection that is kept.

use std::io;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::supervision::ProbeOutcome;

/// Pause between two probes.
const INTERVAL: Duration = Duration::from_millis(250);
/// Timeout of a probe.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The probes of one process, until this is dropped.
#[derive(Debug)]
pub(super) struct Probes {
    outcomes: mpsc::Receiver<ProbeOutcome>,
    task: AbortHandle,
}

impl Probes {
    /// Probes `url` from now on.
    pub(super) fn start(url: String) -> Probes {
        let (sender, outcomes) = mpsc::channel(1);
        let client = client();
        let task = tokio::spawn(async move {
            loop {
                let (client, url) = (client.clone(), url.clone());
                let Ok(outcome) = tokio::task::spawn_blocking(move || probe(&client, &url)).await else {
                    return;
                };
                if sender.send(outcome).await.is_err() {
                    return;
                }
                sleep(INTERVAL).await;
            }
        });
        Probes { outcomes, task: task.abort_handle() }
    }

    /// The next outcome.
    pub(super) async fn next(&mut self) -> Option<ProbeOutcome> {
        self.outcomes.recv().await
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client for one worker on this machine. The certificate of a worker has the name that others know it by, and a probe
/// has no secret: certificates are not verified. The connection is kept, since a worker at its limit of connections
/// accepts no other.
fn client() -> ureq::Agent {
    let tls = ureq::tls::TlsConfig::builder().disable_verification(true).build();
    let builder = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .tls_config(tls);
    builder.build().new_agent()
}

/// Any answer is a sign of life.
fn probe(client: &ureq::Agent, url: &str) -> ProbeOutcome {
    match client.get(url).call() {
        // The body is read, so that the connection is used again.
        Ok(mut response) => match response.body_mut().read_to_vec() {
            Ok(_) => ProbeOutcome::Answered,
            Err(_) => ProbeOutcome::Silent,
        },
        Err(ureq::Error::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            ProbeOutcome::Refused
        }
        Err(ureq::Error::ConnectionFailed) => ProbeOutcome::Refused,
        Err(_) => ProbeOutcome::Silent,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server that answers the requests of one connection, as many as it is told.
    fn server(answers: usize) -> (String, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/livez", listener.local_addr().unwrap());
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for _ in 0..answers {
                let mut request = [0; 4096];
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(b"HTTP/1.1 503 x\r\ncontent-length: 2\r\n\r\nno").unwrap();
            }
            // Neither answers nor closes until the client does.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        (url, thread)
    }

    #[test]
    fn a_server_that_answers_is_alive_and_one_that_stops_to_is_silent() {
        let ((url, thread), client) = (server(2), client());
        assert_eq!(probe(&client, &url), ProbeOutcome::Answered);
        assert_eq!(probe(&client, &url), ProbeOutcome::Answered, "the connection is used again");
        assert_eq!(probe(&client, &url), ProbeOutcome::Silent);
        drop(client);
        thread.join().unwrap();
    }

    #[test]
    fn a_server_that_is_gone_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/livez", listener.local_addr().unwrap());
        drop(listener);
        assert_eq!(probe(&client(), &url), ProbeOutcome::Refused);
    }
}
