//! Stand-ins for workers that load and unload models: each arbitrates its memory, as a worker does.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use sconce_registry::{
    BootId, Heartbeat, InProcess, Load, ModelRecord, PlacementRecord, Rates, Registration, Registry,
    WorkerState,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_millis(300);
/// The key that operator routes require.
pub(crate) const OPERATOR_KEY: &str = "operator-secret";

/// Bytes of each source.
pub(crate) type Sizes = Arc<Mutex<BTreeMap<String, u64>>>;

/// A model of a worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Held {
    pub(crate) source: String,
    pub(crate) bytes: u64,
    pub(crate) is_loaded: bool,
}

/// A stand-in for a worker.
pub(crate) struct FleetWorker {
    pub(crate) id: String,
    pub(crate) limit: u64,
    sizes: Sizes,
    registry: Arc<InProcess>,
    boot_id: BootId,
    url: String,
    rate: f32,
    sequence: AtomicU64,
    /// How long a load takes.
    pub(crate) load_time: Mutex<Duration>,
    /// Whether loads fail.
    pub(crate) fails: AtomicBool,
    models: watch::Sender<BTreeMap<String, Held>>,
    /// Held while the registration is written, so that the last state is written last.
    writing: tokio::sync::Mutex<()>,
    /// Loads that began.
    pub(crate) loads: AtomicUsize,
    /// Loads that did not fit.
    pub(crate) refusals: AtomicUsize,
    /// Requests to models.
    pub(crate) requests: AtomicUsize,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl FleetWorker {
    pub(crate) async fn start(
        registry: &Arc<InProcess>,
        id: &str,
        limit: u64,
        rate: f32,
        sizes: &Sizes,
    ) -> Arc<FleetWorker> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let worker = Arc::new(FleetWorker {
            id: id.to_owned(),
            limit,
            sizes: Arc::clone(sizes),
            registry: Arc::clone(registry),
            boot_id: BootId::random(),
            url: format!("http://{}", listener.local_addr().unwrap()),
            rate,
            sequence: AtomicU64::new(0),
            load_time: Mutex::new(Duration::from_millis(1)),
            fails: AtomicBool::new(false),
            models: watch::Sender::default(),
            writing: tokio::sync::Mutex::new(()),
            loads: AtomicUsize::new(0),
            refusals: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            tasks: Mutex::default(),
        });
        worker.register().await;
        let server = tokio::spawn(accept(listener, Arc::clone(&worker)));
        let beating = Arc::clone(&worker);
        let heartbeats = tokio::spawn(async move {
            loop {
                sleep(INTERVAL).await;
                let _ = beating.registry.heartbeat(&beating.id, beating.heartbeat()).await;
            }
        });
        worker.tasks.lock().unwrap().extend([server, heartbeats]);
        worker
    }

    /// Ends the process, as SIGKILL does.
    pub(crate) fn kill(&self) {
        self.tasks.lock().unwrap().drain(..).for_each(|task| task.abort());
    }

    /// What it holds.
    pub(crate) fn held(&self) -> BTreeMap<String, Held> {
        self.models.borrow().clone()
    }

    /// Bytes of its models, with those that are being loaded.
    pub(crate) fn used(&self) -> u64 {
        self.models.borrow().values().map(|held| held.bytes).sum()
    }

    pub(crate) fn free(&self) -> u64 {
        self.limit - self.used()
    }

    fn heartbeat(&self) -> Heartbeat {
        let rates = Rates { small: self.rate, medium: self.rate, large: self.rate };
        Heartbeat {
            boot_id: self.boot_id,
            sequence: self.sequence.fetch_add(1, Ordering::SeqCst) + 1,
            state: WorkerState::Ready,
            load: Load::default(),
            rates,
            free_memory: BTreeMap::new(),
        }
    }

    async fn register(&self) {
        let _writing = self.writing.lock().await;
        let record = |(name, held): (&String, &Held)| ModelRecord {
            model: name.clone(),
            aliases: vec![held.source.clone()],
            task: if held.is_loaded { "embed".to_owned() } else { String::new() },
            max_length: 512,
            managed: true,
            placements: vec![PlacementRecord {
                placement: "native/cpu/f32".to_owned(),
                active: held.is_loaded,
                class: Some("aaaaaaaaaaaa-half".to_owned()),
                band: None,
                obstacle: None,
            }],
        };
        let registration = Registration {
            worker_id: self.id.clone(),
            boot_id: self.boot_id,
            url: self.url.clone(),
            version: "0.1.0".to_owned(),
            ttl_ms: u64::try_from(TTL.as_millis()).unwrap(),
            models: self.held().iter().map(record).collect(),
            failure: None,
        };
        let _ = self.registry.register(registration, self.heartbeat()).await;
    }

