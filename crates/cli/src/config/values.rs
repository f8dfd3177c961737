//! Typed configuration values.

use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use sconce::card::Overrides;
use sconce::planner::evidence::Goal;
use sconce::{Band, Constraints, Device, Runtime};
use sconce_worker::http::{Collector, Keys, LogFormat, Settings as HttpSettings, TelemetryConfig, Tls};
use sconce_worker::{LoadPolicy, Settings};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::config::keys::keys;

/// Keys of a model's table that are not settings.
pub(crate) const MODEL_KEYS: [&str; 2] = ["source", "aliases"];

/// The settings of a server.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a configuration key")]
pub(crate) struct Values {
    pub(crate) name: String,
    pub(crate) any_model: bool,
    pub(crate) strict: bool,
    pub(crate) load_wait: u32,
    pub(crate) idle_unload: u32,
    pub(crate) memory_limit: u64,
    pub(crate) model_sources: Vec<String>,
    pub(crate) shadow_every: u64,
    pub(crate) host: IpAddr,
    pub(crate) port: u16,
    pub(crate) tls_certificate: String,
    pub(crate) tls_key: String,
    pub(crate) cors_origins: Vec<String>,
    pub(crate) worker_id: String,
    pub(crate) registry: Vec<String>,
    pub(crate) pool: String,
    pub(crate) registry_token_file: String,
    pub(crate) registry_nkey_file: String,
    pub(crate) registry_ca: String,
    pub(crate) registry_certificate: String,
    pub(crate) registry_key: String,
    pub(crate) callback_url: String,
    pub(crate) callback_token_file: String,
    pub(crate) advertise_url: String,
    pub(crate) heartbeat: u32,
    pub(crate) exit_with_parent: bool,
    pub(crate) api_key_file: String,
    pub(crate) insecure_no_key: bool,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) max_inputs: usize,
    pub(crate) max_body: usize,
    pub(crate) max_answer: usize,
    pub(crate) queue_seconds: f64,
    pub(crate) max_generations: usize,
    pub(crate) time_limit: u32,
    pub(crate) write_limit: u32,
    pub(crate) grace: u32,
    pub(crate) log_format: String,
    pub(crate) log_requests: bool,
    pub(crate) otlp_endpoint: String,
    pub(crate) threads: usize,
    pub(crate) offline: bool,
}

/// The settings of a model before parsing. An empty string or 0 means unset.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModelSettings {
    engine: String,
    device: String,
    metal_device: String,
    cuda_device: String,
    dtype: String,
    weights: String,
    band: String,
    latency: bool,
    load: String,
    kv_cache: u64,
    kv_cache_dtype: String,
    token_ids: bool,
    task: String,
    pooling: String,
    normalize: String,
    max_length: usize,
    revision: String,
}

/// The settings of a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelSettings {
    pub(crate) constraints: Constraints,
    pub(crate) overrides: Overrides,
    pub(crate) revision: Option<String>,
    pub(crate) when: LoadPolicy,
    /// Bytes of the KV cache.
    pub(crate) kv_cache: Option<u64>,
    pub(crate) token_ids: bool,
}

/// A model to serve.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelEntry {
    pub(crate) name: Option<String>,
    pub(crate) source: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) settings: ModelSettings,
}

/// Parses and validates the settings of a server.
pub(super) fn server(table: Table) -> anyhow::Result<Values> {
    let values: Values = read(table)?;
    let within = |name: &str, value: f64, least: f64, most: f64| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        bail!("`{name}` must be between {least} and {most}: {value}");
    };
    within("max_inputs", values.max_inputs as f64, 1.0, 16384.0)?;
    within("max_body", values.max_body as f64, 1.0, 1024.0)?;
    within("max_answer", values.max_answer as f64, 1.0, 1024.0)?;
    within("write_limit", f64::from(values.write_limit), 1.0, 86400.0)?;
    within("queue_seconds", values.queue_seconds, 0.0, 3600.0)?;
    within("max_generations", values.max_generations as f64, 1.0, 65536.0)?;
    within("time_limit", f64::from(values.time_limit), 1.0, 86400.0)?;
    let is_origin = |origin: &&String| {
        let host = origin.split_once("://").map_or("", |(_, host)| host);
        *origin == "*" || is_url(origin) && !host.is_empty() && !host.contains('/')
    };
    if let Some(other) = values.cors_origins.iter().find(|origin| !is_origin(origin)) {
        bail!("an origin must be `*` or a scheme and host such as `https://example.org`: `{other}`");
    }
    Ok(values)
}

