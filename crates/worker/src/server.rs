//! The server: threads of a worker, from start to shutdown.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::thread;

use hyper::Request;
use hyper::body::Incoming;
use sconce::{ModelBuilder, Runtime};
use sconce_http::{Edge, listen};
use tokio::sync::watch;
use tower::util::MapRequest;

use crate::api::router::{RULES, router};
use crate::api::strip;
use crate::models::heartbeat;
use crate::models::manager::{ManagedModel, ModelManager, Order};
use crate::schedule::text_pool::TextPool;
use crate::settings::Settings;
use crate::state::app::App;
use crate::state::metrics::Metrics;
use crate::state::slot::{Slot, When};

/// Bytes of text that may wait to be tokenized.
const WAITING_TEXT: usize = 32 << 20;

/// Why a server ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The model could not be opened.
    #[error(transparent)]
    Model(#[from] sconce::Error),
    /// A socket or a thread could not be had.
    #[error("the server can't run")]
    Io(#[from] io::Error),
    /// A metric could not be made.
    #[error("the metrics can't be kept")]
    Metrics(#[from] prometheus::Error),
}

/// A model to be served.
pub struct Serve {
    /// What answers call it.
    pub name: String,
    /// What else requests may call it.
    pub aliases: Vec<String>,
    /// How it is opened.
    pub builder: ModelBuilder,
    /// When it is loaded.
    pub when: When,
    /// Whether requests may send token ids in place of texts. Ids of another tokenizer give wrong vectors.
    pub token_ids: bool,
}

/// A server that runs on threads of its own.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    app: Arc<App>,
    thread: thread::JoinHandle<Result<(), ServeError>>,
}

impl Server {
    /// Starts to serve on `listener` at once, and opens models meanwhile. Where none can be opened the server ends
    /// with the reason of the first.
    pub fn start(listener: TcpListener, serve: Vec<Serve>, settings: Settings) -> Result<Server, ServeError> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        if settings.memory_limit.is_some() {
            if sconce::resident().is_none() {
                return Err(
                    io::Error::other("this system does not tell how much memory a process has").into()
                );
            }
            sconce::limit_arenas();
        }
        let (mut slots, mut kept) = (Vec::new(), Vec::new());
        for Serve { name, aliases, builder, when, token_ids } in serve {
            slots.push(Arc::new(Slot::new(name, aliases, when, token_ids)));
            kept.push(ManagedModel::new(builder));
        }
        let (orders, ordered) = mpsc::channel();
        let text_pool = TextPool::start(settings.text_threads, WAITING_TEXT)?;
        let (stop, stopped) = watch::channel(false);
        let worker = settings.worker.clone();
        let scheme = if settings.http.tls.is_some() { "https" } else { "http" };
        let mut runtimes: Vec<Runtime> = Vec::new();
        for one in kept.iter().map(|kept: &ManagedModel| &kept.runtime) {
            if !runtimes.contains(one) {
                runtimes.push(one.clone());
            }
        }
        let metrics = Metrics::new()?;
        let edge = Arc::new(Edge::new(settings.edge(), RULES, address));
        let request_load = {
            let orders = orders.clone();
            move |place| {
                let _ = orders.send(Order::Load(place));
            }
        };
        let app = App::new(settings, edge, metrics, text_pool, slots, request_load, stop.clone());
        let app = Arc::new(app.with_runtimes(runtimes));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("sconce-http").build()?;
        let signal = stop.clone();
        let shared = Arc::clone(&app);
        let body = move || -> Result<(), ServeError> {
            let manager = {
                let (app, signal) = (Arc::clone(&app), signal.clone());
                thread::Builder::new().name("sconce-manager".to_owned()).spawn(move || {
                    let kept = ModelManager::new(app, kept, orders).keep(&ordered);
                    if kept.is_err() {
                        let _ = signal.send(true);
                    }
                    kept
                })?
            };
            let heartbeat = {
                let (app, url) = (Arc::clone(&app), worker.url.clone());
                let url = url.unwrap_or_else(|| format!("{scheme}://{address}"));
                thread::Builder::new()
                    .name("sconce-heartbeat".to_owned())
                    .spawn(move || heartbeat::run(&app, &url, &worker))?
            };
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let named = Arc::clone(&app);
                let strip = move |request: Request<Incoming>| strip(&named, request);
                let service = MapRequest::new(router(&app), strip);
                listen(Arc::clone(&app.edge), listener, service, told(stopped), || app.close_queues()).await;
                io::Result::Ok(())
            })?;
            runtime.shutdown_background();
            let _ = heartbeat.join();
            // A model that is still being opened is not waited for.
            if manager.is_finished()
                && let Ok(kept) = manager.join()
            {
                kept?;
            }
            Ok(())
        };
        let thread = thread::Builder::new().name("sconce-serve".to_owned()).spawn(body)?;
        Ok(Server { address, stop, app: shared, thread })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells it to stop: not ready at once, what is under way is finished.
    pub fn stop(&self) {
        let _ = self.stop.send(true);
    }

    /// Stops it on SIGTERM and SIGINT.
    pub fn stop_on_signals(&self) -> Result<(), ServeError> {
        let stop = self.stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("sconce-signals".to_owned()).spawn(move || {
            runtime.block_on(signalled());
            let _ = stop.send(true);
        })?;
        Ok(())
    }

    /// Behaves in another way from now on. What is made once stays: threads, places for connections.
    pub fn reload(&self, settings: Settings) {
        self.app.reload(settings);
    }

    /// On SIGHUP behaves as `read` says; where it says nothing, as before.
    pub fn reload_on_signal(
        &self,
        mut read: impl FnMut() -> Option<Settings> + Send + 'static,
    ) -> Result<(), ServeError> {
        let app = Arc::clone(&self.app);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("sconce-reload".to_owned()).spawn(move || {
            let _ = runtime.block_on(hung_up(|| {
                if let Some(settings) = read() {
                    app.reload(settings);
                }
            }));
        })?;
        Ok(())
    }

    /// Waits until it has ended.
    pub fn wait(self) -> Result<(), ServeError> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the server's thread panicked").into()))
    }
}

/// Done when somebody says so.
async fn told(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Done at the first signal to end.
#[cfg(unix)]
async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = terminated => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// Tells of every SIGHUP.
#[cfg(unix)]
async fn hung_up(mut tell: impl FnMut()) -> io::Result<()> {
    let mut signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    while signal.recv().await.is_some() {
        tell();
    }
    Ok(())
}

/// There is no such signal.
#[cfg(not(unix))]
async fn hung_up(_tell: impl FnMut()) -> io::Result<()> {
    std::future::pending().await
}

/// Done at the first signal to end.
#[cfg(not(unix))]
async fn signalled() {
    let _ = tokio::signal::ctrl_c().await;
}
