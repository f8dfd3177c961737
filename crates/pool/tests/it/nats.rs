//! Gateways on NATS.

use std::sync::Arc;
use std::time::Duration;

use sconce_pool::gateway::{Backend, GatewaySettings};
use sconce_registry::{NatsOptions, NatsRegistry, Registry};
use tokio::time::sleep;

use crate::harness::{CLASS, Gateway};
use crate::stand_in::{StandIn, TTL};
use sconce_testkit::nats::NatsServer as Server;

async fn connect(server: &Server) -> Arc<NatsRegistry> {
    Arc::new(NatsRegistry::connect(NatsOptions::new([server.url()])).await.unwrap())
}

async fn gateway(server: &Server) -> Gateway {
    Gateway::start(connect(server).await as Arc<dyn Backend>, GatewaySettings::default()).await
}

async fn worker(server: &Server, id: &str, class: &str) -> StandIn {
    StandIn::start(connect(server).await as Arc<dyn Registry>, id, class, 1000.0).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routing_continues_while_nats_is_away() {
    let mut server = Server::start("");
    let workers = [worker(&server, "w0", CLASS).await, worker(&server, "w1", CLASS).await];
    let gateway = gateway(&server).await;
    gateway.wait_for_members(2).await;
    let index = [("x-sconce-index", "docs")];
    assert!(gateway.client.embed(&index).await.is_ok());
    server.kill();
    let start = std::time::Instant::now();
    let mut sent = 0;
    while start.elapsed() < TTL * 2 {
        assert!(gateway.client.embed(&[]).await.is_ok());
        assert!(gateway.client.embed(&index).await.is_ok(), "a known binding needs no NATS");
        sent += 2;
        sleep(Duration::from_millis(10)).await;
    }
    let report = gateway.client.get("/v1/report").await.json();
    assert_eq!(report["registry"]["connected"], false);
    assert_eq!(report["members"].as_array().unwrap().len(), 2, "the last map is kept");
    // A worker that dies meanwhile is found by its circuit breaker.
    workers[0].kill();
    for _ in 0..100 {
        assert!(gateway.client.embed(&[]).await.is_ok());
    }
    let unknown = gateway.client.embed(&[("x-sconce-index", "new")]).await;
    assert_eq!(unknown.status, 503, "a new binding needs NATS");
    server.restart();
    let back = std::time::Instant::now();
    gateway.wait_for_members(1).await;
    println!("{sent} requests without NATS; whole {:?} after its return", back.elapsed());
    assert!(gateway.client.embed(&[("x-sconce-index", "new")]).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_never_mix_the_classes_of_an_index() {
    let server = Server::start("");
    let classes = ["aaaaaaaaaaaa-exact", "bbbbbbbbbbbb-coarse"];
    let _workers = [worker(&server, "f32", classes[0]).await, worker(&server, "int8", classes[1]).await];
    let gateways = [gateway(&server).await, gateway(&server).await];
    for gateway in &gateways {
        gateway.wait_for_members(2).await;
    }
    let count = std::env::var("SCONCE_PINNED").ok().and_then(|count| count.parse().ok()).unwrap_or(2000);
    let mut tasks = Vec::new();
    for task in 0..8 {
        let client = gateways[task % 2].client.clone();
        tasks.push(tokio::spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..count / 8 {
                let answer = client.embed(&[("x-sconce-index", "docs")]).await;
                assert!(answer.is_ok(), "{}", answer.text());
                assert_eq!(answer.json()["class"], answer.header("x-sconce-class"));
                seen.push(answer.header("x-sconce-class").to_owned());
            }
            seen
        }));
    }
    let mut seen = Vec::new();
    for task in tasks {
        seen.extend(task.await.unwrap());
    }
    let first = seen[0].clone();
    assert!(seen.iter().all(|class| *class == first), "one class");
    println!("{} pinned requests over two classes: all of {first}", seen.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_hold_the_rate_of_a_key_together() {
    const RATE: usize = 50;
    let server = Server::start("");
    let _worker = worker(&server, "w0", CLASS).await;
    let mut settings = GatewaySettings::default();
    settings.http.keys = sconce_http::Keys::read(&format!("one rate={RATE}\nother operator")).unwrap();
    let mut gateways = Vec::new();
    for _ in 0..2 {
        gateways.push(Gateway::start(connect(&server).await as Arc<dyn Backend>, settings.clone()).await);
    }
    for gateway in &gateways {
        while gateway.client.get("/readyz").await.status != 200 {
            sleep(Duration::from_millis(20)).await;
        }
    }
    // The map is followed at an interval, and subscriptions begin in the background.
    sleep(Duration::from_millis(500)).await;
    let seconds = 6;
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let client = gateways[task % 2].client.clone();
            tokio::spawn(async move {
                let (start, mut tokens) = (std::time::Instant::now(), 0);
                while start.elapsed() < Duration::from_secs(seconds) {
                    let answer = client.embed(&[("authorization", "Bearer one")]).await;
                    if answer.is_ok() {
                        tokens += answer.header("x-sconce-tokens").parse::<usize>().unwrap();
                    } else {
                        assert_eq!((answer.status, answer.header("x-sconce-code")), (429, "rate_limited"));
                        sleep(Duration::from_millis(20)).await;
                    }
                }
                tokens
            })
        })
        .collect();
    let mut tokens = 0;
    for task in tasks {
        tokens += task.await.unwrap();
    }
    // A bucket starts with two seconds of its rate.
    let allowed = RATE as f64 * (seconds as f64 + 2.0);
    let ratio = tokens as f64 / allowed;
    println!("{tokens} tokens through two gateways, {allowed} allowed: {ratio:.3}");
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}
