//! NATS is killed, restarted, stopped and continued.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sconce_registry::{MemberMap, NatsOptions, NatsRegistry, Registry, RegistryError};
use tokio::time::sleep;

use crate::conformance::{desired, wait_for_desired};
use crate::pool::{Backend, Worker, wait_for};
use crate::server::Server;

const TTL: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_millis(300);
const SOON: Duration = Duration::from_secs(5);

async fn connect(server: &Server) -> Arc<dyn Backend> {
    Arc::new(NatsRegistry::connect(NatsOptions::new([server.url()])).await.unwrap())
}

/// Starts workers `w0`, `w1`, …, each with a connection of its own.
async fn start_workers(server: &Server, count: usize) -> Vec<tokio::task::JoinHandle<()>> {
    let mut tasks = Vec::new();
    for index in 0..count {
        let mut worker = Worker::new(connect(server).await, &format!("w{index}"), TTL);
        worker.register().await.unwrap();
        tasks.push(worker.keep_alive(INTERVAL));
    }
    tasks
}

/// The sum of the sequence numbers.
fn heartbeats(map: &MemberMap) -> u64 {
    map.iter().map(|member| member.heartbeat.sequence).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_leases_survive_a_restart_of_the_server() {
    let mut server = Server::start("");
    let tasks = start_workers(&server, 4).await;
    let gateway = connect(&server).await;
    let mut watcher = gateway.watch();
    wait_for(&mut watcher, "four members", SOON, |map| map.len() == 4).await;
    let mut lease = gateway.acquire("place", "gateway", TTL * 30).await.unwrap().unwrap();
    assert_eq!(gateway.bind("index", "aaa-half").await.unwrap(), "aaa-half");

    server.kill();
    wait_for(&mut watcher, "the watcher notices", SOON, |map| !map.is_connected()).await;
    tasks[3].abort();
    let away = Instant::now();
    while away.elapsed() < TTL * 2 {
        assert_eq!(watcher.read(MemberMap::len), 4, "the map is kept");
        sleep(Duration::from_millis(100)).await;
    }
    let (start, outcome) = (Instant::now(), gateway.renew(&mut lease).await);
    assert!(matches!(outcome, Err(RegistryError::Unavailable { .. })), "{outcome:?}");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());

    let before = watcher.read(heartbeats);
    let back = Instant::now();
    server.restart();
    let renewed = |map: &MemberMap| {
        let fresh = |id: &str| map.get(id).is_some_and(|member| member.received > back);
        map.is_connected() && ["w0", "w1", "w2"].into_iter().all(fresh)
    };
    wait_for(&mut watcher, "the map is whole", SOON, renewed).await;
    println!("whole {:?} after the restart began", back.elapsed());
    assert_eq!(watcher.read(MemberMap::expirations), 0, "no member was missing meanwhile");
    assert!(watcher.read(heartbeats) > before);
    // The worker that died meanwhile.
    wait_for(&mut watcher, "three members", TTL + Duration::from_secs(1), |map| map.len() == 3).await;
    assert!(watcher.read(|map| map.get("w3").is_none()));

    assert!(connect(&server).await.acquire("place", "other", TTL).await.unwrap().is_none());
    gateway.renew(&mut lease).await.unwrap();
    assert_eq!(gateway.bind("index", "bbb-half").await.unwrap(), "aaa-half", "a binding is durable");
    // A watcher that starts now sees them too.
    let mut late = connect(&server).await.watch();
    wait_for(&mut late, "three members", SOON, |map| map.len() == 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_stay_while_the_server_is_stopped() {
    let server = Server::start("");
    let _tasks = start_workers(&server, 3).await;
    let mut watcher = connect(&server).await.watch();
    wait_for(&mut watcher, "three members", SOON, |map| map.len() == 3).await;
    // Connections stay open, but nothing is answered.
    server.signal("STOP");
    let start = Instant::now();
    while start.elapsed() < TTL.mul_f32(2.5) {
        assert_eq!(watcher.read(MemberMap::len), 3, "after {:?}", start.elapsed());
        sleep(Duration::from_millis(50)).await;
    }
    assert!(!watcher.is_connected());
    server.signal("CONT");
    let back = Instant::now();
    let renewed = |map: &MemberMap| map.is_connected() && map.iter().all(|member| member.received > back);
    wait_for(&mut watcher, "the map is whole", SOON, |map| {
        assert_eq!(map.len(), 3);
        renewed(map)
    })
    .await;
    println!("whole {:?} after the server continued", back.elapsed());
    assert_eq!(watcher.read(MemberMap::expirations), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_was_stopped_keeps_live_members() {
    let server = Server::start("");
    let _tasks = start_workers(&server, 3).await;
    let url = server.url();
    // The gateway has a runtime with one thread, which is blocked for longer than the time to live.
    let gateway = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let registry = NatsRegistry::connect(NatsOptions::new([url])).await.unwrap();
            let mut watcher = registry.watch();
            wait_for(&mut watcher, "three members", SOON, |map| map.len() == 3).await;
            for _ in 0..2 {
                thread::sleep(TTL.mul_f32(1.25));
                sleep(TTL / 2).await;
            }
            watcher.read(|map| assert_eq!((map.len(), map.expirations()), (3, 0)));
        });
    });
    while !gateway.is_finished() {
        sleep(Duration::from_millis(50)).await;
    }
    gateway.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_and_watchers_may_start_before_the_server() {
    let mut server = Server::start("");
    server.kill();
    let registry = connect(&server).await;
    let mut watcher = registry.watch();
    let mut worker = Worker::new(Arc::clone(&registry), "early", TTL);
    let start = Instant::now();
    let outcome = worker.register().await;
    let Err(RegistryError::Unavailable { backend, .. }) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(*backend, format!("NATS at {}", server.url()));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(!watcher.is_connected());
    // The registration is remembered: heartbeats are enough.
    let _task = worker.keep_alive(INTERVAL);
    server.restart();
    wait_for(&mut watcher, "the worker is a member", SOON, |map| map.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_desired_state_survives_the_server_and_even_its_disk() {
    let mut server = Server::start("");
    let (writer, gateway) = (connect(&server).await, connect(&server).await);
    let (mut watcher, mut members) = (gateway.watch_desired(), gateway.watch());
    writer.set_desired(desired("removed", 1)).await.unwrap();
    writer.remove_desired("removed").await.unwrap();
    // The last change: once it has arrived, all have.
    writer.set_desired(desired("kept", 1)).await.unwrap();
    wait_for_desired(&mut watcher, "one model", |models| models.contains_key("kept") && models.len() == 1)
        .await;
    wait_for(&mut members, "NATS is connected", SOON, MemberMap::is_connected).await;
    server.kill();
    wait_for(&mut members, "NATS is away", SOON, |map| !map.is_connected()).await;
    assert_eq!(watcher.models().unwrap().len(), 1, "the last known state is kept");
    server.restart();
    let mut late = connect(&server).await.watch_desired();
    wait_for_desired(&mut late, "it was on disk", |models| models.contains_key("kept") && models.len() == 1)
        .await;

    // A change after the restart arrives, so that the watcher knows the bucket.
    wait_for(&mut members, "NATS is back", SOON, MemberMap::is_connected).await;
    gateway.set_desired(desired("later", 1)).await.unwrap();
    wait_for_desired(&mut watcher, "two models", |models| models.len() == 2).await;
    drop(late);
    server.kill();
    server.erase();
    server.restart();
    let mut late = connect(&server).await.watch_desired();
    wait_for_desired(&mut late, "gateways restore what is lost", |models| models.len() == 2).await;
    assert_eq!(watcher.models().unwrap().len(), 2);
}
