//! The HTTP client of a gateway: pooled connections to workers.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle connections are closed after this time: before workers close them, so that no request meets a connection that is
/// being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of idle connections per worker.
const MAX_IDLE: usize = 256;

/// A client of workers.
pub(crate) type WorkerClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client that trusts the certificate authorities of the system, or those of a PEM file.
pub(crate) fn new(authority: Option<&Path>) -> io::Result<WorkerClient> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.enforce_http(false);
    let builder = match authority {
        None => match HttpsConnectorBuilder::new().with_provider_and_native_roots(default_provider()) {
            Ok(builder) => builder,
            // Without authorities of the system, only plain HTTP is possible.
            Err(_) => HttpsConnectorBuilder::new().with_tls_config(config(RootCertStore::empty())?),
        },
        Some(path) => HttpsConnectorBuilder::new().with_tls_config(config(read(path)?)?),
    };
    let connector = builder.https_or_http().enable_http1().wrap_connector(connector);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE)
        .build(connector))
}

fn config(roots: RootCertStore) -> io::Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn read(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(io::Error::other)? {
        roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    if roots.is_empty() {
        return Err(io::Error::other(format!("no certificate found in `{}`", path.display())));
    }
    Ok(roots)
}