/// Validates the values of `table`, with defaults for all others.
pub(super) fn check(table: &Table, per_model: bool) -> anyhow::Result<()> {
    let some = keys().iter().filter(|key| key.is_per_model() == per_model);
    let mut all: Table = some.map(|key| (key.name.clone(), key.default.clone())).collect();
    all.extend(table.clone());
    if per_model { read::<RawModelSettings>(all)?.parse().map(|_| ()) } else { server(all).map(|_| ()) }
}

/// Parses a model from its own table over the global settings.
pub(super) fn entry(name: Option<String>, table: &Table, mut all: Table) -> anyhow::Result<ModelEntry> {
    let own = table.iter().filter(|(key, _)| !MODEL_KEYS.contains(&key.as_str()));
    all.extend(own.map(|(key, value)| (key.clone(), value.clone())));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let source = table.get("source").and_then(text);
    let source = source.context("missing `source`: a model folder, or a model id on the hub")?;
    let aliases = match table.get("aliases") {
        None => Some(Vec::new()),
        Some(list) => list.as_array().and_then(|list| list.iter().map(text).collect()),
    };
    let aliases = aliases.context("`aliases` must be a list of strings")?;
    Ok(ModelEntry { name, source, aliases, settings: read::<RawModelSettings>(all)?.parse()? })
}

pub(super) fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Rejects samplers that the exporter does not have: it would sample all requests instead.
fn check_sampler(name: Option<&str>, ratio: Option<&str>) -> anyhow::Result<()> {
    match name {
        None | Some("always_on" | "always_off" | "parentbased_always_on" | "parentbased_always_off") => {
            Ok(())
        }
        Some("traceidratio" | "parentbased_traceidratio") => match ratio {
            Some(ratio) if !ratio.parse().is_ok_and(|ratio: f64| (0.0..=1.0).contains(&ratio)) => {
                bail!("`OTEL_TRACES_SAMPLER_ARG` must be a number from 0 to 1: `{ratio}`")
            }
            Some(_) | None => Ok(()),
        },
        Some(name) => bail!(
            "`OTEL_TRACES_SAMPLER` is not supported: `{name}`\nhint: `OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.1`"
        ),
    }
}

fn read<T: DeserializeOwned>(table: Table) -> anyhow::Result<T> {
    Value::Table(table).try_into().map_err(|error: toml::de::Error| anyhow::anyhow!("{}", error.message()))
}

/// Parses a string. An empty string is `None`.
fn parse_optional<T: FromStr<Err: std::fmt::Display>>(text: &str) -> anyhow::Result<Option<T>> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error: T::Err| anyhow::anyhow!("{error}"))
}

impl RawModelSettings {
    /// The device of `device`, `metal_device` or `cuda_device`.
    fn device(&self) -> anyhow::Result<Option<Device>> {
        let numbered = |kind: &str, number: &str| {
            if number.is_empty() { String::new() } else { format!("{kind}:{number}") }
        };
        let candidates =
            [self.device.clone(), numbered("metal", &self.metal_device), numbered("cuda", &self.cuda_device)];
        let named: Vec<&String> = candidates.iter().filter(|name| !name.is_empty()).collect();
        match named.as_slice() {
            [] => Ok(None),
            [one] => parse_optional(one),
            _ => bail!("set only one of `device`, `metal_device` and `cuda_device`"),
        }
    }

    fn parse(&self) -> anyhow::Result<ModelSettings> {
        let constraints = Constraints {
            engine: parse_optional(&self.engine)?,
            device: self.device()?,
            dtype: parse_optional(&self.dtype)?,
            weights: parse_optional(&self.weights)?,
            band: parse_optional(&self.band)?.unwrap_or(Band::Half),
            goal: if self.latency { Goal::Latency } else { Goal::Throughput },
        };
        let overrides = Overrides {
            task: parse_optional(&self.task)?,
            pooling: parse_optional(&self.pooling)?,
            normalize: parse_optional(&self.normalize)?,
            max_length: (self.max_length > 0).then_some(self.max_length),
            kv_cache_dtype: parse_optional(&self.kv_cache_dtype)?,
        };
        let when = match self.load.as_str() {
            "start" => LoadPolicy::Startup,
            "demand" => LoadPolicy::OnDemand,
            other => bail!("`load` must be `start` or `demand`: {other}"),
        };
        let (revision, token_ids) = (parse_optional(&self.revision)?, self.token_ids);
        let kv_cache = (self.kv_cache > 0).then_some(self.kv_cache.saturating_mul(1_000_000));
        Ok(ModelSettings { constraints, overrides, revision, when, kv_cache, token_ids })
    }
}

