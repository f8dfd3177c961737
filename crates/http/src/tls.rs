//! Certificates, and connections under them.

use std::fmt;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// A certificate and its key, as connections are taken under.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
}

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate in it.
    #[error("no certificate in it: a file in PEM form begins with `-----BEGIN CERTIFICATE-----`")]
    NoCertificate,
    /// It is no PEM.
    #[error("it can't be read as PEM")]
    Pem(#[from] pem::Error),
    /// Certificate and key do not go together, or are not known.
    #[error("certificate and key can't be used")]
    Rustls(#[from] rustls::Error),
}

impl Tls {
    /// A chain of certificates, the server's own first, and its key, both in PEM form.
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

    /// A connection under this certificate.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> std::io::Result<TlsStream<S>> {
        TlsAcceptor::from(Arc::clone(&self.config)).accept(stream).await
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a certificate")
    }
}
