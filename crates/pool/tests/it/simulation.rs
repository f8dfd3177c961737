//! The pool on a simulated clock: choice, member map, breakers, retries and hedges of several gateways together.
//!
//! `SCONCE_SIMULATION_SEEDS` runs that many seeds with 1,000 workers and 16 gateways.

mod events;
mod worker;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use self::world::{Clients, Policy, SECOND, Setup, World};

/// Rates of workers whose speeds are as 1 to 5 to 40.
fn rates(each: usize) -> Vec<f64> {
    [500.0, 2500.0, 20_000.0].into_iter().flat_map(|rate| std::iter::repeat_n(rate, each)).collect()
}

fn setup(seed: u64, each: usize, gateways: usize) -> Setup {
    Setup {
        seed,
        rates: rates(each),
        gateways,
        clients: Clients::Closed { seconds: 1.0 },
        policy: Policy::Balancer,
        warmup: 2 * SECOND,
        end: 12 * SECOND,
        faults: 0.0,
        hedges: false,
        reports: true,
        stale: true,
        failing: Vec::new(),
    }
}

/// What a simulation measured.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// Served fraction of the sum of all rates.
    throughput: f64,
    /// Largest relative difference between the served fraction of a worker without faults and the mean.
    deviation: f64,
    p99: f64,
}

/// Runs a simulation, and checks that every request ended once.
fn run(setup: Setup) -> (Figures, World) {
    let seed = setup.seed;
    let world = World::new(setup).run();
    let counts = world.counts;
    assert_eq!(counts.sent, counts.ok + counts.refused + counts.failed, "seed {seed}: {counts:?}");
    assert_eq!(counts.sent, world.requests.len() as u64);
    for request in &world.requests {
        assert_eq!(request.answers, 1, "seed {seed}: {request:?}");
        assert!(request.copies.iter().all(Option::is_none), "seed {seed}: {request:?}");
    }
    assert!(counts.hedges * 10 <= counts.sent, "seed {seed}: {counts:?}");
    (figures(&world), world)
}

fn figures(world: &World) -> Figures {
    let measured = (world.setup.end - world.setup.warmup) as f64;
    // Rate and served fraction of workers without faults.
    let fractions: Vec<(f64, f64)> = (0..world.workers.len())
        .filter(|at| !world.workers[*at].is_disturbed && !world.workers[*at].fails)
        .map(|at| {
            let served = world.measured[1][at].served - world.measured[0][at].served;
            (world.workers[at].rate, served as f64 / measured)
        })
        .collect();
    let capacity: f64 = fractions.iter().map(|(rate, _)| rate).sum();
    let throughput = fractions.iter().map(|(rate, served)| rate * served).sum::<f64>() / capacity;
    let deviations = fractions.iter().map(|(_, served)| (served / throughput - 1.0).abs());
    let deviation = deviations.fold(0.0, |worst, one| if one > worst || one.is_nan() { one } else { worst });
    let mut latencies = world.latencies.clone();
    let at = latencies.len() * 99 / 100;
    let p99 = *latencies.select_nth_unstable(at).1 as f64 / SECOND as f64;
    Figures { throughput, deviation, p99 }
}

#[test]
fn saturated_gateways_use_the_sum_of_all_rates() {
    for gateways in [1, 2, 4, 16] {
        for each in [1, 10] {
            let (figures, _) = run(setup(7, each, gateways));
            println!("{each} of each speed, {gateways} gateways: {figures:?}");
            assert!(figures.throughput >= 0.95, "{gateways} gateways: {figures:?}");
            assert!(figures.deviation <= 0.1, "{gateways} gateways: {figures:?}");
        }
    }
}

