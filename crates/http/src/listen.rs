//! The listener: accepts connections within limits, serves them, and shuts down gracefully.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::Service;
use tracing::info;

use crate::edge::Edge;
use crate::write_deadline::WriteDeadline;

/// Pause after `accept` failed for lack of a resource, such as file descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// Share of the grace time in which responses that are still being sent end.
const CLOSING: f64 = 0.2;
/// Timeout for the last log lines and traces.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves connections until `stop` completes, then shuts down: connections are still accepted for `linger`, requests
/// in flight have `grace` to finish, then `on_drained` is called, and log and traces are flushed.
pub async fn listen<S>(
    edge: Arc<Edge>,
    listener: TcpListener,
    service: S,
    stop: impl Future<Output = ()>,
    on_drained: impl FnOnce(),
) where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let permits = Arc::new(Semaphore::new(edge.settings().max_connections));
    let graceful = GracefulShutdown::new();
    let serve = |stream: TcpStream, permit: OwnedSemaphorePermit| {
        let _ = stream.set_nodelay(true);
        // The settings of now: a certificate that is replaced later serves later connections.
        let (settings, watcher) = (edge.settings(), graceful.watcher());
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(settings.read_limit)
            .max_buf_size(settings.max_headers.max(8192));
        let service = TowerToHyperService::new(service.clone());
        let stream = WriteDeadline::new(stream, settings.write_limit);
        tokio::spawn(async move {
            match &settings.tls {
                None => {
                    let _ = watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await;
                }
                Some(tls) => {
                    if let Ok(Ok(stream)) =
                        tokio::time::timeout(settings.read_limit, tls.accept(stream)).await
                    {
                        let _ = watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await;
                    }
                }
            }
            drop(permit);
        });
    };
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            accepted = accept(&listener, &permits) => if let Some((stream, permit)) = accepted { serve(stream, permit) },
            () = &mut stop => break,
        }
    }
    // Requests that were sent before shutdown began are still answered, with `connection: close`.
    edge.begin_shutdown();
    edge.telemetry.log(|| info!("stopping"));
    let mut linger = pin!(tokio::time::sleep(edge.settings().linger));
    loop {
        tokio::select! {
            accepted = accept(&listener, &permits) => if let Some((stream, permit)) = accepted { serve(stream, permit) },
            () = &mut linger => break,
        }
    }
    drop(listener);
    let (grace, mut drained) = (edge.settings().grace, pin!(graceful.shutdown()));
    if tokio::time::timeout(grace.mul_f64(1.0 - CLOSING), &mut drained).await.is_err() {
        edge.close_streams();
        let _ = tokio::time::timeout(grace.mul_f64(CLOSING), drained).await;
    }
    on_drained();
    let _ = tokio::task::spawn_blocking(move || edge.telemetry.flush(FLUSH_TIMEOUT)).await;
}

/// Accepts a connection once a permit is free.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) if is_persistent(&error) => {
            tokio::time::sleep(PAUSE).await;
            None
        }
        Err(_) => None,
    }
}

/// Whether the next `accept` would fail in the same way.
fn is_persistent(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}
