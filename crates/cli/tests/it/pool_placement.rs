//! A pool of processes that places models: NATS, a gateway, a worker with memory and one without.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use sconce_testkit::goldens;
use sconce_testkit::nats::NatsServer;
use serde_json::{Value, json};

use crate::harness::{CommandOutput, Sandbox};
use crate::serve::{Served, body, converse, serve_by, terminate};

const LIMIT: Duration = Duration::from_mins(4);

/// NATS, a gateway and two workers without models, all with keys.
struct Pool {
    sandbox: Sandbox,
    gateway: Served,
    workers: [Served; 2],
    source: String,
    _nats: NatsServer,
}

impl Pool {
    fn start() -> Pool {
        let (sandbox, nats) = (Sandbox::new(), NatsServer::start(""));
        let registry = nats.url();
        let source = goldens::folder("tiny-bert").to_string_lossy().into_owned();
        let of_gateway = sandbox.with("keys-of-gateway", "client\nadmin operator\n");
        let of_workers = sandbox.with("keys-of-workers", "metrics\nours pool\nsteer operator\n");
        let operator = sandbox.with("operator-key", "steer\n");
        let arguments =
            ["pool", "gateway", "--port", "0", "--registry", &registry, "--api-key-file", &of_gateway];
        let mut command = sandbox.command(&[&arguments[..], &["--operator-key-file", &operator]].concat());
        let gateway = serve_by(command.stdin(Stdio::null()).env("SCONCE_POOL_KEY", "ours"));
        let worker = |id: &str, more: &[&str]| {
            let arguments = ["serve", "--offline", "--port", "0", "--registry", &registry, "--worker-id", id];
            let keys = ["--api-key-file", &of_workers, "--model-sources", &source];
            let mut command = sandbox.command(&[&arguments[..], &keys, more].concat());
            // What one has learned about memory does not help the other.
            serve_by(command.stdin(Stdio::null()).env("SCONCE_HOME", sandbox.file(id)))
        };
        let workers = [worker("full", &["--memory-limit", "40"]), worker("roomy", &[])];
        Pool { sandbox, gateway, workers, source, _nats: nats }
    }

    fn url(&self) -> String {
        format!("http://{}", self.gateway.address)
    }

    /// Runs a command of `sconce pool` with an operator key of the gateway.
    fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.run_as("admin", arguments)
    }

    fn run_as(&self, key: &str, arguments: &[&str]) -> CommandOutput {
        let mut command: Command = self.sandbox.command(&[&["pool"], arguments].concat());
        let output = command.env("SCONCE_API_KEY", key).stdin(Stdio::null()).output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let code = output.status.code().expect("an exit code");
        CommandOutput { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    fn report(&self) -> Value {
        self.run(&["status", &self.url(), "--json"]).succeeds().json()
    }

    /// Models by worker.
    fn models(&self) -> Vec<(String, Vec<String>)> {
        let report = self.report();
        let members = report["members"].as_array().expect("members").iter();
        let name = |model: &Value| model["model"].as_str().map(str::to_owned);
        let models = |member: &Value| -> Vec<String> {
            member["models"].as_array().into_iter().flatten().filter_map(name).collect()
        };
        members.map(|member| (member["worker"].as_str().unwrap_or("").to_owned(), models(member))).collect()
    }

    fn wait_for(&self, what: &str, condition: impl Fn(&Pool) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < LIMIT, "{what}: {:#}", self.report());
            sleep(Duration::from_millis(100));
        }
    }

    fn embed(&self, model: &str) -> (u16, String) {
        let body = json!({ "model": model, "input": "a text" }).to_string();
        let headers = [("content-type", "application/json"), ("authorization", "Bearer client")];
        converse(self.gateway.address, "POST", "/v1/embeddings", &headers, &body)
    }

    /// Loads of a model by all workers.
    fn loads(&self, model: &str) -> u64 {
        let of_worker = |address: SocketAddr| {
            let headers = [("authorization", "Bearer metrics")];
            let (_, page) = converse(address, "GET", "/metrics", &headers, "");
            let line = format!("sconce_loads_total{{model=\"{model}\"}} ");
            page.lines().find_map(|found| found.strip_prefix(&line)?.parse().ok()).unwrap_or(0)
        };
        self.workers.iter().map(|worker| of_worker(worker.address)).sum()
    }
}

fn pair(worker: &str, models: &[&str]) -> (String, Vec<String>) {
    (worker.to_owned(), models.iter().map(|model| (*model).to_owned()).collect())
}

#[test]
fn a_pool_loads_models_where_they_fit_and_a_cold_one_once_for_a_hundred_requests() {
    let mut pool = Pool::start();
    let url = pool.url();
    let empty = |pool: &Pool| pool.models() == [pair("full", &[]), pair("roomy", &[])];
    pool.wait_for("both workers register", empty);
    let source = pool.source.clone();

    let load = ["load", &source, "--gateway", &url, "--name", "tiny", "--replicas", "1..2", "--wait"];
    let refused = pool.run_as("client", &load);
    assert!(
        refused.code == 2 && refused.stderr.contains("only an operator key may load"),
        "{}",
        refused.stderr
    );
    let loaded = pool.run(&load).succeeds();
    assert!(loaded.stderr.ends_with("tiny: 1 loaded\n"), "{}", loaded.stderr);
    assert_eq!(pool.models(), [pair("full", &[]), pair("roomy", &["tiny"])]);
    assert_eq!(pool.embed("tiny").0, 200);
    let table = pool.run(&["status", &url]).succeeds().stdout;
    assert!(table.contains("1..2"), "{table}");

    pool.run(&["unload", "tiny", "--gateway", &url]).succeeds();
    pool.wait_for("it is unloaded", empty);
    // The worker answers for a moment that it has no such model. Then the gateway knows that no worker has any.
    pool.wait_for("requests are refused", |pool| {
        let (status, answer) = pool.embed("tiny");
        assert!(matches!(status, 404 | 503), "{status} {answer}");
        status == 503
    });
    let again = pool.run(&["unload", "tiny", "--gateway", &url]);
    assert!(again.code == 2 && again.stderr.contains("it was told to load: none"), "{}", again.stderr);

    pool.run(&["load", &source, "--gateway", &url, "--name", "cold", "--replicas", "0..1"]).succeeds();
    pool.wait_for("it is desired", |pool| pool.report()["placement"]["desired"][0]["model"] == "cold");
    assert_eq!(pool.loads("cold"), 0);
    let answers: Vec<(u16, String)> = scope(|scope| {
        let requests: Vec<_> = (0..100).map(|_| scope.spawn(|| pool.embed("cold"))).collect();
        requests.into_iter().map(|request| request.join().expect("an answer")).collect()
    });
    for (status, answer) in &answers {
        assert_eq!(*status, 200, "{answer}");
    }
    assert_eq!(pool.loads("cold"), 1);

    // A model that no worker can load says so.
    let nowhere = ["load", "nowhere/model", "--gateway", &url, "--name", "nowhere"];
    pool.run(&nowhere).succeeds();
    let problem =
        |pool: &Pool| pool.run(&["status", &url]).succeeds().stdout.contains("is not an allowed source");
    pool.wait_for("the problem is shown", problem);
    assert!(body(pool.gateway.address, "/livez").ends_with("alive\n"));

    for served in pool.workers.iter_mut().chain([&mut pool.gateway]) {
        terminate(&served.child);
        assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
    }
}
