//! Workers of unlike speeds share the work in proportion.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sconce_pool::gateway::{Backend, GatewaySettings};
use sconce_registry::{InProcess, Registry};
use tokio::time::sleep;

use crate::client::Client;
use crate::harness::{CLASS, Gateway};
use crate::stand_in::{Behaviour, StandIn, TOKENS};

/// Time of one request at workers of speeds 1 : 5 : 40.
const TIMES: [Duration; 3] =
    [Duration::from_millis(800), Duration::from_millis(160), Duration::from_millis(20)];

/// Requests per second of clients that always have `in_flight` requests.
async fn rate(clients: &[Client], in_flight: usize) -> f64 {
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for index in 0..in_flight {
        let (client, stop, count) =
            (clients[index % clients.len()].clone(), Arc::clone(&stop), Arc::clone(&count));
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let answer = client.embed(&[]).await;
                assert!(answer.is_ok(), "{} {}", answer.status, answer.text());
                count.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    sleep(Duration::from_secs(1)).await;
    let (before, start) = (count.load(Ordering::SeqCst), Instant::now());
    sleep(Duration::from_secs(4)).await;
    let rate = (count.load(Ordering::SeqCst) - before) as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    rate
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_speeds_1_5_40_are_all_used() {
    let registry = Arc::new(InProcess::new());
    let (mut workers, mut alone) = (Vec::new(), 0.0);
    for (index, time) in TIMES.iter().enumerate() {
        let speed = TOKENS as f64 / time.as_secs_f64();
        let registry = Arc::clone(&registry) as Arc<dyn Registry>;
        let worker = StandIn::start(registry, &format!("w{index}"), CLASS, speed as f32).await;
        worker.state.set(Behaviour::Serial(*time));
        let address = worker.registration.url.trim_start_matches("http://").parse().unwrap();
        alone += rate(&[Client::new(address)], 4).await;
        workers.push(worker);
    }
    for count in [1, 2, 4] {
        let mut gateways = Vec::new();
        for _ in 0..count {
            let backend = Arc::clone(&registry) as Arc<dyn Backend>;
            gateways.push(Gateway::start(backend, GatewaySettings::default()).await);
        }
        for gateway in &gateways {
            gateway.wait_for_members(3).await;
        }
        let clients: Vec<Client> = gateways.iter().map(|gateway| gateway.client.clone()).collect();
        let together = rate(&clients, 64).await;
        println!("{count} gateways: {together:.1} requests/s, {:.3} of {alone:.1} alone", together / alone);
        assert!(together > 0.85 * alone, "{together} of {alone}");
    }
}
