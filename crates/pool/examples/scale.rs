//! What a pool of many workers costs.
//!
//! - `scale map WORKERS`: memory of a gateway's map, and the time of an update and of a choice.
//! - `scale nats URL WORKERS GATEWAYS SECONDS`: workers that send heartbeats to NATS, and gateways that watch them.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sconce_pool::balancer::Balancer;
use sconce_pool::choose::Request;
use sconce_pool::random::Random;
use sconce_registry::{
    BootId, Heartbeat, Load, MemberMap, ModelRecord, NatsOptions, NatsRegistry, ObstacleRecord,
    PlacementRecord, Rates, Registration, Registry, WorkerState,
};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

/// Interval of heartbeats and their time to live, as a worker has them.
const INTERVAL: Duration = Duration::from_millis(650);
const TTL: Duration = Duration::from_secs(2);
/// Workers that share a connection to NATS.
const SHARED: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["map", workers] => map(workers.parse()?),
        ["nats", url, workers, gateways, seconds] => {
            let run = nats(url, workers.parse()?, gateways.parse()?, Duration::from_secs(seconds.parse()?));
            tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run)
        }
        _ => Err("usage: scale map WORKERS | scale nats URL WORKERS GATEWAYS SECONDS".into()),
    }
}

/// The boot of all workers.
fn boot() -> BootId {
    static BOOT: OnceLock<BootId> = OnceLock::new();
    *BOOT.get_or_init(|| BootId::at(1))
}

/// A worker with two models, and placements that it can't use.
fn registration(number: usize) -> Registration {
    let placement = |at: usize| PlacementRecord {
        placement: format!("engine{at}/cpu/f32"),
        active: at == 0,
        class: (at < 2).then(|| format!("{at:012x}-exact")),
        band: (at < 2).then(|| "exact".to_owned()),
        obstacle: (at >= 2).then(|| ObstacleRecord {
            code: "not_built".to_owned(),
            message: "this program was built without the feature that this engine needs".to_owned(),
        }),
    };
    let model = |name: &str| ModelRecord {
        model: name.to_owned(),
        aliases: vec![format!("sentence-transformers/{name}")],
        task: "embed".to_owned(),
        max_length: 512,
        managed: false,
        placements: (0..6).map(placement).collect(),
    };
    Registration {
        worker_id: format!("worker-{number:06}"),
        boot_id: boot(),
        url: format!("http://10.0.{}.{}:8080", number / 256, number % 256),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ttl_ms: TTL.as_millis() as u64,
        models: vec![model("all-MiniLM-L6-v2"), model("bge-reranker-base")],
        failure: None,
    }
}

fn heartbeat(number: usize, sequence: u64) -> Heartbeat {
    let rate = 1000.0 * (1 + number % 40) as f32;
    Heartbeat {
        boot_id: boot(),
        sequence,
        state: WorkerState::Ready,
        load: Load { requests: (sequence % 9) as u32, tokens: sequence * 37 % 5000, latency: 0.004 },
        rates: Rates { small: rate, medium: rate, large: rate },
        free_memory: BTreeMap::from([("cpu".to_owned(), 12_000)]),
    }
}

/// Resident set size in bytes.
fn resident() -> Result<u64, Box<dyn Error>> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    Ok(pages.split(' ').nth(1).ok_or("statm has no second field")?.parse::<u64>()? * 4096)
}