#[test]
fn the_balancer_neither_wastes_fast_workers_nor_herds() {
    // Two uniform draws keep the fast workers waiting for the slow ones.
    let (uniform, _) = run(Setup { policy: Policy::UniformTwo, ..setup(3, 10, 4) });
    assert!(uniform.throughput < 0.8, "{uniform:?}");
    // A scan of all workers sends the requests of all gateways to the same worker.
    let open = Setup { clients: Clients::Open { load: 0.8 }, reports: false, ..setup(3, 10, 16) };
    let (scan, _) = run(Setup { policy: Policy::Scan, ..open.clone() });
    let (balancer, _) = run(open);
    println!("uniform {uniform:?}, scan {scan:?}, balancer {balancer:?}");
    assert!(2.0 * balancer.p99 < scan.p99, "{balancer:?}, {scan:?}");
}

#[test]
fn a_worker_that_fails_fast_gets_at_most_one_percent_of_requests() {
    for gateways in [1, 2, 4] {
        let base = setup(11, 1, gateways);
        let failing = Setup {
            rates: base.rates.iter().map(|rate| rate * 20.0).collect(),
            clients: Clients::Open { load: 0.1 },
            failing: vec![2],
            warmup: SECOND,
            ..base
        };
        let (_, world) = run(failing);
        let [before, after] = &world.measured;
        let got: Vec<u64> = before.iter().zip(after).map(|(a, b)| b.requests - a.requests).collect();
        let all: u64 = got.iter().sum();
        println!("{gateways} gateways: {got:?}, {:?}", world.counts);
        assert!(got[2] * 100 <= all, "{gateways} gateways: {got:?}");
        assert_eq!(world.counts.failed, 0, "{:?}", world.counts);
    }
}

/// A pool with deaths, partitions and late heartbeats. `seconds` is the length of the queues.
fn faulty(seed: u64, each: usize, gateways: usize, faults: f64, seconds: f64) -> Setup {
    let base = setup(seed, each, gateways);
    Setup {
        clients: Clients::Closed { seconds },
        warmup: SECOND,
        end: 6 * SECOND,
        faults,
        hedges: seed.is_multiple_of(2),
        ..base
    }
}

/// The worst figures of several seeds.
#[derive(Debug, Default)]
struct Worst {
    seeds: u64,
    requests: u64,
    failed: u64,
    idle: f64,
    /// The seeds above 10 %.
    uneven: Vec<u64>,
    deviation: f64,
    p99: f64,
}

/// Runs seeds on all cores, and checks each.
fn run_faulty(seeds: u64, setup: impl Fn(u64) -> Setup + Sync) {
    let (next, worst) = (AtomicU64::new(0), Mutex::new(Worst::default()));
    let run_next = || {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let (figures, world) = (seed < seeds).then(|| run(setup(seed)))?;
        let mut worst = worst.lock().unwrap();
        worst.seeds += 1;
        worst.requests += world.counts.sent;
        worst.failed += world.counts.failed;
        worst.idle = worst.idle.max(1.0 - figures.throughput);
        worst.deviation = worst.deviation.max(figures.deviation);
        worst.p99 = worst.p99.max(figures.p99);
        if !(figures.throughput >= 0.95 && figures.deviation <= 0.1) {
            worst.uneven.push(seed);
        }
        if worst.seeds.is_multiple_of(100) {
            println!("{worst:?}");
        }
        Some(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| while run_next().is_some() {});
        }
    });
    let worst = worst.into_inner().unwrap();
    println!("{worst:?}");
    assert_eq!(worst.seeds, seeds, "every seed ran");
    assert!(worst.uneven.is_empty(), "{worst:?}");
}

#[test]
fn faults_lose_no_request_and_keep_the_load_even() {
    run_faulty(40, |seed| faulty(seed, 8, 4, 1.0, 1.5));
}

#[test]
fn a_thousand_workers_and_sixteen_gateways_keep_the_load_even() {
    let seeds = std::env::var("SCONCE_SIMULATION_SEEDS").ok().and_then(|count| count.parse().ok());
    run_faulty(seeds.unwrap_or(1), |seed| faulty(seed, 334, 16, 20.0, 1.5));
}