    fn size(&self, source: &str) -> Option<u64> {
        self.sizes.lock().unwrap().get(source).copied()
    }

    /// What a load would take. Loads that have begun take no memory yet, as those of a worker.
    fn fit(&self, source: &str) -> (u16, Value) {
        let Some(bytes) = self.size(source) else {
            return (403, json!({ "error": { "message": "not an allowed source" } }));
        };
        let loaded: u64 =
            self.models.borrow().values().filter(|held| held.is_loaded).map(|held| held.bytes).sum();
        let free = self.limit - loaded;
        (
            200,
            json!({
                "fits": bytes <= free, "fits_alone": bytes <= self.limit, "free_bytes": free,
                "bytes": { "resident": bytes, "peak": bytes }, "tokens_per_second": self.rate, "load_seconds": 0.1,
            }),
        )
    }

    async fn load(&self, name: &str, source: &str) -> (u16, Value) {
        let refused = |message: &str| (503, json!({ "error": { "message": message } }));
        let Some(bytes) = self.size(source) else { return refused("not an allowed source") };
        let is_new = self.models.send_if_modified(|models| {
            let used: u64 = models.values().map(|held| held.bytes).sum();
            let fits = !models.contains_key(name) && used + bytes <= self.limit;
            if fits {
                models.insert(name.to_owned(), Held { source: source.to_owned(), bytes, is_loaded: false });
            }
            fits
        });
        if is_new {
            self.loads.fetch_add(1, Ordering::SeqCst);
            self.register().await;
            let time = *self.load_time.lock().unwrap();
            sleep(time).await;
            let fails = self.fails.load(Ordering::SeqCst);
            self.models.send_modify(|models| {
                if fails {
                    models.remove(name);
                } else if let Some(held) = models.get_mut(name) {
                    held.is_loaded = true;
                }
            });
            self.register().await;
        } else if !self.held().contains_key(name) {
            self.refusals.fetch_add(1, Ordering::SeqCst);
            return refused("the model does not fit beside the loaded models");
        }
        let mut models = self.models.subscribe();
        let decided = models.wait_for(|models| models.get(name).is_none_or(|held| held.is_loaded)).await;
        let is_loaded = decided.is_ok_and(|models| models.contains_key(name));
        if is_loaded { (200, json!({ "id": name })) } else { refused("loading failed") }
    }

    async fn unload(&self, name: &str) -> (u16, Value) {
        let was_there = self.models.send_if_modified(|models| models.remove(name).is_some());
        self.register().await;
        (if was_there { 200 } else { 404 }, json!({ "id": name }))
    }

    async fn answer(&self, request: Request<Incoming>) -> (u16, Value) {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        if path == "/livez" {
            return (200, json!("alive"));
        }
        let body: Value =
            serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        if path == "/v1/embeddings" {
            self.requests.fetch_add(1, Ordering::SeqCst);
            let is_loaded = self.held().get(&text("model")).is_some_and(|held| held.is_loaded);
            return if is_loaded { (200, json!({ "worker": self.id })) } else { (404, json!({})) };
        }
        let key = parts.headers.get("authorization").and_then(|key| key.to_str().ok());
        if key != Some(&format!("Bearer {OPERATOR_KEY}")) {
            return (403, json!({ "error": { "message": "only an operator key may do this" } }));
        }
        match (&parts.method, path.as_str()) {
            (&Method::POST, "/v1/fit") => self.fit(&text("source")),
            (&Method::POST, "/v1/models") => {
                assert_eq!(body["managed"], true);
                self.load(&text("name"), &text("source")).await
            }
            (&Method::DELETE, path) => {
                self.unload(path.strip_prefix("/v1/models/").unwrap_or_default()).await
            }
            _ => (404, json!({})),
        }
    }
}

async fn accept(listener: TcpListener, worker: Arc<FleetWorker>) {
    // Connections end with this task.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let worker = Arc::clone(&worker);
        let _ = stream.set_nodelay(true);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let worker = Arc::clone(&worker);
                async move {
                    // A client that hangs up does not end a load.
                    let (status, body) =
                        tokio::spawn(async move { worker.answer(request).await }).await.unwrap();
                    let body = Full::new(Bytes::from(body.to_string()));
                    let response =
                        Response::builder().status(status).header("content-type", "application/json");
                    Ok::<_, Infallible>(response.body(body).unwrap())
                }
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}
