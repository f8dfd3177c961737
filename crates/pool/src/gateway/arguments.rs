//! Command-line arguments of a gateway. Names are those of `sconce serve`; `SCONCE_SERVE_PORT` sets `--port`.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser};
use sconce_http::{Collector, Keys, LogFormat, TelemetryConfig, Tls};
use sconce_registry::{NatsAuth, NatsOptions, NatsTls};

use super::run::RunSettings;
use super::server::GatewayError;
use super::settings::GatewaySettings;

/// The variable with one API key.
const API_KEY_VARIABLE: &str = "SCONCE_API_KEY";
/// The variable with the API key of the pool.
const POOL_KEY_VARIABLE: &str = "SCONCE_POOL_KEY";

/// The variable with the API key for the operator routes of workers.
const OPERATOR_KEY_VARIABLE: &str = "SCONCE_OPERATOR_KEY";

/// Serves the workers of a pool under one address.
#[derive(Clone, Debug, Parser)]
#[command(name = "sconce-gateway", version)]
pub struct Arguments {
    #[command(flatten)]
    network: Network,
    #[command(flatten)]
    keys: KeyArguments,
    #[command(flatten)]
    registry: Registry,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    log: Log,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Network")]
struct Network {
    /// Address to listen on; an address that other machines can reach requires an API key
    #[arg(long, env = "SCONCE_SERVE_HOST", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 selects a free port
    #[arg(long, env = "SCONCE_SERVE_PORT", default_value_t = 8080)]
    port: u16,
    /// TLS certificate chain in PEM format, the server's certificate first
    #[arg(long, env = "SCONCE_SERVE_TLS_CERTIFICATE", value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the TLS certificate in PEM format
    #[arg(long, env = "SCONCE_SERVE_TLS_KEY", value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Certificate authorities of workers in PEM format; those of the system by default
    #[arg(long, env = "SCONCE_POOL_WORKER_CA", value_name = "FILE")]
    worker_ca: Option<PathBuf>,
    /// Allowed CORS origins, such as `https://example.org`; `*` allows all
    #[arg(long, env = "SCONCE_SERVE_CORS_ORIGINS", value_name = "LIST", value_delimiter = ',')]
    cors_origins: Vec<String>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Authentication")]
struct KeyArguments {
    /// File of API keys, one per line; `SCONCE_API_KEY` adds one key
    #[arg(long, env = "SCONCE_SERVE_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// File with the API key that the gateway sends to workers; `SCONCE_POOL_KEY` sets the key itself
    #[arg(long, env = "SCONCE_POOL_KEY_FILE", value_name = "FILE")]
    pool_key_file: Option<PathBuf>,
    /// File with the API key by which the gateway loads and unloads models of workers; that of the pool by default;
    /// `SCONCE_OPERATOR_KEY` sets the key itself
    #[arg(long, env = "SCONCE_POOL_OPERATOR_KEY_FILE", value_name = "FILE")]
    operator_key_file: Option<PathBuf>,
    /// Allow unauthenticated requests from other machines
    #[arg(long, env = "SCONCE_SERVE_INSECURE_NO_KEY")]
    insecure_no_key: bool,
    /// Allowed `Host` headers without an API key; `*` allows all
    #[arg(long, env = "SCONCE_SERVE_ALLOWED_HOSTS", value_name = "LIST", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Registry")]
#[expect(clippy::struct_field_names, reason = "each is an argument")]
struct Registry {
    /// URLs of the NATS servers in which the workers register
    #[arg(
        long,
        env = "SCONCE_SERVE_REGISTRY",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "nats://127.0.0.1:4222"
    )]
    registry: Vec<String>,
    /// File with the token of NATS
    #[arg(
        long,
        env = "SCONCE_SERVE_REGISTRY_TOKEN_FILE",
        value_name = "FILE",
        conflicts_with = "registry_nkey_file"
    )]
    registry_token_file: Option<PathBuf>,
    /// File with the NKey seed of NATS
    #[arg(long, env = "SCONCE_SERVE_REGISTRY_NKEY_FILE", value_name = "FILE")]
    registry_nkey_file: Option<PathBuf>,
    /// Certificate authorities of NATS in PEM format; those of the system by default
    #[arg(long, env = "SCONCE_SERVE_REGISTRY_CA", value_name = "FILE")]
    registry_ca: Option<PathBuf>,
    /// Name of the pool
    #[arg(long, env = "SCONCE_SERVE_POOL", value_name = "NAME", default_value = "sconce")]
    pool: String,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
