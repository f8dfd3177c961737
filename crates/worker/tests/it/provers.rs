//! Killed provers and prover memory in log, report and metrics.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sconce::core::engine::Engine;
use sconce::{Device, Dtype, EngineId, Model};
use sconce_http::{LogFormat, Settings as HttpSettings, TelemetryConfig};
use sconce_testkit::fake::{BatchFault, FakeEngine, Fault};
use sconce_testkit::goldens;
use sconce_worker::{LoadPolicy, Serve, Server, Settings};
use serde_json::{Value, json};

use crate::client::{get, metric, post};
use crate::harness::{METAL, fake, fake_builder, fake_runtime, settings, start};

/// Environment variable with the fake engine of a prover as JSON.
const PROVER: &str = "SCONCE_TEST_PROVER";
/// Environment variable with the fake engine of a server as JSON.
const SERVER: &str = "SCONCE_TEST_SERVER";
/// Environment variable with the home of a server.
const HOME: &str = "SCONCE_TEST_HOME";
/// Prefix of the line with the server's address.
const ADDRESS: &str = "address: ";

fn engine(variable: &str) -> Option<FakeEngine> {
    std::env::var(variable).ok().map(|text| serde_json::from_str(&text).expect("an engine"))
}

/// A command that runs one test of this binary with an engine.
fn this_binary(test: &str, variable: &str, engine: &FakeEngine) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary has a path"));
    command
        .args([test, "--exact", "--nocapture"])
        .env(variable, serde_json::to_string(engine).expect("an engine is JSON"));
    command
}

#[test]
fn prover_child() {
    let Some(engine) = engine(PROVER) else { return };
    sconce::prove::run_child(|_| vec![Arc::new(engine) as Arc<dyn Engine>]);
}

#[test]
fn server_child() {
    let (Some(engine), Some(home)) = (engine(SERVER), std::env::var_os(HOME)) else { return };
    let prover = this_binary("provers::prover_child", PROVER, &engine);
    let runtime = fake_runtime(engine, Duration::from_secs(5), Path::new(&home)).prover(&prover).build();
    let builder = Model::builder(&goldens::folder("tiny-bert").to_string_lossy()).runtime(&runtime);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let telemetry = TelemetryConfig { log: Some(LogFormat::Json), ..TelemetryConfig::default() };
    let serve = Serve {
        name: "model".to_owned(),
        aliases: Vec::new(),
        builder,
        load: LoadPolicy::Startup,
        token_ids: false,
    };
    let server = Server::start(
        listener,
        vec![serve],
        Settings { http: HttpSettings { telemetry, ..settings().http }, ..settings() },
    )
    .expect("it starts");
    println!("\n{ADDRESS}{}", server.address());
    // Runs until the parent closes standard input.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    server.stop();
    let _ = server.wait();
}

/// A server in a child process whose log is read.
struct Served {
    child: Child,
    input: Option<ChildStdin>,
    address: SocketAddr,
    log: Option<JoinHandle<String>>,
}

impl Served {
    fn start(engine: &FakeEngine, home: &Path) -> Served {
        let mut child = this_binary("provers::server_child", SERVER, engine)
            .env(HOME, home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut errors = child.stderr.take().expect("a log");
        let log = thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        let mut lines = BufReader::new(child.stdout.take().expect("an output")).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix(ADDRESS)?.parse().ok())
            .expect("the server tells its address");
        thread::spawn(move || lines.count());
        let input = child.stdin.take();
        Served { child, input, address, log: Some(log) }
    }

