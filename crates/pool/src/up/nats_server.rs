//! The NATS server of a pool on one machine: found on `PATH` and started, or used if one runs already.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use crate::agent::{AgentLog, detach};

/// The oldest version whose keys have a time to live of their own.
const MIN_VERSION: (u32, u32) = (2, 11);
/// Time in which a server must be ready.
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// Timeout of a connection to a server that may run already.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Line of its log before its address.
const LISTENING: &str = "Listening for client connections on ";
/// Line of its log once it takes requests.
const READY: &str = "Server is ready";

/// How a NATS server is started.
#[derive(Clone, Debug)]
pub struct NatsServerOptions {
    /// The program that calls [`run_nats_server`](super::run_nats_server), with its first arguments.
    pub runner: (PathBuf, Vec<OsString>),
    /// Port on loopback; 0 selects a free port.
    pub port: u16,
    /// Folder of its data.
    pub store: PathBuf,
    /// The log for its warnings.
    pub log: AgentLog,
}

/// Why there is no NATS server.
#[derive(Debug, thiserror::Error)]
pub enum NatsServerError {
    /// The program is not installed.
    #[error(
        "`nats-server` was not found on PATH\n\
         hint: install it with `brew install nats-server`, or from \
         https://github.com/nats-io/nats-server/releases (version 2.11 or later), or name a running server with \
         `--registry nats://HOST:4222`"
    )]
    NotFound,
    /// It could not be started.
    #[error("`nats-server` could not be started: {0}")]
    Start(#[from] io::Error),
    /// It ended before it was ready.
    #[error("`nats-server` did not start: {0}")]
    Ended(String),
    /// The server on the port is not usable.
    #[error(
        "the server on port {port} can't be used: {reason}\nhint: choose another port with `--nats-port N`"
    )]
    Unusable {
        /// The port.
        port: u16,
        /// Why.
        reason: String,
    },
}

/// A NATS server on this machine. One that was started ends when this is dropped.
#[derive(Debug)]
pub struct NatsServer {
    port: u16,
    started: Option<(Child, Option<ChildStdin>)>,
}

impl NatsServer {
    /// Uses the server on the port, or starts one.
    pub fn start(options: &NatsServerOptions) -> Result<NatsServer, NatsServerError> {
        let NatsServerOptions { port, log, .. } = options;
        if *port != 0
            && let Ok(stream) = connect(*port)
        {
            let unusable = |reason| NatsServerError::Unusable { port: *port, reason };
            let info = Info::read(stream).map_err(|error| unusable(format!("it is not NATS: {error}")))?;
            info.check().map_err(unusable)?;
            log.info(
                "nats-server runs already",
                &[("port", (*port).into()), ("version", info.version.into())],
            );
            return Ok(NatsServer { port: *port, started: None });
        }
        let program = find("nats-server").ok_or(NatsServerError::NotFound)?;
        let (runner, arguments) = &options.runner;
        let mut command = Command::new(runner);
        command.args(arguments).arg(program).args(["--jetstream", "--addr", "127.0.0.1", "--port"]);
        // A server that is started again must have the same port.
        let port = if *port == 0 { free_port()? } else { *port };
        command.arg(port.to_string());
        command.arg("--store_dir").arg(&options.store);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        detach(&mut command);
        let mut child = command.spawn()?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        // From here on the child ends when it is dropped.
        let mut server = NatsServer { port, started: Some((child, stdin)) };
        let stderr = stderr.ok_or_else(|| io::Error::other("no log"))?;
        server.port = wait_until_ready(stderr, log.clone())?;
        let unusable = |reason| NatsServerError::Unusable { port: server.port, reason };
        let info = Info::read(connect(server.port)?)?;
        info.check().map_err(unusable)?;
        log.info(
            "nats-server started",
            &[("port", server.port.into()), ("version", info.version.clone().into())],
        );
        Ok(server)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        if let Some((mut child, stdin)) = self.started.take() {
            // The end of its input ends it.
            drop(stdin);
            let _ = child.wait();
        }
    }
}

/// What a server says first on a connection.
#[derive(Debug, Deserialize)]
struct Info {
    version: String,
    #[serde(default)]
    jetstream: bool,
}

