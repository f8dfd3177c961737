//! A stand-in for a worker: an HTTP server whose faults a test selects, and its registration.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use sconce_registry::{
    BootId, Heartbeat, Load, ModelRecord, PlacementRecord, Rates, Registration, Registry, WorkerState,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// Time to live of a heartbeat.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// Tokens of a request of the tests, as a gateway estimates them.
pub(crate) const TOKENS: usize = 10;
const INTERVAL: Duration = Duration::from_millis(250);

/// What a stand-in does with requests.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    /// Answers with this many bytes after a delay.
    Answer(Duration, usize),
    /// Refuses with a status, a code and `Retry-After`.
    Refuse(u16, &'static str, u64),
    /// Answers one request after another, each after this time.
    Serial(Duration),
    /// Sends this many events with a pause before each, and the end.
    Stream(usize, Duration),
}

/// The shared state of a stand-in.
pub(crate) struct State {
    pub(crate) id: String,
    class: String,
    behaviour: Mutex<Behaviour>,
    frozen: AtomicBool,
    /// Requests that arrived, without probes.
    pub(crate) requests: AtomicUsize,
    /// Headers of the last request.
    pub(crate) last_headers: Mutex<BTreeMap<String, String>>,
    pub(crate) last_path: Mutex<String>,
    reported: Mutex<WorkerState>,
    /// Held while a request is computed.
    computing: tokio::sync::Mutex<()>,
    /// The requests that `Behaviour::Serial` computed, and the time that took.
    pub(crate) computed: Mutex<(usize, Duration)>,
    waiting: AtomicUsize,
}

impl State {
    pub(crate) fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    /// Stops or continues, as SIGSTOP and SIGCONT do.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::SeqCst);
    }

    pub(crate) fn enter(&self, state: WorkerState) {
        *self.reported.lock().unwrap() = state;
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    async fn thaw(&self) {
        while self.frozen.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A stand-in for a worker. It dies when it is dropped.
pub(crate) struct StandIn {
    pub(crate) state: Arc<State>,
    pub(crate) registration: Registration,
    server: JoinHandle<()>,
    heartbeats: JoinHandle<()>,
}

impl StandIn {
    /// Starts a stand-in that serves the model `m` at this rate, and registers it.
    pub(crate) async fn start(registry: Arc<dyn Registry>, id: &str, class: &str, rate: f32) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            id: id.to_owned(),
            class: class.to_owned(),
            behaviour: Mutex::new(Behaviour::Answer(Duration::from_millis(1), 16)),
            frozen: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
            last_headers: Mutex::default(),
            last_path: Mutex::default(),
            reported: Mutex::new(WorkerState::Ready),
            computing: tokio::sync::Mutex::new(()),
            computed: Mutex::default(),
            waiting: AtomicUsize::new(0),
        });
        let server = tokio::spawn(accept(listener, Arc::clone(&state)));
        let registration = registration(id, &url, class);
        let heartbeat = heartbeat(&registration, 1, rate, WorkerState::Ready, 0);
        let _ = registry.register(registration.clone(), heartbeat).await;
        let beating = beat(registry, registration.clone(), rate, Arc::clone(&state));
        StandIn { state, registration, server, heartbeats: tokio::spawn(beating) }
    }

    /// Ends the process, as SIGKILL does: connections break and heartbeats stop.
    pub(crate) fn kill(&self) {
        self.server.abort();
        self.heartbeats.abort();
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.kill();
    }
}

fn registration(id: &str, url: &str, class: &str) -> Registration {
    let model = |name: &str, task: &str| ModelRecord {
        model: name.to_owned(),
        aliases: vec![format!("org/{name}")],
        task: task.to_owned(),
        max_length: 512,
        managed: false,
        placements: vec![PlacementRecord {
            placement: "native/cpu/f32".to_owned(),
            active: true,
            class: Some(class.to_owned()),
            band: None,
            obstacle: None,
        }],
    };
    Registration {
        worker_id: id.to_owned(),
        boot_id: BootId::random(),
        url: url.to_owned(),
        version: "0.1.0".to_owned(),
        ttl_ms: u64::try_from(TTL.as_millis()).unwrap(),
        models: vec![model("m", "embed"), model("chat", "generate")],
        failure: None,
    }
}

