//! Authentication and TLS.

use std::fs;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use sconce_registry::{Lease, NatsAuth, NatsOptions, NatsRegistry, NatsTls, RegistryError};

use crate::server::Server;

const TTL: Duration = Duration::from_secs(5);

/// A key pair made for this test.
const PUBLIC: &str = "UBIR4Q747ZTLE2FSXTYA4LCTLSPOVF4CX5S2XFVE7Z3TEJNGI3I4RPRV";
const SEED: &str = "SUAAUUVCWQFRPFCZ2VW7KHFAW2ZW4ZNRMAIFKJLAKHYBUJO7AW23QIIMKE";

/// Connects and acquires a lease.
async fn access(options: NatsOptions) -> Result<(), RegistryError> {
    let registry = NatsRegistry::connect(options).await?;
    registry.acquire("place", "me", TTL).await.map(|grant| assert!(grant.is_some()))
}

/// Asserts that access is refused, with this reason.
async fn assert_refused(options: NatsOptions, expected: &str) {
    let outcome = access(options).await;
    let Err(RegistryError::Unavailable { reason, .. }) = &outcome else { panic!("{outcome:?}") };
    assert!(reason.contains(expected), "{reason}");
}

#[tokio::test]
async fn a_token_is_needed() {
    let server = Server::start("authorization { token: secret }");
    let with = |auth| NatsOptions { auth, ..NatsOptions::new([server.url()]) };
    assert_refused(with(NatsAuth::None), "authorization violation").await;
    assert_refused(with(NatsAuth::Token("wrong".to_owned())), "authorization violation").await;
    access(with(NatsAuth::Token("secret".to_owned()))).await.unwrap();
}

#[tokio::test]
async fn an_nkey_is_needed() {
    let server = Server::start(&format!("authorization {{ users: [{{ nkey: {PUBLIC} }}] }}"));
    let with = |auth| NatsOptions { auth, ..NatsOptions::new([server.url()]) };
    assert_refused(with(NatsAuth::None), "authorization violation").await;
    access(with(NatsAuth::NKey(SEED.to_owned()))).await.unwrap();
}

#[tokio::test]
async fn tls_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    fs::write(&certificate, cert.pem()).unwrap();
    fs::write(&key, signing_key.serialize_pem()).unwrap();
    let server = Server::start(&format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\" }}",
        certificate.display(),
        key.display()
    ));
    let with = |tls| NatsOptions { tls, ..NatsOptions::new([server.url()]) };
    access(with(Some(NatsTls { authority: Some(certificate), client: None }))).await.unwrap();
    // The certificate is of no authority of the system.
    assert_refused(with(Some(NatsTls::default())), "IO error").await;
}
