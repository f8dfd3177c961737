//! Connections: taken within limits, served, and seen out when it is time to stop.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::util::MapRequest;

use crate::app::App;
use crate::routes::{router, strip};
use crate::write_deadline::WriteDeadline;

/// After a failure to take a connection, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// How long it may take to send the last traces.
const FAREWELL: Duration = Duration::from_secs(2);

/// Takes and serves connections until `stop` is done, then sees them out.
pub(crate) async fn listen(app: Arc<App>, listener: TcpListener, stop: impl Future<Output = ()>) {
    let named = Arc::clone(&app);
    let service =
        MapRequest::new(router(&app), move |request: hyper::Request<Incoming>| strip(&named, request));
    let places = Arc::new(Semaphore::new(app.settings().max_connections));
    let watcher = GracefulShutdown::new();
    let take = |stream: TcpStream, place: OwnedSemaphorePermit| {
        let _ = stream.set_nodelay(true);
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(app.settings().read_limit)
            .max_buf_size(app.settings().max_headers.max(8192));
        let service = TowerToHyperService::new(service.clone());
        // The certificate of now: one that is replaced meanwhile serves those who come later.
        let (settings, watcher) = (app.settings(), watcher.watcher());
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
            drop(place);
        });
    };
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            accepted = accept(&listener, &places) => if let Some((stream, place)) = accepted { take(stream, place) },
            () = &mut stop => break,
        }
    }
    // Not ready at once; what was sent before the word came is still taken, and answered with `connection: close`.
    app.begin_shutdown();
    app.telemetry.tell("stopping", &[]);
    let linger = tokio::time::sleep(app.settings().linger);
    let mut linger = pin!(linger);
    loop {
        tokio::select! {
            accepted = accept(&listener, &places) => if let Some((stream, place)) = accepted { take(stream, place) },
            () = &mut linger => break,
        }
    }
    drop(listener);
    let _ = tokio::time::timeout(app.settings().grace, watcher.shutdown()).await;
    for slot in &app.slots {
        if let Some(host) = slot.host() {
            host.queue.close();
        }
    }
    let _ = tokio::task::spawn_blocking(move || app.telemetry.flush(FAREWELL)).await;
}

/// A connection and its place, once there is one.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) if lasts(&error) => {
            tokio::time::sleep(PAUSE).await;
            None
        }
        Err(_) => None,
    }
}

/// Whether taking the next connection would fail in the same way.
fn lasts(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}
