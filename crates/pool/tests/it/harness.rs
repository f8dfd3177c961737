//! A gateway with stand-ins for workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sconce_pool::gateway::{Backend, GatewaySettings, serve};
use sconce_registry::{InProcess, Registry};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::client::Client;
use crate::stand_in::StandIn;

/// A class of the tests.
pub(crate) const CLASS: &str = "aaaaaaaaaaaa-half";

/// A running gateway. It stops when it is dropped.
pub(crate) struct Gateway {
    pub(crate) client: Client,
    _stop: oneshot::Sender<()>,
}

impl Gateway {
    pub(crate) async fn start(registry: Arc<dyn Backend>, settings: GatewaySettings) -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(async move {
            let stop = async {
                let _: Result<(), _> = stopped.await;
            };
            serve(listener, registry, settings, stop).await.unwrap();
        });
        Gateway { client: Client::new(address), _stop: stop }
    }

    /// Waits until the gateway knows this many members.
    pub(crate) async fn wait_for_members(&self, count: usize) {
        let start = Instant::now();
        loop {
            let report = self.client.get("/v1/report").await.json();
            if report["members"].as_array().unwrap().len() == count {
                // The map is followed at an interval.
                sleep(Duration::from_millis(20)).await;
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{report:#}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The value of a metric, by the start of its line.
    pub(crate) async fn metric(&self, line: &str) -> usize {
        let text = self.client.get("/metrics").await.text();
        let found = text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or(0)
    }

    /// Requests by outcome: ok, refused, failed, cancelled.
    pub(crate) async fn outcomes(&self) -> [usize; 4] {
        let mut outcomes = [0; 4];
        for (count, outcome) in outcomes.iter_mut().zip(["ok", "refused", "failed", "cancelled"]) {
            *count = self.metric(&format!("sconce_gateway_requests_total{{outcome=\"{outcome}\"}}")).await;
        }
        outcomes
    }
}

/// A gateway and stand-ins of equal speed in one process.
pub(crate) async fn pool(count: usize) -> (Gateway, Vec<StandIn>, Arc<InProcess>) {
    pool_with(count, GatewaySettings::default()).await
}

/// The same with settings.
pub(crate) async fn pool_with(
    count: usize,
    settings: GatewaySettings,
) -> (Gateway, Vec<StandIn>, Arc<InProcess>) {
    let registry = Arc::new(InProcess::new());
    let mut workers = Vec::new();
    for index in 0..count {
        let registry = Arc::clone(&registry) as Arc<dyn Registry>;
        workers.push(StandIn::start(registry, &format!("w{index}"), CLASS, 1000.0).await);
    }
    let gateway = Gateway::start(Arc::clone(&registry) as Arc<dyn Backend>, settings).await;
    gateway.wait_for_members(count).await;
    (gateway, workers, registry)
}
