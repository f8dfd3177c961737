//! sconce over HTTP: one machine's models, for the clients that people already have.

mod app;
mod asks;
mod body;
mod call;
mod fields;
mod inputs;
mod keys;
mod listen;
mod metrics;
mod opening;
mod queue;
mod refusal;
mod returning;
mod routes;
mod settings;
mod threads;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use sconce::ModelBuilder;
use tokio::sync::watch;

use app::{App, Slot};
pub use keys::{KeyError, Keys};
use metrics::Metrics;
pub use settings::Settings;
use threads::Threads;

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
}

/// A server that runs on threads of its own.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: thread::JoinHandle<Result<(), ServeError>>,
}

impl Server {
    /// Starts to serve on `listener` at once, and opens the model meanwhile. Where it can't be opened the server
    /// ends with the reason.
    pub fn start(listener: TcpListener, serve: Serve, settings: Settings) -> Result<Server, ServeError> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let Serve { name, aliases, builder } = serve;
        let slot = Arc::new(Slot::new(name, aliases));
        let threads = Threads::start(settings.text_threads, WAITING_TEXT)?;
        let app = Arc::new(App::new(settings, Metrics::new()?, threads, vec![Arc::clone(&slot)]));
        let (stop, stopped) = watch::channel(false);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("sconce-http").build()?;
        let signal = stop.clone();
        let body = move || -> Result<(), ServeError> {
            let opening = {
                let (app, signal) = (Arc::clone(&app), signal.clone());
                thread::Builder::new().name("sconce-opening".to_owned()).spawn(move || {
                    let opened = opening::open(&app, &slot, builder);
                    if opened.is_err() {
                        let _ = signal.send(true);
                    }
                    opened
                })?
            };
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                listen::listen(app, listener, told(stopped)).await;
                io::Result::Ok(())
            })?;
            runtime.shutdown_background();
            // A model that is still being opened is not waited for.
            if opening.is_finished()
                && let Ok(opened) = opening.join()
            {
                opened?;
            }
            Ok(())
        };
        let thread = thread::Builder::new().name("sconce-serve".to_owned()).spawn(body)?;
        Ok(Server { address, stop, thread })
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

/// Done at the first signal to end.
#[cfg(not(unix))]
async fn signalled() {
    let _ = tokio::signal::ctrl_c().await;
}