fn map(workers: usize) -> Result<(), Box<dyn Error>> {
    let (before, now) = (resident()?, Instant::now());
    let (mut map, mut balancer) = (MemberMap::default(), Balancer::default());
    map.connect(now);
    for number in 0..workers {
        // As a watcher has them: parsed from JSON.
        let registration = Registration::decode(&registration(number).encode()?)?;
        map.register(Arc::new(registration), now);
        map.heartbeat(&format!("worker-{number:06}"), heartbeat(number, 1), now);
    }
    let started = Instant::now();
    balancer.update(&map);
    let first = started.elapsed();
    let memory = resident()?.saturating_sub(before);
    let (rounds, mut update) = (20, Duration::ZERO);
    for sequence in 2..2 + rounds {
        let some = workers.min(100);
        (0..some).for_each(|number| {
            map.heartbeat(&format!("worker-{number:06}"), heartbeat(number, sequence), now);
        });
        let started = Instant::now();
        balancer.update(&map);
        update += started.elapsed();
    }
    let (choices, mut random) = (100_000, Random::seeded(1));
    let started = Instant::now();
    for _ in 0..choices {
        balancer
            .choose(&Request::new("all-MiniLM-L6-v2", 100), now, &mut random)
            .map_err(|error| format!("{error:?}"))?;
    }
    println!(
        "{workers} workers: registration {} B, heartbeat {} B, {:.1} MB ({:.1} kB a worker), first update {first:.1?}, \
         update {:.1?}, choice {:.0?}",
        registration(1).encode()?.len(),
        heartbeat(1, 1_000_000).encode()?.len(),
        memory as f64 / 1e6,
        memory as f64 / 1e3 / workers as f64,
        update / rounds as u32,
        started.elapsed() / choices,
    );
    Ok(())
}

async fn nats(url: &str, workers: usize, gateways: usize, time: Duration) -> Result<(), Box<dyn Error>> {
    let options = NatsOptions { pool: format!("scale{workers}"), ..NatsOptions::new([url.to_owned()]) };
    let mut watchers = Vec::new();
    for _ in 0..gateways {
        watchers.push(NatsRegistry::connect(options.clone()).await?.watch());
    }
    let (sent, failed, slowest) = <(Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for first in (0..workers).step_by(SHARED) {
        let registry = Arc::new(NatsRegistry::connect(options.clone()).await?);
        for number in first..(first + SHARED).min(workers) {
            let (registry, sent, failed) = (Arc::clone(&registry), Arc::clone(&sent), Arc::clone(&failed));
            let slowest = Arc::clone(&slowest);
            tasks.spawn(async move {
                // Workers start at different times.
                sleep(INTERVAL * (number % 97) as u32 / 97).await;
                let registered = registry.register(registration(number), heartbeat(number, 1)).await;
                failed.fetch_add(u64::from(registered.is_err()), Ordering::Relaxed);
                let (mut ticks, mut sequence) = (interval(INTERVAL), 1);
                loop {
                    ticks.tick().await;
                    sequence += 1;
                    let started = Instant::now();
                    let beat =
                        registry.heartbeat(&format!("worker-{number:06}"), heartbeat(number, sequence)).await;
                    slowest.fetch_max(started.elapsed().as_millis() as u64, Ordering::Relaxed);
                    let counter = if beat.is_ok() { &sent } else { &failed };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }
    let connected = started.elapsed();
    for watcher in &mut watchers {
        watcher.wait_for(|map| map.len() == workers).await;
    }
    let known = started.elapsed();
    sleep(INTERVAL * 2).await;
    let expirations = |watchers: &[sconce_registry::Watcher]| -> u64 {
        watchers.iter().map(|watcher| watcher.read(MemberMap::expirations)).sum()
    };
    let (before, gone, began) = (sent.load(Ordering::Relaxed), expirations(&watchers), Instant::now());
    slowest.store(0, Ordering::Relaxed);
    let (mut samples, mut lags) = (0_u32, Vec::new());
    while began.elapsed() < time {
        sleep(Duration::from_millis(50)).await;
        samples += 1;
        let oldest =
            |map: &MemberMap| map.iter().map(|member| member.received.elapsed()).max().unwrap_or_default();
        lags.extend(watchers.iter().map(|watcher| watcher.read(oldest)));
    }
    lags.sort();
    let rate = (sent.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
    println!(
        "{workers} workers, {gateways} gateways: connected in {connected:.1?}, all known in {known:.1?}; {rate:.0} heartbeats/s of \
         {:.0} due, slowest write {} ms, {} failed; oldest heartbeat p50 {:.0?}, max {:.0?}; {} expired; {samples} samples",
        workers as f64 / INTERVAL.as_secs_f64(),
        slowest.load(Ordering::Relaxed),
        failed.load(Ordering::Relaxed),
        lags[lags.len() / 2],
        lags[lags.len() - 1],
        expirations(&watchers) - gone,
    );
    Ok(())
}
