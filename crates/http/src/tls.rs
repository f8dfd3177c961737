//! TLS: certificates and the handshake.

use std::fmt;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// A certificate chain and its private key.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
}

/// Why a certificate is invalid.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file contains no certificate.
    #[error("no certificate found: a PEM file begins with `-----BEGIN CERTIFICATE-----`")]
    NoCertificate,
    /// The file is not valid PEM.
    #[error("invalid PEM")]
    Pem(#[from] pem::Error),
    /// The certificate and the key do not match, or are not supported.
    #[error("invalid certificate or key")]
    Rustls(#[from] rustls::Error),
}

impl Tls {
    /// Reads a certificate chain, leaf first, and its private key, both in PEM.
    pub fn read(certificates: &[u8], key: &[u8]) -> Result<Tls, TlsError> {
        let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<Vec<_>, _>>()?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key)?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { config: Arc::new(config) })
    }

    /// Performs the TLS handshake of a connection.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> std::io::Result<TlsStream<S>> {
        TlsAcceptor::from(Arc::clone(&self.config)).accept(stream).await
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}