fn heartbeat(
    registration: &Registration,
    sequence: u64,
    rate: f32,
    state: WorkerState,
    waiting: usize,
) -> Heartbeat {
    Heartbeat {
        boot_id: registration.boot_id,
        sequence,
        state,
        load: Load { requests: waiting as u32, tokens: (waiting * TOKENS) as u64, latency: 0.001 },
        rates: Rates { small: rate, medium: rate, large: rate },
        free_memory: BTreeMap::new(),
    }
}

async fn beat(registry: Arc<dyn Registry>, registration: Registration, rate: f32, state: Arc<State>) {
    for sequence in 2.. {
        sleep(INTERVAL).await;
        state.thaw().await;
        let worker_state = *state.reported.lock().unwrap();
        let waiting = state.waiting.load(Ordering::SeqCst);
        let heartbeat = heartbeat(&registration, sequence, rate, worker_state, waiting);
        let _ = registry.heartbeat(&registration.worker_id, heartbeat).await;
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    // Connections end with this task.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        let _ = stream.set_nodelay(true);
        connections.spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&state), request));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Events>, Infallible> {
    state.thaw().await;
    if request.uri().path() == "/livez" {
        return Ok(Response::new(Events::whole("alive\n")));
    }
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    *state.last_headers.lock().unwrap() = headers.collect();
    request.uri().to_string().clone_into(&mut state.last_path.lock().unwrap());
    let _ = request.into_body().collect().await;
    state.requests.fetch_add(1, Ordering::SeqCst);
    let behaviour = state.behaviour.lock().unwrap().clone();
    let response = Response::builder().header("x-sconce-class", &state.class);
    Ok(match behaviour {
        Behaviour::Answer(delay, bytes) => {
            sleep(delay).await;
            state.thaw().await;
            let text = format!(
                "{{\"worker\":\"{}\",\"class\":\"{}\",\"pad\":\"{}\"}}",
                state.id,
                state.class,
                "a".repeat(bytes)
            );
            let response = response.header("content-type", "application/json").header("x-sconce-tokens", "5");
            response.body(Events::whole(&text)).unwrap()
        }
        Behaviour::Serial(time) => {
            state.waiting.fetch_add(1, Ordering::SeqCst);
            let computing = state.computing.lock().await;
            let start = Instant::now();
            sleep(time).await;
            {
                let mut computed = state.computed.lock().unwrap();
                *computed = (computed.0 + 1, computed.1 + start.elapsed());
            }
            drop(computing);
            let waiting = state.waiting.fetch_sub(1, Ordering::SeqCst) - 1;
            let load = format!("requests={waiting}, tokens={}", waiting * TOKENS);
            response.header("x-sconce-load", load).body(Events::whole("{}")).unwrap()
        }
        Behaviour::Refuse(status, code, seconds) => {
            let response =
                response.status(status).header("x-sconce-code", code).header("retry-after", seconds);
            response.body(Events::whole("{\"error\":\"no\"}")).unwrap()
        }
        Behaviour::Stream(events, pause) => {
            let (sender, receiver) = mpsc::channel(1);
            tokio::spawn(async move {
                for number in 0..events {
                    sleep(pause).await;
                    state.thaw().await;
                    let event = format!("data: {{\"worker\":\"{}\",\"n\":{number}}}\n\n", state.id);
                    if sender.send(event).await.is_err() {
                        return;
                    }
                }
                let _ = sender.send("data: [DONE]\n\n".to_owned()).await;
            });
            response.header("content-type", "text/event-stream").body(Events(receiver)).unwrap()
        }
    })
}

/// A body whose parts a task sends.
pub(crate) struct Events(mpsc::Receiver<String>);

impl Events {
    fn whole(text: &str) -> Events {
        let (sender, receiver) = mpsc::channel(1);
        sender.try_send(text.to_owned()).unwrap();
        Events(receiver)
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|text| text.map(|text| Ok(Frame::data(Bytes::from(text)))))
    }
}
