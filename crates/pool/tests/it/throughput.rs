//! Workers of unlike speeds share the work in proportion.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sconce_pool::gateway::{Backend, GatewaySettings};
use sconce_registry::{InProcess, Registry};
use tokio::time::sleep;

use crate::harness::{CLASS, Gateway};
use crate::stand_in::{Behaviour, StandIn, TOKENS};

/// Time of one request at workers of speeds 1 : 5 : 40.
const TIMES: [Duration; 3] =
    [Duration::from_millis(800), Duration::from_millis(160), Duration::from_millis(20)];
const SECONDS: Duration = Duration::from_secs(4);
const IN_FLIGHT: usize = 64;

/// For `SECONDS`, clients always have `IN_FLIGHT` requests at these gateways: the requests answered, and those that
/// workers would have answered without a pause, by the time that each took for one.
async fn answered_and_possible(gateways: &[Gateway], workers: &[StandIn]) -> (f64, f64) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for index in 0..IN_FLIGHT {
        let (client, stop) = (gateways[index % gateways.len()].client.clone(), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let answer = client.embed(&[]).await;
                assert!(answer.is_ok(), "{} {}", answer.status, answer.text());
            }
        }));
    }
    sleep(Duration::from_secs(1)).await;
    let before: Vec<_> =
        workers.iter().map(|worker| (*worker.state.computed.lock().unwrap(), Instant::now())).collect();
    sleep(SECONDS).await;
    let (mut answered, mut possible) = (0.0, 0.0);
    for ((worker, time), ((requests, busy), start)) in workers.iter().zip(TIMES).zip(before) {
        let (requests_now, busy_now) = *worker.state.computed.lock().unwrap();
        let (elapsed, requests) = (start.elapsed().as_secs_f64(), (requests_now - requests) as f64);
        let busy = busy_now.as_secs_f64() - busy.as_secs_f64();
        assert!(requests > 0.0, "a worker of {time:?} got no request");
        answered += requests;
        possible += requests * elapsed / busy;
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    (answered, possible)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_speeds_1_5_40_are_all_used() {
    let registry = Arc::new(InProcess::new());
    let mut workers = Vec::new();
    for (index, time) in TIMES.iter().enumerate() {
        let speed = TOKENS as f64 / time.as_secs_f64();
        let registry = Arc::clone(&registry) as Arc<dyn Registry>;
        let worker = StandIn::start(registry, &format!("w{index}"), CLASS, speed as f32).await;
        worker.state.set(Behaviour::Serial(*time));
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
        let (answered, possible) = answered_and_possible(&gateways, &workers).await;
        println!("{count} gateways: {answered} requests, {:.3} of {possible:.1}", answered / possible);
        assert!(answered > 0.9 * possible, "{answered} of {possible}");
    }
}
