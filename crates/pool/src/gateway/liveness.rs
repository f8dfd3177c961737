//! Finds dead workers that have requests in flight: a worker whose heartbeats are late, or can't be seen, is probed.

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use sconce_registry::{BootId, Registration, Watcher};
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::worker_client::WorkerClient;

/// Interval of checks.
const INTERVAL: Duration = Duration::from_millis(250);
/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Failed probes in a row after which a worker is dead.
const MAX_FAILURES: u32 = 2;
/// A heartbeat is late after this fraction of its time to live.
const LATE: f64 = 0.6;

/// One start of a worker.
type Key = (String, BootId);

/// The workers that have requests in flight.
#[derive(Default)]
pub(super) struct Liveness {
    tracked: Mutex<HashMap<Key, Tracked>>,
}

struct Tracked {
    requests: usize,
    url: String,
    failures: u32,
    probing: bool,
    dead: CancellationToken,
}

/// A request in flight.
pub(super) struct Tracking {
    liveness: Arc<Liveness>,
    key: Key,
    dead: CancellationToken,
}

impl Liveness {
    /// Tracks a request to a worker.
    pub(super) fn track(self: &Arc<Self>, registration: &Registration) -> Tracking {
        let key = (registration.worker_id.clone(), registration.boot_id);
        let mut tracked = self.tracked();
        let entry = tracked.entry(key.clone()).or_insert_with(|| Tracked {
            requests: 0,
            url: format!("{}/livez", registration.url.trim_end_matches('/')),
            failures: 0,
            probing: false,
            dead: CancellationToken::new(),
        });
        entry.requests += 1;
        Tracking { liveness: Arc::clone(self), key, dead: entry.dead.clone() }
    }

    /// Requests in flight by worker.
    pub(super) fn in_flight(&self) -> Vec<(String, i64)> {
        let count = |requests: usize| i64::try_from(requests).unwrap_or(i64::MAX);
        self.tracked().iter().map(|((id, _), tracked)| (id.clone(), count(tracked.requests))).collect()
    }

    fn tracked(&self) -> MutexGuard<'_, HashMap<Key, Tracked>> {
        self.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Probes suspects, forever.
    pub(super) async fn watch(self: Arc<Self>, watcher: Watcher, client: WorkerClient) {
        let mut ticks = interval(INTERVAL);
        loop {
            ticks.tick().await;
            for (key, url) in self.suspects(&watcher) {
                let (liveness, client) = (Arc::clone(&self), client.clone());
                tokio::spawn(async move {
                    let alive = probe(&client, &url).await;
                    liveness.probed(&key, alive);
                });
            }
        }
    }

    /// Workers with requests in flight and no recent heartbeat, which are not being probed.
    fn suspects(&self, watcher: &Watcher) -> Vec<(Key, String)> {
        let mut suspects = Vec::new();
        for (key, tracked) in self.tracked().iter_mut() {
            let is_recent = watcher.read(|map| {
                map.is_connected()
                    && map.get(&key.0).is_some_and(|member| {
                        member.registration.boot_id == key.1
                            && member.received.elapsed() < member.registration.ttl().mul_f64(LATE)
                    })
            });
            if is_recent {
                tracked.failures = 0;
                if tracked.dead.is_cancelled() {
                    tracked.dead = CancellationToken::new();
                }
            } else if !std::mem::replace(&mut tracked.probing, true) {
                suspects.push((key.clone(), tracked.url.clone()));
            }
        }
        suspects
    }

    fn probed(&self, key: &Key, alive: bool) {
        if let Some(tracked) = self.tracked().get_mut(key) {
            tracked.probing = false;
            tracked.failures = if alive { 0 } else { tracked.failures + 1 };
            if tracked.failures >= MAX_FAILURES {
                tracked.dead.cancel();
            }
        }
    }
}

impl Tracking {
    /// Completes once the worker is dead.
    pub(super) fn dead(&self) -> impl Future<Output = ()> + Send + 'static {
        self.dead.clone().cancelled_owned()
    }
}

impl Drop for Tracking {
    fn drop(&mut self) {
        let mut tracked = self.liveness.tracked();
        if let Some(entry) = tracked.get_mut(&self.key) {
            entry.requests -= 1;
            if entry.requests == 0 {
                tracked.remove(&self.key);
            }
        }
    }
}

/// Whether a worker shows that it is no hung process. One that refuses connections shows it too: it drains, or it has ended
/// and with it its requests in flight.
async fn probe(client: &WorkerClient, url: &str) -> bool {
    let Ok(request) = Request::get(url).body(Full::<Bytes>::default()) else { return false };
    match timeout(PROBE_TIMEOUT, client.request(request)).await {
        Ok(Ok(response)) => response.status() == StatusCode::OK,
        Ok(Err(error)) => is_refused(&error),
        Err(_) => false,
    }
}

fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
    })
}