struct Limits {
    /// Maximum request body in MiB
    #[arg(long, env = "SCONCE_SERVE_MAX_BODY", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_body: u16,
    /// Request timeout in seconds
    #[arg(long, env = "SCONCE_SERVE_TIME_LIMIT", value_name = "N", default_value_t = 60)]
    time_limit: u32,
    /// Write timeout in seconds: a client that reads nothing for this long is disconnected
    #[arg(long, env = "SCONCE_SERVE_WRITE_LIMIT", value_name = "N", default_value_t = 30)]
    write_limit: u32,
    /// Seconds that requests in flight may take after SIGTERM
    #[arg(long, env = "SCONCE_SERVE_GRACE", value_name = "N", default_value_t = 30)]
    grace: u32,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Telemetry")]
#[expect(clippy::struct_field_names, reason = "each is an argument")]
struct Log {
    /// Log format on standard error: `human`, `json`
    #[arg(long, env = "SCONCE_SERVE_LOG_FORMAT", value_name = "TEXT", default_value = "human")]
    log_format: LogFormat,
    /// Log every request, not only server errors
    #[arg(long, env = "SCONCE_SERVE_LOG_REQUESTS")]
    log_requests: bool,
    /// OTLP/HTTP endpoint for traces
    #[arg(long, env = "SCONCE_SERVE_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
}

impl Arguments {
    /// The settings of the gateway. Reads the files that the arguments name.
    pub fn settings(&self) -> Result<RunSettings, GatewayError> {
        let keys = self.keys()?;
        let Network { host, port, .. } = self.network;
        if keys.is_empty() && !host.is_loopback() && !self.keys.insecure_no_key {
            return Err(invalid(format!(
                "`{host}` is reachable from other machines, and no API key is set\n\
                 hint: set one with `--api-key-file FILE` or `{API_KEY_VARIABLE}`, or allow all requests with \
                 `--insecure-no-key`"
            )));
        }
        let seconds = |seconds: u32| Duration::from_secs(u64::from(seconds));
        let http = sconce_http::Settings {
            keys,
            max_body: usize::from(self.limits.max_body) << 20,
            time_limit: seconds(self.limits.time_limit.max(1)),
            write_limit: seconds(self.limits.write_limit.max(1)),
            grace: seconds(self.limits.grace),
            tls: self.tls()?,
            allowed_hosts: self.keys.allowed_hosts.clone(),
            cors_origins: self.network.cors_origins.clone(),
            telemetry: self.telemetry(),
            ..sconce_http::Settings::default()
        };
        let gateway = GatewaySettings {
            http,
            pool_key: key(self.keys.pool_key_file.as_deref(), POOL_KEY_VARIABLE)?,
            operator_key: key(self.keys.operator_key_file.as_deref(), OPERATOR_KEY_VARIABLE)?,
            worker_authority: self.network.worker_ca.clone(),
        };
        Ok(RunSettings { address: SocketAddr::new(host, port), nats: self.nats()?, gateway })
    }

    /// Makes the line that says where the gateway listens.
    pub fn announcement(&self) -> impl Fn(SocketAddr) -> String + use<> {
        let (format, is_tls) = (self.log.log_format, self.network.tls_certificate.is_some());
        move |address| {
            let address = format!("{}://{address}", if is_tls { "https" } else { "http" });
            match format {
                LogFormat::Human => format!("listening on {address}"),
                LogFormat::Json => format.line("listening", &[("address", address.into())]),
            }
        }
    }

    /// The last line of a gateway that failed.
    pub fn error(&self, error: &GatewayError) -> String {
        match self.log.log_format {
            LogFormat::Human => format!("error: {error}"),
            LogFormat::Json => self.log.log_format.error("ended", &[("why", error.to_string().into())]),
        }
    }

    fn keys(&self) -> Result<Keys, GatewayError> {
        let mut keys = Keys::default();
        if let Some(path) = &self.keys.api_key_file {
            let read = Keys::read(&read(path)?);
            keys.extend(read.map_err(|error| invalid(format!("`{}`: {error}", path.display())))?);
        }
        if let Some(key) = variable(API_KEY_VARIABLE) {
            keys.extend(Keys::read(&key).map_err(|error| invalid(format!("`{API_KEY_VARIABLE}`: {error}")))?);
        }
        Ok(keys)
    }

