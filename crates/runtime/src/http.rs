//! HTTP clients that trust the system's certificate authorities.

use std::sync::Arc;
use std::time::Duration;

use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

/// Configuration of a client with a timeout per request. It uses [`tls`], returns every status as a response, and follows
/// no redirects, so that secrets in headers stay with the configured server.
pub fn client(limit: Duration) -> ConfigBuilder<AgentScope> {
    ureq::Agent::config_builder()
        .timeout_global(Some(limit))
        .http_status_as_error(false)
        .max_redirects(0)
        .tls_config(tls())
}

/// Trusted certificate authorities: from `SSL_CERT_FILE` and `SSL_CERT_DIR`, else the system's, else Mozilla's.
pub fn tls() -> TlsConfig {
    let found = rustls_native_certs::load_native_certs().certs;
    let is_named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().any(|name| std::env::var_os(name).is_some());
    let roots = if found.is_empty() && !is_named {
        RootCerts::WebPki
    } else {
        let roots = found.iter().map(|root| Certificate::from_der(root).to_owned());
        RootCerts::Specific(Arc::new(roots.collect()))
    };
    TlsConfig::builder().root_certs(roots).build()
}
