//! Every query of the Grafana dashboard of pools matches metrics that gateways export.

use std::time::{Duration, Instant};

use sconce_registry::DesiredState;
use sconce_testkit::dashboard::check;
use tokio::time::sleep;

use crate::harness::{Gateway, pool};
use crate::manager::{Fleet, desired};
use crate::stand_in::Behaviour;

const DASHBOARD: &str = include_str!("../../../../packaging/grafana/sconce-pool.json");
const LIMIT: Duration = Duration::from_mins(1);

/// Sends requests until a page of metrics has a line that starts with `sample`.
async fn page_with(gateway: &Gateway, sample: &str) -> String {
    let start = Instant::now();
    loop {
        let page = gateway.client.get("/metrics").await.text();
        if page.lines().any(|line| line.starts_with(sample)) {
            return page;
        }
        assert!(start.elapsed() < LIMIT, "no `{sample}` in:\n{page}");
        gateway.client.embed(&[]).await;
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_of_the_dashboard_is_answered() {
    let (gateway, workers, _registry) = pool(2).await;
    for _ in 0..200 {
        assert!(gateway.client.embed(&[]).await.is_ok());
    }
    workers[0].state.set(Behaviour::Answer(Duration::from_millis(500), 16));
    let mut pages = vec![page_with(&gateway, "sconce_gateway_hedges_total{").await];
    workers[0].state.set(Behaviour::Refuse(503, "paused", 1));
    pages.push(page_with(&gateway, "sconce_gateway_retries_total{").await);
    for worker in &workers {
        worker.state.set(Behaviour::Answer(Duration::from_secs(2), 16));
    }
    let client = gateway.client.clone();
    let waiting = tokio::spawn(async move { client.embed(&[]).await });
    let start = Instant::now();
    while !pages.last().is_some_and(|page| page.contains("sconce_gateway_in_flight{")) {
        assert!(start.elapsed() < LIMIT, "no request is in flight");
        pages.push(gateway.client.get("/metrics").await.text());
    }
    waiting.abort();
    assert_eq!(gateway.client.post("/v1/embeddings", &[], "{").await.status, 400);
    pages.push(gateway.client.get("/metrics").await.text());

    let fleet = Fleet::start(&[100], 1, &[("m", 10)]).await;
    fleet.set(desired("m", 1, 1)).await;
    fleet.settle("m runs").await;
    let of_fleet = &fleet.gateways[0];
    pages.push(page_with(of_fleet, "sconce_gateway_model_loads_total{").await);
    fleet.registry.remove_desired("m").await.unwrap();
    pages.push(page_with(of_fleet, "sconce_gateway_model_unloads_total{").await);
    check(DASHBOARD, &pages, "sconce_");
}
