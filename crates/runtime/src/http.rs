//! HTTP clients, which trust the certificate authorities that the system trusts.

use std::sync::Arc;
use std::time::Duration;

use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

/// Settings of a client whose requests take at most `limit` each. It trusts what [`tls`] says, follows no redirect, so
/// that headers with secrets stay with the server that was named, and returns every status as an answer.
pub fn client(limit: Duration) -> ConfigBuilder<AgentScope> {
    ureq::Agent::config_builder()
        .timeout_global(Some(limit))
        .http_status_as_error(false)
        .max_redirects(0)
        .tls_config(tls())
}

/// The certificate authorities that servers are checked against: those in the files that `SSL_CERT_FILE` and
/// `SSL_CERT_DIR` name, else those of the system, else, where the system has none, those of Mozilla.
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
