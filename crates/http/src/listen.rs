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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::Router;
    use axum::extract::State;
    use axum::routing::get;
    use tokio::sync::{Notify, oneshot};

    use super::*;
    use crate::edge::tests::edge;
    use crate::settings::Settings;

    /// A server on `address`. `/slow` notifies `started` and responds once streams are closed.
    struct Server {
        address: SocketAddr,
        edge: Arc<Edge>,
        started: Arc<Notify>,
        stop: oneshot::Sender<()>,
    }

    /// Serves until the test stops the server. Returns whether `on_drained` was called.
    async fn serve(settings: Settings, test: impl AsyncFnOnce(Server)) -> bool {
        let (edge, started) = (Arc::new(edge(settings)), Arc::new(Notify::new()));
        let state = (Arc::clone(&edge), Arc::clone(&started));
        let slow = async |State((edge, started)): State<(Arc<Edge>, Arc<Notify>)>| {
            let closing = edge.closing();
            started.notify_one();
            closing.await;
            "closed"
        };
        let routes = Router::new().route("/", get(async || "hello")).route("/slow", get(slow));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            let _ = stopped.await;
        };
        let drained = AtomicBool::new(false);
        let on_drained = || drained.store(true, Ordering::Relaxed);
        let both = async {
            tokio::join!(
                listen(Arc::clone(&edge), listener, routes.with_state(state), stopped, on_drained),
                test(Server { address, edge, started, stop })
            )
        };
        tokio::time::timeout(Duration::from_secs(30), both).await.expect("it serves and stops");
        drained.load(Ordering::Relaxed)
    }

    /// Sends a request and returns the response.
    fn request(address: SocketAddr, path: &'static str) -> impl Future<Output = io::Result<String>> {
        let response = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address)?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
            let mut response = String::new();
            stream.read_to_string(&mut response)?;
            Ok(response)
        });
        async move { response.await.expect("no panic") }
    }

    #[tokio::test]
    async fn requests_are_served_until_shutdown() {
        let drained = serve(Settings::default(), async |server| {
            for _ in 0..3 {
                let response = request(server.address, "/").await.expect("a response");
                assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("hello"), "{response}");
            }
            assert!(!server.edge.is_shutting_down());
            server.stop.send(()).expect("it is serving");
        });
        assert!(drained.await);
    }

    #[tokio::test]
    async fn a_response_that_is_being_sent_ends_within_the_grace_time() {
        let grace = Duration::from_secs(2);
        let drained =
            serve(Settings { grace, linger: Duration::ZERO, ..Settings::default() }, async |server| {
                let slow = request(server.address, "/slow");
                server.started.notified().await;
                server.stop.send(()).expect("it is serving");
                tokio::select! {
                    biased;
                    () = server.edge.closing() => {}
                    () = tokio::time::sleep(grace) => panic!("the grace time is over"),
                }
                let response = slow.await.expect("a response");
                assert!(response.ends_with("closed"), "{response}");
            });
        assert!(drained.await);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_listener_that_fails_is_not_polled_without_a_pause() {
        // A connected socket is readable, but can not accept.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client =
            std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (connected, _) = listener.accept().expect("a connection");
        client.write_all(b"a").expect("a byte is sent");
        connected.set_nonblocking(true).expect("a socket");
        let socket = std::net::TcpListener::from(std::os::fd::OwnedFd::from(connected));
        let (listener, permits) = (TcpListener::from_std(socket).expect("a socket"), Semaphore::new(1));
        let (began, permits) = (std::time::Instant::now(), Arc::new(permits));
        assert!(accept(&listener, &permits).await.is_none());
        assert!(began.elapsed() >= PAUSE);
        assert_eq!(permits.available_permits(), 1);
    }

    #[test]
    fn a_client_that_left_does_not_delay_the_next_one() {
        for kind in [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset] {
            assert!(!is_persistent(&kind.into()), "{kind}");
        }
        let no_descriptors = io::Error::from_raw_os_error(24);
        assert!(is_persistent(&no_descriptors) && is_persistent(&io::ErrorKind::OutOfMemory.into()));
    }
}