    fn tls(&self) -> Result<Option<Tls>, GatewayError> {
        let (Some(certificate), Some(key)) = (&self.network.tls_certificate, &self.network.tls_key) else {
            return Ok(None);
        };
        let tls = Tls::read(read(certificate)?.as_bytes(), read(key)?.as_bytes());
        let invalid =
            |error| invalid(format!("`{}` and `{}`: {error}", certificate.display(), key.display()));
        tls.map(Some).map_err(invalid)
    }

    fn nats(&self) -> Result<NatsOptions, GatewayError> {
        let Registry { registry, registry_token_file, registry_nkey_file, registry_ca, pool } =
            &self.registry;
        let auth = match (registry_token_file, registry_nkey_file) {
            (Some(path), _) => NatsAuth::Token(secret(path)?),
            (None, Some(path)) => NatsAuth::NKey(secret(path)?),
            (None, None) => NatsAuth::None,
        };
        let tls = registry_ca.clone().map(|path| NatsTls { authority: Some(path), client: None });
        Ok(NatsOptions { auth, tls, pool: pool.clone(), ..NatsOptions::new(registry.clone()) })
    }

    fn telemetry(&self) -> TelemetryConfig {
        let endpoint = self.log.otlp_endpoint.clone().or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT"));
        TelemetryConfig {
            log: Some(self.log.log_format),
            requests: self.log.log_requests,
            traces: endpoint.map(|endpoint| Collector {
                endpoint,
                headers: Vec::new(),
                service: "sconce-gateway".to_owned(),
                tls: ureq::tls::TlsConfig::default(),
            }),
        }
    }
}

/// A key of a file, or of a variable.
fn key(file: Option<&Path>, name: &str) -> Result<Option<String>, GatewayError> {
    match file {
        Some(path) => secret(path).map(Some),
        None => Ok(variable(name)),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn read(path: &Path) -> Result<String, GatewayError> {
    fs::read_to_string(path)
        .map_err(|error| invalid(format!("could not read: `{}`: {error}", path.display())))
}

/// A file with one line.
fn secret(path: &Path) -> Result<String, GatewayError> {
    Ok(read(path)?.trim().to_owned())
}

fn invalid(message: String) -> GatewayError {
    GatewayError::Settings(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<RunSettings, GatewayError> {
        Arguments::parse_from([&["sconce-gateway"], arguments].concat()).settings()
    }

    #[test]
    fn arguments_are_those_of_a_server() {
        let settings =
            parsed(&["--port", "0", "--registry", "nats://a:1,nats://b:2", "--time-limit", "5"]).unwrap();
        assert_eq!(settings.address, "127.0.0.1:0".parse().unwrap());
        assert_eq!(settings.nats.servers, ["nats://a:1", "nats://b:2"]);
        assert_eq!(settings.gateway.http.time_limit, Duration::from_secs(5));
        assert!(settings.gateway.pool_key.is_none());
    }

    #[test]
    fn an_address_that_others_reach_needs_a_key() {
        let error = parsed(&["--host", "0.0.0.0"]).unwrap_err().to_string();
        assert!(error.contains("no API key is set") && error.contains("hint: "), "{error}");
        parsed(&["--host", "0.0.0.0", "--insecure-no-key"]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (keys, ours) = (file("keys", "one rate=5\n"), file("ours", "secret\n"));
        let settings =
            parsed(&["--host", "0.0.0.0", "--api-key-file", &keys, "--pool-key-file", &ours]).unwrap();
        assert_eq!(settings.gateway.pool_key.as_deref(), Some("secret"));
        assert_eq!(settings.gateway.operator_key, None, "that of the pool is used");
        let settings = parsed(&["--operator-key-file", &ours]).unwrap();
        assert_eq!(settings.gateway.operator_key.as_deref(), Some("secret"));
        assert!(!format!("{settings:?}").contains("secret"), "secrets are not shown");
        let settings =
            parsed(&["--host", "0.0.0.0", "--api-key-file", &keys, "--pool-key-file", &ours]).unwrap();
        assert!(!settings.gateway.http.keys.is_empty());
        assert!(!format!("{settings:?}").contains("secret"), "secrets are not shown");
        let error = parsed(&["--api-key-file", "/no/such/file"]).unwrap_err().to_string();
        assert!(error.starts_with("could not read: `/no/such/file`"), "{error}");
    }
}