impl Values {
    /// The server settings with these API keys.
    pub(crate) fn settings(&self, keys: Keys) -> Settings {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Settings {
            http: HttpSettings {
                keys,
                max_body: self.max_body << 20,
                max_answer: self.max_answer << 20,
                time_limit: seconds(self.time_limit),
                write_limit: seconds(self.write_limit),
                grace: seconds(self.grace),
                allowed_hosts: self.allowed_hosts.clone(),
                cors_origins: self.cors_origins.clone(),
                ..HttpSettings::default()
            },
            strict: self.strict,
            any_model: self.any_model,
            max_inputs: self.max_inputs,
            queue_seconds: self.queue_seconds,
            max_generations: self.max_generations,
            load_wait: seconds(self.load_wait),
            idle_unload: (self.idle_unload > 0).then(|| seconds(self.idle_unload)),
            model_sources: self.model_sources.clone(),
            shadow_every: self.shadow_every,
            memory_limit: (self.memory_limit > 0).then_some(self.memory_limit * 1_000_000),
            ..Settings::default()
        }
    }

    /// The telemetry settings. OpenTelemetry's environment variables apply where no key is set; the exporter reads
    /// headers, service name, resource attributes and sampler itself.
    pub(crate) fn telemetry(&self) -> anyhow::Result<TelemetryConfig> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let from_environment = || variable("OTEL_EXPORTER_OTLP_ENDPOINT").filter(|_| !self.offline);
        let configured = Some(self.otlp_endpoint.clone()).filter(|endpoint| !endpoint.is_empty());
        if configured.is_some() && self.offline {
            bail!(
                "`otlp_endpoint` needs a network connection, and `offline` is set\nhint: unset one of them"
            );
        }
        let endpoint = configured.or_else(from_environment);
        if let Some(endpoint) = endpoint.as_ref().filter(|url| !is_url(url)) {
            bail!("the OTLP endpoint must start with `http://` or `https://`: `{endpoint}`");
        }
        if endpoint.is_some() {
            let (name, ratio) = (variable("OTEL_TRACES_SAMPLER"), variable("OTEL_TRACES_SAMPLER_ARG"));
            check_sampler(name.as_deref(), ratio.as_deref())?;
        }
        Ok(TelemetryConfig {
            log: Some(self.log()?),
            requests: self.log_requests,
            traces: endpoint.map(|endpoint| Collector {
                endpoint,
                headers: Vec::new(),
                service: "sconce".to_owned(),
                tls: sconce::http::tls(),
            }),
        })
    }

    /// The log format.
    pub(crate) fn log(&self) -> anyhow::Result<LogFormat> {
        Ok(parse_optional(&self.log_format)?.unwrap_or_default())
    }

    /// Reads the TLS certificate and its key.
    pub(crate) fn tls(&self) -> anyhow::Result<Option<Tls>> {
        let (certificate, key) = match (self.tls_certificate.as_str(), self.tls_key.as_str()) {
            ("", "") => return Ok(None),
            ("", _) | (_, "") => bail!("`tls_certificate` and `tls_key` must be set together"),
            both => both,
        };
        let read = |path: &str| std::fs::read(path).with_context(|| format!("could not read: `{path}`"));
        let tls = Tls::read(&read(certificate)?, &read(key)?);
        Ok(Some(tls.with_context(|| format!("`{certificate}` and `{key}`"))?))
    }

    /// The API keys of the file, and `one`.
    pub(crate) fn keys(&self, one: Option<&str>) -> anyhow::Result<Keys> {
        let mut keys = Keys::default();
        if !self.api_key_file.is_empty() {
            let path = Path::new(&self.api_key_file);
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("could not read: `{}`", path.display()))?;
            keys.extend(Keys::read(&text).with_context(|| format!("`{}`", path.display()))?);
        }
        if let Some(one) = one.filter(|one| !one.trim().is_empty()) {
            keys.extend(Keys::read(one)?);
        }
        Ok(keys)
    }

    /// The runtime that all models share.
    pub(crate) fn runtime(&self) -> Runtime {
        let builder = Runtime::builder().offline(self.offline);
        if self.threads > 0 { builder.threads(self.threads).build() } else { builder.build() }
    }
}