    /// Waits until it is ready or has exited because no model could be loaded.
    fn settled(&mut self) {
        let began = Instant::now();
        while self.child.try_wait().expect("its state").is_none() && !self.is_ready() {
            assert!(began.elapsed() < Duration::from_mins(2), "neither ready nor ended");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_ready(&self) -> bool {
        let Ok(stream) = TcpStream::connect(self.address) else { return false };
        drop(stream);
        get(self.address, "/readyz").status == 200
    }

    /// Stops it and returns the events of its log.
    fn stop(&mut self) -> Vec<Value> {
        self.input = None;
        let _ = self.child.wait();
        let log = self.log.take().expect("it is read once").join().expect("no panic");
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn of<'a>(log: &'a [Value], event: &str) -> Vec<&'a Value> {
    log.iter().filter(|line| line["event"] == event).collect()
}

#[test]
fn a_prover_that_was_killed_is_in_log_report_and_metrics_and_the_next_start_tries_again() {
    let healthy = FakeEngine::new(EngineId::Candle).dtypes(&[Dtype::F32, Dtype::F16]);
    for (device, dtype, to) in
        [(METAL, Dtype::F16, "candle/metal:0/f32"), (METAL, Dtype::F32, "candle/metal:0/f16")]
    {
        let home = tempfile::tempdir().expect("a folder");
        let from = format!("candle/{device}/{dtype}");
        let broken = healthy.clone().with_in(device, dtype, Fault::Kill);
        let mut first = Served::start(&broken, home.path());
        first.settled();
        let series = format!(
            "sconce_downgrades_total{{from=\"{from}\",model=\"model\",reason=\"killed\",to=\"{to}\"}} 1"
        );
        let metrics = get(first.address, "/metrics").text();
        assert!(metrics.contains(&series), "{metrics}");
        let report = get(first.address, "/v1/report").json();
        let downgrade = &report["models"][0]["plan"]["downgrades"][0];
        assert_eq!(
            (&downgrade["why"]["code"], &downgrade["from"]["dtype"]),
            (&json!("killed"), &json!(dtype))
        );
        let log = first.stop();
        let [line] = of(&log, "placement downgraded")[..] else { panic!("{log:?}") };
        assert_eq!((&line["level"], &line["from"], &line["to"]), (&json!("warn"), &json!(from), &json!(to)));
        assert!(line["why"].as_str().is_some_and(|why| why.contains("SIGKILL")), "{line}");
        assert!(of(&log, "placement retried").is_empty(), "{log:?}");

        let mut second = Served::start(&healthy, home.path());
        second.settled();
        assert_eq!(
            post(second.address, "/embed", &json!({"inputs": "a text"})).header("x-sconce-placement"),
            Some("candle/metal:0/f16")
        );
        assert!(!get(second.address, "/metrics").text().contains("sconce_downgrades_total{"));
        let log = second.stop();
        let [line] = of(&log, "placement retried")[..] else { panic!("{log:?}") };
        assert_eq!((&line["placement"], &line["attempt"]), (&json!(from), &json!(2)));
        assert!(of(&log, "placement downgraded").is_empty(), "{log:?}");
    }
}

#[test]
fn where_the_reference_was_killed_nothing_serves_and_the_next_start_tries_again() {
    let healthy = FakeEngine::new(EngineId::Candle);
    let home = tempfile::tempdir().expect("a folder");
    let mut first = Served::start(&healthy.clone().with(Device::Cpu, Fault::Kill), home.path());
    // A server exits if none of its models can be loaded.
    let began = Instant::now();
    while TcpStream::connect(first.address).is_ok() {
        assert!(began.elapsed() < Duration::from_mins(1), "it serves");
        thread::sleep(Duration::from_millis(10));
    }
    let log = first.stop();
    let [line] = of(&log, "model failed to load")[..] else { panic!("{log:?}") };
    assert!(line["why"].as_str().is_some_and(|why| why.contains("SIGKILL")), "{line}");
    let mut second = Served::start(&healthy, home.path());
    second.settled();
    assert!(second.is_ready());
    let log = second.stop();
    let [line] = of(&log, "placement retried")[..] else { panic!("{log:?}") };
    assert_eq!(line["placement"], "candle/cpu/f32");
}

#[test]
fn a_placement_that_fails_in_the_warm_up_is_reported_as_a_downgrade() {
    let broken = Fault::FromBatch(2, BatchFault::Nan);
    let server = fake(FakeEngine::new(EngineId::Candle).with(METAL, broken), Duration::from_secs(5));
    assert!((metric(*server, "sconce_downgrades_total") - 1.0).abs() < 1e-9);
    let metrics = get(*server, "/metrics").text();
    assert!(metrics.contains("reason=\"quarantined\""), "{metrics}");
    let report = get(*server, "/v1/report").json();
    assert_eq!(report["models"][0]["plan"]["downgrades"][0]["to"]["device"], "cpu", "{report}");
}

#[test]
fn no_prover_is_started_beyond_the_memory_limit() {
    let home = tempfile::tempdir().expect("a folder");
    // It fails at its third batch after each recovery.
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::FromBatch(3, BatchFault::Nan));
    let tight =
        |limit| Settings { recovery_backoff: Duration::from_millis(50), memory_limit: limit, ..settings() };
    let builder = fake_builder(engine, Duration::from_secs(5), home.path());
    let server = start(builder, tight(None), Some(home)).ready();
    let series = |outcome: &str| {
        format!(
            "sconce_recoveries_total{{model=\"model\",outcome=\"{outcome}\",placement=\"candle/metal:0/f32\"}}"
        )
    };
    let until = |line: &str| {
        let began = Instant::now();
        while !get(*server, "/metrics").text().contains(line) {
            assert!(began.elapsed() < Duration::from_mins(1), "{}", get(*server, "/metrics").text());
            thread::sleep(Duration::from_millis(5));
        }
    };
    until(&series("recovered"));
    server.running().reload(tight(Some(1 << 20)));
    for _ in 0..4 {
        post(*server, "/embed", &json!({"inputs": "a text"})).expect(200);
    }
    until(&series("no_memory"));
    assert!(get(*server, "/v1/report").json()["memory"]["provers"].is_u64());
}

#[test]
fn a_model_whose_prover_does_not_fit_is_refused_before_anything_is_proved() {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle);
    let builder = fake_builder(engine, Duration::from_secs(5), home.path());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let serve = Serve {
        name: "model".to_owned(),
        aliases: Vec::new(),
        builder,
        load: LoadPolicy::Startup,
        token_ids: false,
    };
    let limit = Settings { memory_limit: Some(1 << 20), ..settings() };
    let server = Server::start(listener, vec![serve], limit).expect("it starts");
    let error = server.wait().expect_err("nothing fits").to_string();
    assert!(error.contains("memory_limit"), "{error}");
    assert!(!home.path().join("evidence").exists(), "nothing was tried");
}
