//! The worker in a registry: records, states, outages of NATS, removal at shutdown.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sconce::EngineId;
use sconce_http::Settings as HttpSettings;
use sconce_testkit::fake::{FakeEngine, Fault};
use sconce_testkit::nats::NatsServer;
use sconce_worker::registry::{
    Heartbeat, InProcess, MAX_HEARTBEAT_BYTES, NatsOptions, NatsRegistry, Registration, Registry, Watcher,
    WorkerState,
};
use sconce_worker::{PoolRegistry, Settings, Worker};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::client::{get, post};
use crate::harness::{METAL, TestServer, fake_builder, settings, start};

/// A worker called `one` that warms up slowly.
fn worker(registry: PoolRegistry) -> TestServer {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::Late(20));
    let builder = fake_builder(engine, Duration::from_secs(10), home.path());
    let worker = Worker { id: "one".to_owned(), registry: Some(registry), ..Worker::default() };
    let http = HttpSettings { linger: Duration::from_millis(300), ..settings().http };
    start(builder, Settings { worker, http, ..settings() }, Some(home))
}

/// Waits until `condition` holds for the records of the worker, or for their absence.
fn wait_for<T>(
    watcher: &Watcher,
    what: &str,
    condition: impl Fn(Option<(&Registration, &Heartbeat)>) -> Option<T>,
) -> T {
    let began = Instant::now();
    loop {
        let found = watcher.read(|map| {
            condition(map.get("one").map(|member| (&**member.registration, &**member.heartbeat)))
        });
        if let Some(found) = found {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{what}: {:#?}", watcher.snapshot());
        thread::sleep(Duration::from_millis(2));
    }
}

fn wait_for_state(watcher: &Watcher, state: WorkerState) -> (Registration, Heartbeat) {
    wait_for(watcher, &format!("{state:?}"), |records| {
        let (registration, heartbeat) = records?;
        (heartbeat.state == state).then(|| (registration.clone(), heartbeat.clone()))
    })
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

#[test]
fn a_worker_is_registered_before_it_is_ready_and_removed_after_it_drained() {
    let runtime = runtime();
    let registry: Arc<dyn Registry> = Arc::new(runtime.block_on(async { InProcess::new() }));
    let watcher = runtime.block_on(async { registry.watch() });
    let server = worker(PoolRegistry::Shared(registry));
    let (starting, first) = wait_for_state(&watcher, WorkerState::Starting);
    assert_eq!(starting.url, format!("http://{}", *server));
    assert_eq!((starting.models[0].model.as_str(), starting.models[0].placements.len()), ("model", 0));
    assert!(starting.boot_id == first.boot_id && first.sequence > 0);
    let server = server.ready();
    let (ready, _) = wait_for(&watcher, "loaded", |records| {
        let (registration, heartbeat) = records?;
        let is_loaded = registration.models[0].placements.iter().any(|placement| placement.active);
        let is_ready = heartbeat.state == WorkerState::Ready;
        (is_loaded && is_ready).then(|| (registration.clone(), heartbeat.clone()))
    });
    let model = &ready.models[0];
    assert_eq!((model.task.as_str(), model.aliases.as_slice()), ("embed", &["alias".to_owned()][..]));
    assert!(model.max_length > 0);
    let active = model.placements.iter().find(|placement| placement.active).expect("a placement");
    let answer = post(*server, "/embed", &json!({"inputs": "a"}));
    assert_eq!(answer.header("x-sconce-placement"), Some(active.placement.as_str()));
    assert_eq!(answer.header("x-sconce-class"), active.class.as_deref());
    assert!(
        active.class.as_ref().zip(active.band.as_ref()).is_some_and(|(class, band)| class.ends_with(band))
    );
    let refused = model.placements.iter().find_map(|placement| placement.obstacle.as_ref());
    assert!(refused.is_some_and(|obstacle| !obstacle.code.is_empty() && !obstacle.message.is_empty()));
    let beat = wait_for(&watcher, "a heartbeat", |records| {
        records.map(|(_, heartbeat)| heartbeat.clone()).filter(|heartbeat| heartbeat.rates.large > 0.0)
    });
    assert!(beat.rates.small > 0.0 && beat.rates.small <= beat.rates.large, "{beat:?}");
    assert!(beat.load.latency > 0.0 && beat.free_memory["cpu"] > 0, "{beat:?}");
    assert!((12_000..=12_288).contains(&beat.free_memory["metal:0"]), "of 12 GiB: {beat:?}");
    let bytes = beat.encode().expect("a heartbeat").len();
    println!("a heartbeat has {bytes} bytes, a registration {}", ready.encode().expect("a record").len());
    assert!(bytes <= MAX_HEARTBEAT_BYTES, "{bytes}");
    post(*server, "/v1/pause", &json!({})).expect(200);
    wait_for_state(&watcher, WorkerState::Paused);
    post(*server, "/v1/resume", &json!({})).expect(200);
    wait_for_state(&watcher, WorkerState::Ready);
    let states = watcher.clone();
    let draining = thread::spawn(move || wait_for_state(&states, WorkerState::Draining));
    server.running().stop();
    drop(server);
    let began = Instant::now();
    draining.join().expect("it was seen");
    wait_for(&watcher, "removed", |records| records.is_none().then_some(()));
    assert!(began.elapsed() < Duration::from_secs(1), "it was removed before it expired");
}

#[test]
fn a_worker_serves_while_nats_is_away_and_registers_again() {
    let mut nats = NatsServer::start("authorization { token: secret }");
    let runtime = runtime();
    let mut options = NatsOptions::new([nats.url()]);
    options.auth = sconce_worker::registry::NatsAuth::Token("secret".to_owned());
    let registry = runtime.block_on(NatsRegistry::connect(options.clone())).expect("valid options");
    let watcher = runtime.block_on(async { registry.watch() });
    let server = worker(PoolRegistry::Nats(Box::new(options))).ready();
    let (before, _) = wait_for_state(&watcher, WorkerState::Ready);
    nats.kill();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        post(*server, "/embed", &json!({"inputs": "a"})).expect(200);
    }
    assert_eq!(get(*server, "/readyz").status, 200);
    nats.restart();
    let began = Instant::now();
    let boot_since = || {
        watcher.read(|map| {
            let member = map.get("one").filter(|member| member.received >= began)?;
            Some(member.heartbeat.boot_id)
        })
    };
    let after = loop {
        if let Some(boot_id) = boot_since() {
            break boot_id;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{:#?}", watcher.snapshot());
        thread::sleep(Duration::from_millis(2));
    };
    println!("registered again {:?} after NATS returned", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(after, before.boot_id, "it did not restart");
    drop(server);
    wait_for(&watcher, "removed", |records| records.is_none().then_some(()));
}

#[test]
fn an_invalid_option_of_the_registry_ends_the_server() {
    let home = tempfile::tempdir().expect("a folder");
    let builder = fake_builder(FakeEngine::new(EngineId::Candle), Duration::from_secs(5), home.path());
    let options = NatsOptions::new(["http://127.0.0.1:1"]);
    let registry = Some(PoolRegistry::Nats(Box::new(options)));
    let worker = Worker { id: "one".to_owned(), registry, ..Worker::default() };
    let serve = sconce_worker::Serve {
        name: "model".to_owned(),
        aliases: Vec::new(),
        builder,
        load: sconce_worker::LoadPolicy::Startup,
        token_ids: false,
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let refused = sconce_worker::Server::start(listener, vec![serve], Settings { worker, ..settings() });
    assert!(matches!(refused, Err(sconce_worker::ServeError::Registry(_))));
}
