//! A pool of processes: NATS, two workers and a gateway.

use std::net::SocketAddr;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sconce_testkit::nats::NatsServer;
use serde_json::{Value, json};

use crate::harness::Sandbox;
use crate::serve::{Served, converse, serve_by, serve_with, terminate};

/// A worker of the pool. All have the same placement, whatever speeds they measure, so that their vectors are equal.
fn worker(sandbox: &Sandbox, nats: &NatsServer, id: &str) -> Served {
    let registry = nats.url();
    let placement = ["--engine", "native", "--dtype", "f32"];
    let arguments = ["tiny-bert", "--offline", "--port", "0", "--worker-id", id, "--registry", &registry];
    serve_with(sandbox, &[&arguments[..], &placement].concat())
}

/// The embedding of a text.
fn embed(address: SocketAddr, text: &str) -> (u16, Value) {
    let body = json!({ "model": "tiny-bert", "input": text }).to_string();
    let headers = [("content-type", "application/json")];
    let (status, answer) = converse(address, "POST", "/v1/embeddings", &headers, &body);
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    (status, answer["data"][0]["embedding"].clone())
}

/// Waits until `sconce pool status` shows these states of the workers.
#[track_caller]
fn wait_for(sandbox: &Sandbox, gateway: &str, states: &[(&str, &str)]) {
    let start = Instant::now();
    loop {
        let report = sandbox.run(&["pool", "status", gateway, "--json"]).succeeds().json();
        let members = report["members"].as_array().expect("members");
        let shown: Vec<(&str, &str)> = members
            .iter()
            .filter_map(|member| Some((member["worker"].as_str()?, member["state"].as_str()?)))
            .collect();
        if shown == states {
            return;
        }
        assert!(start.elapsed() < Duration::from_mins(2), "{shown:?}");
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_gateway_answers_while_workers_pause_die_and_leave() {
    let (sandbox, nats) = (Sandbox::new(), NatsServer::start(""));
    let registry = nats.url();
    let arguments = ["pool", "gateway", "--port", "0", "--registry", &registry];
    let mut gateway = serve_by(sandbox.command(&arguments).stdin(Stdio::null()));
    let url = format!("http://{}", gateway.address);
    let (mut one, mut other) = (worker(&sandbox, &nats, "one"), worker(&sandbox, &nats, "other"));
    wait_for(&sandbox, &url, &[("one", "ready"), ("other", "ready")]);
    let table = sandbox.run(&["pool", "status", &url]).succeeds().stdout;
    assert!(table.contains("tiny-bert (") && table.contains("closed"), "{table}");

    let direct = embed(one.address, "a text").1;
    assert!(direct.as_array().is_some_and(|vector| !vector.is_empty()));
    assert_eq!(embed(gateway.address, "a text"), (200, direct));
    let all_answered =
        |count: usize| (0..count).all(|number| embed(gateway.address, &format!("text {number}")).0 == 200);

    sandbox.run(&["pool", "pause", "one", "--gateway", &url]).succeeds();
    assert_eq!(embed(one.address, "a text").0, 503, "a paused worker takes no requests");
    assert!(all_answered(20));
    wait_for(&sandbox, &url, &[("one", "paused"), ("other", "ready")]);
    sandbox.run(&["pool", "resume", "one", "--gateway", &url]).succeeds();
    wait_for(&sandbox, &url, &[("one", "ready"), ("other", "ready")]);
    let unknown = sandbox.run(&["pool", "pause", "none", "--gateway", &url]);
    assert!(unknown.code == 2 && unknown.stderr.contains("it has: one, other"), "{}", unknown.stderr);

    other.child.kill().expect("it runs");
    other.child.wait().expect("it ends");
    for number in 0..50 {
        let body = json!({ "model": "tiny-bert", "input": format!("text {number}") }).to_string();
        let answer = converse(
            gateway.address,
            "POST",
            "/v1/embeddings",
            &[("content-type", "application/json")],
            &body,
        );
        assert_eq!(answer.0, 200, "{number}: {}", answer.1);
    }
    wait_for(&sandbox, &url, &[("one", "ready")]);

    sandbox.run(&["pool", "drain", "one", "--gateway", &url]).succeeds();
    assert_eq!(one.child.wait().expect("it ends").code(), Some(0));
    wait_for(&sandbox, &url, &[]);
    let none = sandbox.run(&["pool", "status", &url]).succeeds().stdout;
    assert!(none.starts_with("no worker has registered"), "{none}");
    assert_eq!(embed(gateway.address, "a text").0, 503);
    terminate(&gateway.child);
    assert_eq!(gateway.child.wait().expect("it ends").code(), Some(0));
}
