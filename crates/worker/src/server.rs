//! The server of a worker: starts its threads, handles signals, shuts down.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use hyper::Request;
use hyper::body::Incoming;
use sconce::{ModelBuilder, Runtime};
use sconce_http::{Edge, listen};
use sconce_registry::RegistryError;
use tokio_util::sync::CancellationToken;
use tower::util::MapRequest;

use crate::api::router::{RULES, router};
use crate::api::strip;
use crate::member::callback;
use crate::member::registration::{Member, connect};
use crate::models::catalog::{Catalog, ModelLoader};
use crate::models::manager::{Command, ManagedModel, ModelManager};
use crate::models::memory_estimator::MemoryEstimator;
use crate::schedule::text_pool::TextPool;
use crate::settings::Settings;
use crate::state::app::App;
use crate::state::metrics::Metrics;
use crate::state::slot::{LoadPolicy, Slot};

/// Maximum bytes of text that wait to be tokenized.
const MAX_WAITING_TEXT: usize = 32 << 20;

/// Why a server failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No model could be loaded.
    #[error(transparent)]
    Model(#[from] sconce::Error),
    /// A socket or a thread could not be created.
    #[error("the server cannot run")]
    Io(#[from] io::Error),
    /// The registry can't be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A metric could not be registered.
    #[error("metrics cannot be registered")]
    Metrics(#[from] prometheus::Error),
}

/// A model to serve.
pub struct Serve {
    /// The name in responses.
    pub name: String,
    /// Other names that requests may use.
    pub aliases: Vec<String>,
    /// How it is loaded.
    pub builder: ModelBuilder,
    /// When it is loaded.
    pub load: LoadPolicy,
    /// Whether requests may send token ids instead of texts. Ids of another tokenizer yield wrong embeddings.
    pub token_ids: bool,
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    app: Arc<App>,
    thread: thread::JoinHandle<Result<(), ServeError>>,
}

impl Server {
    /// Starts to serve on `listener` at once and loads models in the background. If every model fails to load, the server
    /// stops with the first failure.
    pub fn start(listener: TcpListener, serve: Vec<Serve>, settings: Settings) -> Result<Server, ServeError> {
        Server::start_with(listener, serve, None, settings)
    }

    /// Like [`start`](Server::start). Operators may add models of the allowed sources, which `loader` builds.
    pub fn start_with(
        listener: TcpListener,
        serve: Vec<Serve>,
        loader: Option<ModelLoader>,
        settings: Settings,
    ) -> Result<Server, ServeError> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        if settings.memory_limit.is_some() {
            if sconce::resident().is_none() {
                return Err(io::Error::other("cannot measure the memory of this process").into());
            }
            sconce::limit_arenas();
        }
        let (mut slots, mut models) = (Vec::new(), Vec::new());
        for Serve { name, aliases, builder, load, token_ids } in serve {
            let slot = Arc::new(Slot::new(name, aliases, load, token_ids));
            slots.push(Arc::clone(&slot));
            models.push(ManagedModel::new(slot, builder));
        }
        let (commands, receiver) = mpsc::channel();
        let text_pool = TextPool::start(settings.text_threads, MAX_WAITING_TEXT)?;
        let stop = CancellationToken::new();
        let worker = settings.worker.clone();
        let scheme = if settings.http.tls.is_some() { "https" } else { "http" };
        let mut runtimes: Vec<Runtime> = Vec::new();
        let of_loader = loader.as_ref().map(|loader| loader("").get_or_create_runtime());
        let of_models = models.iter().map(|model: &ManagedModel| model.runtime.clone());
        for runtime in of_models.chain(of_loader) {
            if !runtimes.contains(&runtime) {
                runtimes.push(runtime);
            }
        }
        let path = runtimes.first().map(|runtime| runtime.evidence().0.with_file_name("load-memory.jsonl"));
        let estimator = path.map_or_else(MemoryEstimator::default, |path| MemoryEstimator::open(&path));
        let estimator = Arc::new(Mutex::new(estimator));
        let catalog =
            loader.map(|loader| Arc::new(Catalog::new(loader, Arc::clone(&estimator), commands.clone())));
        let metrics = Metrics::new()?;
        let edge = Arc::new(Edge::new(settings.edge(), RULES, address));
        let send_load = {
            let commands = commands.clone();
            move |slot| {
                let _ = commands.send(Command::Load(slot));
            }
        };
        let app = App::new(settings, edge, metrics, text_pool, slots, send_load, stop.clone());
        let app = Arc::new(app.with_runtimes(runtimes));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("sconce-http").build()?;
        let url = advertised(worker.url.as_deref(), scheme, address);
        let member = match worker.registry.clone() {
            None => None,
            Some(registry) => Some(Member {
                app: Arc::clone(&app),
                registry: runtime.block_on(connect(registry))?,
                worker_id: worker.id.clone(),
                url: url.clone(),
            }),
        };
        let signal = stop.clone();
        let shared = Arc::clone(&app);
        let body = move || -> Result<(), ServeError> {
            let manager = {
                let (app, signal) = (Arc::clone(&app), signal.clone());
                thread::Builder::new().name("sconce-manager".to_owned()).spawn(move || {
                    let result = ModelManager::new(app, models, estimator, commands).run(&receiver);
                    if result.is_err() {
                        signal.cancel();
                    }
                    result
                })?
            };
            let heartbeat = {
                let app = Arc::clone(&app);
                thread::Builder::new()
                    .name("sconce-heartbeat".to_owned())
                    .spawn(move || callback::run(&app, &url, &worker))?
            };
            let ended = CancellationToken::new();
            let member = member.map(|member| runtime.spawn(member.run(ended.clone())));
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let named = Arc::clone(&app);
                let strip = move |request: Request<Incoming>| strip(&named, request);
                let service = MapRequest::new(router(&app, catalog), strip);
                let stop = signal.cancelled();
                listen(Arc::clone(&app.edge), listener, service, stop, || app.close_queues()).await;
                ended.cancel();
                if let Some(member) = member {
                    let _ = member.await;
                }
                io::Result::Ok(())
            })?;
            runtime.shutdown_background();
            let _ = heartbeat.join();
            // A load in progress is not waited for.
            if manager.is_finished()
                && let Ok(result) = manager.join()
            {
                result?;
            }
            Ok(())
        };
        let thread = thread::Builder::new().name("sconce-serve".to_owned()).spawn(body)?;
        Ok(Server { address, stop, app: shared, thread })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins graceful shutdown: not ready at once, requests in flight are finished.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// A function that begins graceful shutdown, for another thread.
    pub fn stop_handle(&self) -> impl Fn() + Send + Sync + 'static {
        let stop = self.stop.clone();
        move || stop.cancel()
    }

    /// Shuts down on SIGTERM and SIGINT.
    pub fn stop_on_signals(&self) -> Result<(), ServeError> {
        let stop = self.stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Before this returns: a signal without a handler would kill the process.
        let signal = runtime.block_on(async { shutdown_signal() })?;
        thread::Builder::new().name("sconce-signals".to_owned()).spawn(move || {
            runtime.block_on(signal);
            stop.cancel();
        })?;
        Ok(())
    }

    /// Applies other settings. Threads and the maximum number of connections stay.
    pub fn reload(&self, settings: Settings) {
        self.app.reload(settings);
    }

    /// Reloads the settings with `read` on SIGHUP. `None` keeps the current ones.
    pub fn reload_on_signal(
        &self,
        mut read: impl FnMut() -> Option<Settings> + Send + 'static,
    ) -> Result<(), ServeError> {
        let app = Arc::clone(&self.app);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let hangups = runtime.block_on(async {
            on_hangup(move || {
                if let Some(settings) = read() {
                    app.reload(settings);
                }
            })
        })?;
        thread::Builder::new().name("sconce-reload".to_owned()).spawn(move || runtime.block_on(hangups))?;
        Ok(())
    }

    /// Waits until the server has stopped.
    pub fn wait(self) -> Result<(), ServeError> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the server's thread panicked").into()))
    }
}

