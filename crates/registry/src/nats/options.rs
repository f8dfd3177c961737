//! How to reach NATS.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};

use crate::registry::RegistryError;

/// Maximum delay between two attempts to connect.
const MAX_RECONNECT_DELAY: Duration = Duration::from_millis(500);

/// How to reach NATS.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// Servers of one cluster, as `nats://HOST:PORT` or `tls://HOST:PORT`.
    pub servers: Vec<String>,
    /// Authentication.
    pub auth: NatsAuth,
    /// TLS; `None` uses it where the server or the URL asks for it, with the certificate authorities of the system.
    pub tls: Option<NatsTls>,
    /// Name of the pool: its buckets are `NAME-members`, `NAME-leases`, `NAME-bindings` and
    /// `NAME-desired`.
    pub pool: String,
    /// Number of servers that store each entry.
    pub replicas: usize,
    /// Interval of pings. A connection without answers to three pings is closed.
    pub ping_interval: Duration,
    /// Timeout of a request.
    pub timeout: Duration,
}

impl NatsOptions {
    /// The defaults, for these servers.
    pub fn new(servers: impl IntoIterator<Item = impl Into<String>>) -> NatsOptions {
        NatsOptions {
            servers: servers.into_iter().map(Into::into).collect(),
            auth: NatsAuth::None,
            tls: None,
            pool: "sconce".to_owned(),
            replicas: 1,
            ping_interval: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
        }
    }

    /// The addresses of the servers.
    pub(super) fn addresses(&self) -> Result<Vec<ServerAddr>, RegistryError> {
        if self.servers.is_empty() {
            return Err(invalid("NATS server", "", "at least one is needed"));
        }
        let parse = |server: &String| {
            server.parse::<ServerAddr>().map_err(|error| invalid("NATS server", server, error))
        };
        self.servers.iter().map(parse).collect()
    }

    /// The name of a bucket.
    pub(super) fn bucket(&self, suffix: &str) -> Result<String, RegistryError> {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if self.pool.is_empty() || !self.pool.bytes().all(is_valid) {
            return Err(invalid("pool", &self.pool, "only letters, digits, `-` and `_` are allowed"));
        }
        Ok(format!("{}-{suffix}", self.pool))
    }

    /// The options of the client.
    pub(super) fn connect_options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new()
            .name(concat!("sconce ", env!("CARGO_PKG_VERSION")))
            .ping_interval(self.ping_interval)
            .connection_timeout(self.timeout)
            .request_timeout(Some(self.timeout))
            .retry_on_initial_connect()
            .reconnect_delay_callback(|attempts| {
                let exponent = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(10);
                Duration::from_millis(10 * 2_u64.pow(exponent)).min(MAX_RECONNECT_DELAY)
            });
        options = match &self.auth {
            NatsAuth::None => options,
            NatsAuth::Token(token) => options.token(token.clone()),
            NatsAuth::NKey(seed) => options.nkey(seed.clone()),
        };
        if let Some(tls) = &self.tls {
            options = options.require_tls(true);
            if let Some(authority) = &tls.authority {
                options = options.add_root_certificates(authority.clone());
            }
            if let Some((certificate, key)) = &tls.client {
                options = options.add_client_certificate(certificate.clone(), key.clone());
            }
        }
        options
    }
}

fn invalid(option: &'static str, value: &str, reason: impl fmt::Display) -> RegistryError {
    RegistryError::Option { option, value: value.to_owned(), reason: reason.to_string() }
}

/// Authentication with NATS. Its debug output hides secrets.
#[derive(Clone, Default)]
pub enum NatsAuth {
    /// None.
    #[default]
    None,
    /// A token that all clients share.
    Token(String),
    /// The seed of an NKey (`SU…`), which signs a challenge and is never sent.
    NKey(String),
}

impl fmt::Debug for NatsAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NatsAuth::None => "None",
            NatsAuth::Token(_) => "Token(…)",
            NatsAuth::NKey(_) => "NKey(…)",
        })
    }
}

/// TLS to NATS.
#[derive(Clone, Debug, Default)]
pub struct NatsTls {
    /// PEM file of certificate authorities; those of the system by default.
    pub authority: Option<PathBuf>,
    /// PEM files of a client certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_checked() {
        let mut options = NatsOptions::new(["nats://127.0.0.1:4222"]);
        assert_eq!(options.bucket("members").unwrap(), "sconce-members");
        options.pool = "a b".to_owned();
        let error = options.bucket("members").unwrap_err().to_string();
        assert_eq!(error, "pool `a b` is not valid: only letters, digits, `-` and `_` are allowed");
        assert!(NatsOptions::new([""; 0]).addresses().is_err());
        let error = NatsOptions::new(["http://127.0.0.1"]).addresses().unwrap_err().to_string();
        assert!(error.starts_with("NATS server `http://127.0.0.1` is not valid: "), "{error}");
    }

    #[test]
    fn debug_output_hides_secrets() {
        for auth in [NatsAuth::Token("secret".to_owned()), NatsAuth::NKey("secret".to_owned())] {
            assert!(!format!("{auth:?}").contains("secret"));
        }
    }
}
