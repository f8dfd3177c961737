//! The processes of `sconce pool agent`: workers that are killed, stopped, crash again and again, and outlive nobody.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use sconce_testkit::nats::NatsServer;
use serde_json::Value;

use crate::harness::Sandbox;
use crate::serve::{converse, serve_by, signal, terminate, wait_until_ready};

/// Time limit of every wait, for a busy machine.
const LIMIT: Duration = Duration::from_mins(2);

/// A process and the lines of its log.
pub(crate) struct Logged {
    pub(crate) child: Child,
    lines: Receiver<String>,
    pub(crate) seen: VecDeque<String>,
}

impl Logged {
    pub(crate) fn start(command: &mut Command) -> Logged {
        let mut child = command.stdin(Stdio::null()).spawn().expect("it starts");
        let words = BufReader::new(child.stderr.take().expect("its words"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || words.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Logged { child, lines, seen: VecDeque::new() }
    }

    /// Waits for the next line that contains `text`.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(LIMIT) else {
                panic!("no `{text}` in the log:\n{:#?}", self.seen)
            };
            self.seen.push_back(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The process id of the next worker that is started.
    #[track_caller]
    fn next_worker(&mut self) -> u32 {
        let line = self.wait_for("worker started");
        line.rsplit_once("pid=").and_then(|(_, id)| id.parse().ok()).expect("a process id")
    }

    /// The address that the next worker listens on.
    #[track_caller]
    fn next_address(&mut self) -> SocketAddr {
        let line = self.wait_for("listening on http://");
        line.rsplit('/').next().and_then(|address| address.parse().ok()).expect("an address")
    }

    /// Number of lines so far that contain `text`.
    fn count(&self, text: &str) -> usize {
        self.seen.iter().filter(|line| line.contains(text)).count()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn agent(sandbox: &Sandbox, registry: &str) -> Logged {
    let arguments = ["pool", "agent", "tiny-bert", "--offline", "--devices", "cpu", "--worker-id", "studio"];
    Logged::start(&mut sandbox.command(&[&arguments[..], &["--registry", registry]].concat()))
}

fn send(process: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

/// Whether a process runs. One that has ended and was not waited for does not.
pub(crate) fn is_running(process: u32) -> bool {
    let shown = Command::new("ps").args(["-o", "stat=", "-p", &process.to_string()]).output();
    let state = String::from_utf8(shown.expect("ps runs").stdout).expect("text");
    !state.trim().is_empty() && !state.trim().starts_with('Z')
}

/// Waits until a process has ended, and returns how long that took.
#[track_caller]
pub(crate) fn wait_until_gone(process: u32) -> Duration {
    let start = Instant::now();
    while is_running(process) {
        assert!(start.elapsed() < LIMIT, "process {process} still runs");
        sleep(Duration::from_millis(10));
    }
    start.elapsed()
}

#[test]
fn a_worker_that_is_killed_or_stopped_is_replaced_and_one_of_an_agent_that_ends_is_drained() {
    let (sandbox, nats) = (Sandbox::new(), NatsServer::start(""));
    let mut agent = agent(&sandbox, &nats.url());
    let first = agent.next_worker();
    wait_until_ready(agent.next_address());

    let start = Instant::now();
    send(first, "KILL");
    let crash = agent.wait_for("worker crashed");
    assert!(crash.contains("worker=studio-cpu") && crash.contains("signal 9 (SIGKILL)"), "{crash}");
    let second = agent.next_worker();
    println!("kill -9: restarted after {:?}", start.elapsed());
    assert!(second != first && start.elapsed() < LIMIT / 4);
    let address = agent.next_address();
    wait_until_ready(address);
    println!("kill -9: ready after {:?}", start.elapsed());

    let start = Instant::now();
    send(second, "STOP");
    let killed = agent.wait_for("worker killed");
    assert!(killed.contains("it did not answer probes"), "{killed}");
    let third = agent.next_worker();
    println!("SIGSTOP: replaced after {:?}", start.elapsed());
    assert!(start.elapsed() < LIMIT / 4);
    wait_until_gone(second);
    let address = agent.next_address();
    wait_until_ready(address);
    let body = r#"{"model": "tiny-bert", "input": "a text"}"#;
    let headers = [("content-type", "application/json")];
    assert_eq!(converse(address, "POST", "/v1/embeddings", &headers, body).0, 200);
    assert_eq!((agent.count("worker started"), agent.count("worker crashed")), (3, 2), "{:#?}", agent.seen);

    let start = Instant::now();
    terminate(&agent.child);
    agent.wait_for("worker drains");
    agent.wait_for("stopping");
    let end = agent.wait_for("worker ended");
    assert!(end.contains("exited with code 0"), "{end}");
    assert_eq!(agent.child.wait().expect("it ends").code(), Some(0));
    println!("SIGTERM: ended after {:?}", start.elapsed());
    assert!(!is_running(third));
}

#[test]
fn a_worker_that_crashes_five_times_in_a_minute_is_degraded_with_the_reason() {
    let (sandbox, nats) = (Sandbox::new(), NatsServer::start(""));
    let registry = nats.url();
    let arguments = ["pool", "gateway", "--port", "0", "--registry", &registry];
    let mut gateway = serve_by(sandbox.command(&arguments).stdin(Stdio::null()));
    let url = format!("http://{}", gateway.address);
    let mut agent = agent(&sandbox, &registry);
    for _ in 0..4 {
        let worker = agent.next_worker();
        send(worker, "KILL");
        agent.wait_for("worker crashed");
    }
    let worker = agent.next_worker();
    agent.wait_for("listening on http://");
    send(worker, "ABRT");
    let degraded = agent.wait_for("worker degraded");
    for part in ["worker=studio-cpu", "crashes=5", "signal 6 (SIGABRT)", "listening on http://"] {
        assert!(degraded.contains(part), "no `{part}` in {degraded}");
    }
    assert_eq!(agent.count("worker crashed"), 4);

    let start = Instant::now();
    let member = loop {
        let report = sandbox.run(&["pool", "status", &url, "--json"]).succeeds().json();
        let member = report["members"][0].clone();
        if member["failure"].is_object() {
            break member;
        }
        assert!(start.elapsed() < LIMIT, "{report}");
        sleep(Duration::from_millis(50));
    };
    assert_eq!((&member["worker"], &member["state"]), (&"studio-cpu".into(), &"degraded".into()));
    let reason = member["failure"]["reason"].as_str().expect("a reason");
    assert_eq!(reason, "it crashed 5 times in 60 s; the last process was ended by signal 6 (SIGABRT)");
    let log = member["failure"]["log"].as_array().expect("lines");
    let is_listening =
        |line: &Value| line.as_str().is_some_and(|line| line.starts_with("listening on http://"));
    assert!(log.len() <= 20 && log.iter().any(is_listening), "{log:?}");
    let table = sandbox.run(&["pool", "status", &url]).succeeds().stdout;
    assert!(table.contains("degraded") && table.contains(reason), "{table}");
    assert_eq!(converse(gateway.address, "GET", "/readyz", &[], "").0, 503, "no worker runs");

    terminate(&agent.child);
    assert_eq!(agent.child.wait().expect("it ends").code(), Some(0));
    while sandbox.run(&["pool", "status", &url, "--json"]).succeeds().json()["members"]
        != Value::Array(Vec::new())
    {
        assert!(start.elapsed() < LIMIT);
        sleep(Duration::from_millis(50));
    }
    terminate(&gateway.child);
    assert_eq!(gateway.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn workers_of_an_agent_that_is_killed_are_gone() {
    let (sandbox, nats) = (Sandbox::new(), NatsServer::start(""));
    let mut agent = agent(&sandbox, &nats.url());
    let worker = agent.next_worker();
    wait_until_ready(agent.next_address());
    agent.child.kill().expect("it runs");
    agent.child.wait().expect("it ends");
    println!("kill -9 of the agent: the worker is gone after {:?}", wait_until_gone(worker));
}

#[test]
fn workers_that_were_drained_stay_away_and_an_agent_without_workers_ends() {
    let (sandbox, nats) = (Sandbox::new(), NatsServer::start(""));
    let mut agent = agent(&sandbox, &nats.url());
    let address = agent.next_address();
    wait_until_ready(address);
    assert_eq!(converse(address, "POST", "/v1/drain", &[], "").0, 202);
    agent.wait_for("worker ended");
    agent.wait_for("all workers were drained");
    assert_eq!(agent.child.wait().expect("it ends").code(), Some(0));
    assert_eq!(agent.count("worker started"), 1);
}

#[test]
fn an_agent_that_has_no_registry_or_no_model_says_so() {
    let sandbox = Sandbox::new();
    sandbox.run(&["pool", "agent", "tiny-bert"]).fails(2, &["register nowhere", "--registry nats://"]);
    let registry = ["--registry", "nats://127.0.0.1:1"];
    sandbox.run(&[&["pool", "agent"], &registry[..]].concat()).fails(2, &["no model to serve", "hint: "]);
    sandbox
        .run(&[&["pool", "agent", "tiny-bert", "--devices", "cuda:99"], &registry[..]].concat())
        .fails(2, &["cuda:99", "hint: "]);
}

#[test]
fn a_second_signal_ends_an_agent_at_once() {
    let (sandbox, nats) = (Sandbox::new(), NatsServer::start(""));
    let mut agent = agent(&sandbox, &nats.url());
    let worker = agent.next_worker();
    agent.next_address();
    // A worker that is stopped does not drain.
    send(worker, "STOP");
    signal(&agent.child, "INT");
    agent.wait_for("worker drains");
    signal(&agent.child, "INT");
    agent.wait_for("worker killed");
    assert_eq!(agent.child.wait().expect("it ends").code(), Some(0));
    assert!(!is_running(worker));
}