/// The URL by which others reach the server. Port 0 of a given URL stands for the port that it listens on.
fn advertised(given: Option<&str>, scheme: &str, address: SocketAddr) -> String {
    let Some(given) = given else { return format!("{scheme}://{address}") };
    match given.trim_end_matches('/').strip_suffix(":0") {
        Some(host) => format!("{host}:{}", address.port()),
        None => given.to_owned(),
    }
}

/// Registers handlers of SIGTERM and SIGINT. The future completes on the first signal.
#[cfg(unix)]
fn shutdown_signal() -> io::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Registers a handler of SIGHUP. The future calls `reload` on every signal.
#[cfg(unix)]
fn on_hangup(mut reload: impl FnMut() + Send) -> io::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangup.recv().await.is_some() {
            reload();
        }
    })
}

/// Other systems have no SIGHUP.
#[cfg(not(unix))]
fn on_hangup(_reload: impl FnMut() + Send) -> io::Result<impl Future<Output = ()> + Send> {
    Ok(std::future::pending())
}

/// Completes on the first SIGINT: other systems have no SIGTERM.
#[cfg(not(unix))]
fn shutdown_signal() -> io::Result<impl Future<Output = ()> + Send> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advertised_url_has_the_port_that_the_server_listens_on() {
        let address = SocketAddr::from(([127, 0, 0, 1], 8081));
        for (given, expected) in [
            (None, "http://127.0.0.1:8081"),
            (Some("https://studio"), "https://studio"),
            (Some("https://studio:9000/"), "https://studio:9000/"),
            (Some("https://studio:0/"), "https://studio:8081"),
            (Some("https://studio:80"), "https://studio:80"),
        ] {
            assert_eq!(advertised(given, "http", address), expected);
        }
    }
}