impl Info {
    fn read(stream: TcpStream) -> io::Result<Info> {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        let json = line.strip_prefix("INFO ").ok_or_else(|| io::Error::other("it does not say `INFO`"))?;
        Ok(serde_json::from_str(json)?)
    }

    /// Whether a pool can use the server.
    fn check(&self) -> Result<(), String> {
        let mut numbers = self.version.split('.').map(|number| number.parse().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version < MIN_VERSION {
            return Err(format!("its version is {}, and a pool needs 2.11 or later", self.version));
        }
        if !self.jetstream {
            return Err("it runs without JetStream (`nats-server --jetstream`)".to_owned());
        }
        Ok(())
    }
}

/// A port on loopback that nothing listens on.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    Ok(stream)
}

/// The program on `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(&file)).find(|path| path.is_file())
}

/// Reads the log until the server is ready, and returns its port. From then on warnings are passed on.
fn wait_until_ready(stderr: ChildStderr, log: AgentLog) -> Result<u16, NatsServerError> {
    let (sender, ready) = mpsc::channel();
    thread::Builder::new().name("sconce-nats-log".to_owned()).spawn(move || {
        let (mut port, mut last) = (None, String::new());
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            port = port.or_else(|| port_of(&line));
            if let (Some(port), true) = (port, line.contains(READY)) {
                let _ = sender.send(Ok(port));
            }
            if ["[WRN]", "[ERR]", "[FTL]", "nats-server:"].iter().any(|level| line.contains(level)) {
                log.info("nats-server", &[("says", line.clone().into())]);
            }
            last = line;
        }
        let _ = sender.send(Err(last));
    })?;
    match ready.recv_timeout(START_TIMEOUT) {
        Ok(Ok(port)) => Ok(port),
        Ok(Err(last)) => Err(NatsServerError::Ended(last)),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(NatsServerError::Ended(format!("it is not ready after {} s", START_TIMEOUT.as_secs())))
        }
    }
}

/// The port in a line of the log that says where the server listens.
fn port_of(line: &str) -> Option<u16> {
    let (_, address) = line.split_once(LISTENING)?;
    address.trim().rsplit(':').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use sconce_http::LogFormat;

    use super::*;

    /// What is on a port that says `greeting`, and the log.
    fn start(greeting: &'static str) -> (Result<NatsServer, NatsServerError>, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = thread::spawn(move || listener.accept().unwrap().0.write_all(greeting.as_bytes()));
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let written = Arc::clone(&lines);
        let write = move |line: &str| written.lock().unwrap().push(line.to_owned());
        let server = NatsServer::start(&NatsServerOptions {
            runner: (PathBuf::from("/no/such/program"), Vec::new()),
            port,
            store: PathBuf::new(),
            log: AgentLog::new(LogFormat::Human, Arc::new(write)),
        });
        thread.join().unwrap().unwrap();
        let lines = lines.lock().unwrap().clone();
        (server, lines)
    }

    #[test]
    fn a_server_that_runs_already_is_used() {
        let (server, lines) = start("INFO {\"version\":\"2.11.4\",\"jetstream\":true,\"more\":1} \r\n");
        assert!(server.unwrap().url().starts_with("nats://127.0.0.1:"));
        assert!(lines[0].contains("nats-server runs already") && lines[0].contains("2.11.4"), "{lines:?}");
    }

    #[test]
    fn a_server_that_a_pool_can_not_use_is_refused_with_the_reason() {
        for (greeting, reason) in [
            ("INFO {\"version\":\"2.9.25\",\"jetstream\":true}\r\n", "its version is 2.9.25"),
            ("INFO {\"version\":\"2.12.0\"}\r\n", "without JetStream"),
            ("HTTP/1.1 400 Bad Request\r\n", "it is not NATS"),
            ("", "it is not NATS"),
        ] {
            let error = start(greeting).0.unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("hint: "), "{error}");
        }
    }

    #[test]
    fn the_port_is_read_from_the_log() {
        let line = "[7] 2026/01/01 00:00:00.000000 [INF] Listening for client connections on 127.0.0.1:41873";
        assert_eq!(port_of(line), Some(41873));
        assert_eq!(port_of("[7] [INF] Server is ready"), None);
    }
}
