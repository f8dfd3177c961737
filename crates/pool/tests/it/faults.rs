//! Workers that die, hang, refuse or are slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sconce_registry::WorkerState;
use tokio::time::sleep;

use crate::harness::{Gateway, pool};
use crate::stand_in::Behaviour;

/// Sends requests on `count` connections until it is stopped.
struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    ok: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(gateway: &Gateway, count: usize) -> Load {
        Load::with(gateway, count, &[])
    }

    fn with(gateway: &Gateway, count: usize, headers: &'static [(&str, &str)]) -> Load {
        let (stop, sent, ok) = (Arc::default(), Arc::default(), Arc::default());
        let mut load = Load { stop, sent, ok, tasks: Vec::new() };
        for _ in 0..count {
            let (client, stop) = (gateway.client.clone(), Arc::clone(&load.stop));
            let (sent, ok) = (Arc::clone(&load.sent), Arc::clone(&load.ok));
            load.tasks.push(tokio::spawn(async move {
                let mut failures = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    sent.fetch_add(1, Ordering::SeqCst);
                    let answer = client.embed(headers).await;
                    if answer.is_ok() {
                        ok.fetch_add(1, Ordering::SeqCst);
                    } else {
                        failures.push(format!("{} {}", answer.status, answer.text()));
                    }
                }
                failures
            }));
        }
        load
    }

    /// Stops and returns the number of requests, and those that failed.
    async fn stop(self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::SeqCst);
        let mut failures = Vec::new();
        for task in self.tasks {
            failures.extend(task.await.unwrap());
        }
        assert_eq!(self.sent.load(Ordering::SeqCst), self.ok.load(Ordering::SeqCst) + failures.len());
        (self.sent.load(Ordering::SeqCst), failures)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_under_load_costs_no_request() {
    let (gateway, workers, _registry) = pool(3).await;
    for worker in &workers {
        worker.state.set(Behaviour::Answer(Duration::from_millis(5), 64));
    }
    let load = Load::start(&gateway, 16);
    sleep(Duration::from_millis(500)).await;
    workers[1].kill();
    sleep(Duration::from_millis(1500)).await;
    let before = workers[1].state.count();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(workers[1].state.count(), before, "the dead worker gets nothing");
    let (sent, failures) = load.stop().await;
    assert!(failures.is_empty(), "{} of {sent} failed: {:?}", failures.len(), failures.first());
    assert!(sent > 30, "{sent}");
    let [ok, refused, failed, cancelled] = gateway.outcomes().await;
    assert_eq!((ok, refused, failed, cancelled), (sent, 0, 0, 0), "every request is accounted for");
    println!("{sent} requests, none failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_under_load_costs_no_request() {
    let (gateway, workers, _registry) = pool(3).await;
    let load = Load::start(&gateway, 8);
    sleep(Duration::from_millis(500)).await;
    workers[1].state.freeze(true);
    sleep(Duration::from_secs(6)).await;
    workers[1].state.freeze(false);
    sleep(Duration::from_secs(1)).await;
    let (sent, failures) = load.stop().await;
    assert!(failures.is_empty(), "{} of {sent} failed: {:?}", failures.len(), failures.first());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_freezes_for_longer_than_a_deadline_costs_no_request() {
    let (gateway, workers, _registry) = pool(3).await;
    for worker in &workers {
        worker.state.set(Behaviour::Answer(Duration::from_millis(20), 64));
    }
    let load = Load::with(&gateway, 2, &[("x-sconce-deadline-ms", "2000")]);
    sleep(Duration::from_secs(2)).await;
    for worker in &workers {
        worker.state.freeze(true);
        sleep(Duration::from_secs(3)).await;
        worker.state.freeze(false);
        sleep(Duration::from_secs(2)).await;
    }
    let (sent, failures) = load.stop().await;
    let metrics = gateway.client.get("/metrics").await.text();
    let lines: Vec<&str> =
        metrics.lines().filter(|line| line.contains("hedges") || line.contains("retries")).collect();
    assert!(failures.is_empty(), "{} of {sent} failed: {:?}; {lines:#?}", failures.len(), failures.first());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_is_held_by_a_gateway_whose_worker_hangs() {
    let (gateway, workers, _registry) = pool(1).await;
    assert!(gateway.client.embed(&[]).await.is_ok());
    workers[0].state.freeze(true);
    for milliseconds in [300, 1000] {
        let answer = gateway.client.embed(&[("x-sconce-deadline-ms", &milliseconds.to_string())]).await;
        assert_eq!((answer.status, answer.header("x-sconce-code")), (503, "timed_out"), "{}", answer.text());
        let limit = Duration::from_millis(milliseconds);
        assert!(
            answer.took >= limit && answer.took < limit + Duration::from_millis(200),
            "{:?}",
            answer.took
        );
    }
    let [_, refused, failed, _] = gateway.outcomes().await;
    assert_eq!((refused, failed), (0, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deadline_is_passed_on() {
    let (gateway, workers, _registry) = pool(1).await;
    gateway.client.embed(&[("x-sconce-deadline-ms", "5000")]).await;
    let headers = workers[0].state.last_headers.lock().unwrap().clone();
    let left: u64 = headers["x-sconce-deadline-ms"].parse().unwrap();
    assert!((4000..=5000).contains(&left), "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_refuses_at_once_does_not_attract_load() {
    let (gateway, workers, _registry) = pool(3).await;
    for worker in &workers {
        worker.state.set(Behaviour::Answer(Duration::from_millis(5), 64));
    }
    workers[2].state.set(Behaviour::Refuse(503, "not_ready", 1));
    let load = Load::start(&gateway, 16);
    sleep(Duration::from_secs(1)).await;
    let (before, all) = (workers[2].state.count(), load.sent.load(Ordering::SeqCst));
    sleep(Duration::from_secs(3)).await;
    let (after, later) = (workers[2].state.count(), load.sent.load(Ordering::SeqCst));
    let (sent, failures) = load.stop().await;
    assert!(failures.is_empty(), "{} of {sent} failed: {:?}", failures.len(), failures.first());
    let (share, count) = (after - before, later - all);
    println!("{share} of {count} requests went to the worker that refuses");
    assert!(share * 100 <= count, "{share} of {count}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn if_all_workers_are_busy_the_smallest_retry_after_is_told() {
    let (gateway, workers, _registry) = pool(3).await;
    for (worker, seconds) in workers.iter().zip([9, 4, 7]) {
        worker.state.set(Behaviour::Refuse(429, "overloaded", seconds));
    }
    // Each request tries two workers; after two requests all of them are known to be busy.
    let mut last = gateway.client.embed(&[]).await;
    for _ in 0..3 {
        last = gateway.client.embed(&[]).await;
    }
    assert_eq!((last.status, last.header("x-sconce-code")), (429, "overloaded"), "{}", last.text());
    assert_eq!(last.header("retry-after"), "4");
    workers[0].state.set(Behaviour::Answer(Duration::ZERO, 1));
    sleep(Duration::from_millis(200)).await;
    for _ in 0..5 {
        let answer = gateway.client.embed(&[]).await;
        assert!(answer.is_ok() || answer.status == 429);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_the_request_itself_is_passed_on() {
    let (gateway, workers, _registry) = pool(2).await;
    for worker in &workers {
        worker.state.set(Behaviour::Refuse(400, "invalid_request", 1));
    }
    let answer = gateway.client.embed(&[]).await;
    assert_eq!((answer.status, answer.header("x-sconce-code")), (400, "invalid_request"));
    assert_eq!(answer.text(), "{\"error\":\"no\"}");
    assert_eq!(workers[0].state.count() + workers[1].state.count(), 1, "it is not retried");
    assert_eq!(gateway.outcomes().await, [0, 1, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_workers_get_no_requests_and_a_pool_without_any_says_so() {
    let (gateway, workers, _registry) = pool(2).await;
    workers[0].state.enter(WorkerState::Paused);
    sleep(Duration::from_millis(600)).await;
    let before = workers[0].state.count();
    for _ in 0..20 {
        assert!(gateway.client.embed(&[]).await.is_ok());
    }
    assert_eq!(workers[0].state.count(), before);
    workers[1].state.enter(WorkerState::Draining);
    sleep(Duration::from_millis(600)).await;
    let answer = gateway.client.embed(&[]).await;
    assert_eq!((answer.status, answer.header("x-sconce-code")), (503, "not_ready"), "{}", answer.text());
    assert_eq!(gateway.client.get("/readyz").await.status, 503);
    let (empty, _, _registry) = pool(0).await;
    let answer = empty.client.embed(&[]).await;
    assert_eq!((answer.status, answer.header("x-sconce-code")), (503, "not_ready"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_straggler_is_hedged() {
    let (gateway, workers, _registry) = pool(2).await;
    for _ in 0..200 {
        assert!(gateway.client.embed(&[]).await.is_ok());
    }
    workers[0].state.set(Behaviour::Answer(Duration::from_secs(5), 16));
    let start = Instant::now();
    let mut slow = 0;
    for _ in 0..10 {
        let answer = gateway.client.embed(&[]).await;
        assert!(answer.is_ok());
        slow += usize::from(answer.took > Duration::from_secs(4));
    }
    println!("{slow} of 10 requests waited for the straggler; all took {:?}", start.elapsed());
    assert!(slow <= 2, "{slow}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_has_one_outcome() {
    let count = std::env::var("SCONCE_ACCOUNTED").ok().and_then(|count| count.parse().ok()).unwrap_or(1600);
    let (gateway, workers, _registry) = pool(3).await;
    let answered = Duration::from_micros(500);
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let client = gateway.client.clone();
            tokio::spawn(async move {
                let mut seen = [0; 3];
                for number in 0..count / 16 {
                    let path = if number % 10 == 0 { "/no/such/route" } else { "/v1/embeddings" };
                    let body = if number % 7 == 0 { "no JSON" } else { r#"{"model": "m", "input": "a"}"# };
                    let answer = client.post(path, &[], body).await;
                    let outcome = match answer.status {
                        200 if answer.complete => 0,
                        500.. => 2,
                        _ => 1,
                    };
                    // Routes that do not exist are not forwarded.
                    seen[outcome] += usize::from(path != "/no/such/route");
                }
                seen
            })
        })
        .collect();
    let chaos = tokio::spawn(async move {
        for round in 0.. {
            let states = [
                Behaviour::Answer(answered, 16),
                Behaviour::Answer(answered, 100_000),
                Behaviour::Answer(answered, 1_000_000),
                Behaviour::Refuse(503, "not_ready", 1),
                Behaviour::Refuse(429, "overloaded", 1),
                Behaviour::Refuse(500, "model_fault", 1),
            ];
            for (index, worker) in workers.iter().enumerate() {
                // The first worker fails seldom, so that most requests are answered.
                let state = if index == 0 { (round % 20) / 19 * 5 } else { (round + index) % states.len() };
                worker.state.set(states[state].clone());
            }
            sleep(Duration::from_millis(100)).await;
        }
    });
    let mut seen = [0; 3];
    for task in tasks {
        for (all, one) in seen.iter_mut().zip(task.await.unwrap()) {
            *all += one;
        }
    }
    chaos.abort();
    let [ok, refused, failed, cancelled] = gateway.outcomes().await;
    println!("sent {}: ok {ok}, refused {refused}, failed {failed}", seen.iter().sum::<usize>());
    assert_eq!(([ok, refused, failed], cancelled), (seen, 0));
    assert!(ok > 0 && refused > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_outage_of_the_only_worker_ends_with_its_circuit() {
    let (gateway, workers, _registry) = pool(1).await;
    workers[0].state.set(Behaviour::Refuse(500, "other", 1));
    while gateway.client.get("/v1/report").await.json()["members"][0]["circuit"] == "closed" {
        assert_eq!(gateway.client.embed(&[]).await.status, 500);
    }
    workers[0].state.set(Behaviour::Answer(Duration::ZERO, 1));
    assert!(gateway.client.embed(&[]).await.is_ok(), "the request waits for the probe");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_fails_opens_its_own_circuit_on_the_worker() {
    let (gateway, workers, _registry) = pool(1).await;
    workers[0].state.set(Behaviour::Refuse(500, "model_fault", 1));
    let member = async || gateway.client.get("/v1/report").await.json()["members"][0].clone();
    while member().await["model_circuits"].as_object().is_none_or(serde_json::Map::is_empty) {
        assert_eq!(gateway.client.embed(&[]).await.status, 500);
    }
    assert_eq!(member().await["circuit"], "closed", "other models are served");
    workers[0].state.set(Behaviour::Answer(Duration::ZERO, 1));
    assert!(gateway.client.embed(&[]).await.is_ok(), "the request waits for the probe");
    assert_eq!(member().await["model_circuits"], serde_json::json!({}));
}
