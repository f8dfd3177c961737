//! The processes of `sconce pool up`: NATS, a gateway and a worker from one command.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use sconce_testkit::parts;
use serde_json::Value;

use crate::harness::Sandbox;
use crate::pool_agent::{Logged, is_running, wait_until_gone};
use crate::serve::{converse, signal, wait_until_ready};

/// A pool, with `nats-server` in the search path.
fn up(sandbox: &Sandbox) -> Logged {
    let arguments = ["pool", "up", "tiny-bert", "--offline", "--devices", "cpu", "--worker-id", "studio"];
    let mut command = sandbox.command(&[&arguments[..], &["--port", "0", "--nats-port", "0"]].concat());
    let folder = parts::nats_server().parent().expect("a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(&path)));
    Logged::start(command.env("PATH", path.expect("a path")))
}

/// The children of a process, with theirs.
fn descendants(process: u32) -> Vec<u32> {
    let shown = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output().expect("ps runs");
    let text = String::from_utf8(shown.stdout).expect("text");
    let pairs: Vec<(u32, u32)> = text
        .lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
        .collect();
    let (mut found, mut at) = (vec![process], 0);
    while let Some(&parent) = found.get(at) {
        found.extend(pairs.iter().filter(|(_, of)| *of == parent).map(|(id, _)| *id));
        at += 1;
    }
    found.split_off(1)
}

/// Waits until the gateway is ready, and returns its address.
fn ready(pool: &mut Logged) -> SocketAddr {
    loop {
        let line = pool.wait_for("listening on http://");
        // Lines of workers begin with their id.
        if let Some(address) = line.strip_prefix("listening on http://") {
            let address = address.parse().expect("an address");
            wait_until_ready(address);
            return address;
        }
    }
}

#[test]
fn one_command_runs_a_pool_and_ends_all_of_it() {
    let sandbox = Sandbox::new();
    let mut pool = up(&sandbox);
    let address = ready(&mut pool);
    let (headers, body) = ([("content-type", "application/json")], r#"{"model": "tiny-bert", "input": "a"}"#);
    let (status, answer) = converse(address, "POST", "/v1/embeddings", &headers, body);
    assert_eq!(status, 200, "{answer}");
    let url = format!("http://{address}");
    let report: Value = sandbox.run(&["pool", "status", &url, "--json"]).succeeds().json();
    assert_eq!(report["members"][0]["worker"], "studio-cpu");
    let children = descendants(pool.child.id());
    assert!(children.len() >= 3, "a worker, NATS and the process that holds it: {children:?}");

    signal(&pool.child, "INT");
    pool.wait_for("worker ended");
    assert_eq!(pool.child.wait().expect("it ends").code(), Some(0));
    let left: Vec<&u32> = children.iter().filter(|child| is_running(**child)).collect();
    assert!(left.is_empty(), "{left:?} of {children:?}");
}

#[test]
fn a_pool_that_is_killed_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let mut pool = up(&sandbox);
    ready(&mut pool);
    let children = descendants(pool.child.id());
    assert!(children.len() >= 3, "{children:?}");
    pool.child.kill().expect("it runs");
    pool.child.wait().expect("it ends");
    let longest = children.iter().map(|child| wait_until_gone(*child)).fold(Duration::ZERO, Duration::max);
    println!("kill -9 of the pool: {} children are gone after {longest:?}", children.len());
}

#[test]
fn a_nats_server_that_dies_is_started_again() {
    let sandbox = Sandbox::new();
    let mut pool = up(&sandbox);
    let address = ready(&mut pool);
    let name = |id: &u32| std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    let nats = || descendants(pool.child.id()).into_iter().find(|id| name(id).trim() == "nats-server");
    let killed = nats().expect("it runs");
    // It must have run for a while: a server that can't start is not tried again.
    std::thread::sleep(Duration::from_secs(3));
    assert!(Command::new("kill").args(["-9", &killed.to_string()]).status().expect("kill runs").success());
    let report = || -> Value {
        let (_, report) = converse(address, "GET", "/v1/report", &[], "");
        serde_json::from_str(&report).expect("JSON")
    };
    let until = std::time::Instant::now() + Duration::from_mins(1);
    while nats().is_none_or(|id| id == killed) || report()["registry"]["connected"] != true {
        assert!(std::time::Instant::now() < until, "{}", report());
        std::thread::sleep(Duration::from_millis(100));
    }
    let (headers, body) = ([("content-type", "application/json")], r#"{"model": "tiny-bert", "input": "a"}"#);
    assert_eq!(converse(address, "POST", "/v1/embeddings", &headers, body).0, 200);
}

#[test]
fn without_nats_server_the_command_says_how_to_get_it() {
    let sandbox = Sandbox::new();
    let arguments = ["pool", "up", "tiny-bert", "--offline", "--port", "0", "--nats-port", "0"];
    let output = sandbox.command(&arguments).env("PATH", sandbox.name("nowhere")).output().expect("it ends");
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{text}");
    for part in ["`nats-server` was not found on PATH", "hint: ", "brew install", "--registry nats://"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}
