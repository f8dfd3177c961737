//! The settings of a worker in a pool: callbacks and the registry.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use sconce_worker::registry::{NatsAuth, NatsOptions, NatsTls};
use sconce_worker::{Callback, PoolRegistry, Worker};

use crate::config::values::{Values, is_url};

/// The environment variable with the token of the registry.
const REGISTRY_TOKEN_VARIABLE: &str = "SCONCE_REGISTRY_TOKEN";
/// The environment variable with the NKey seed of the registry.
const REGISTRY_NKEY_VARIABLE: &str = "SCONCE_REGISTRY_NKEY";

impl Values {
    /// The pool settings. Reads the files of secrets.
    pub(crate) fn worker(&self) -> anyhow::Result<Worker> {
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let token = read_secret(&self.callback_token_file)?.unwrap_or_default();
        let heartbeat = (self.heartbeat > 0).then(|| Duration::from_secs(self.heartbeat.into()));
        for (name, url) in [("callback_url", &self.callback_url), ("advertise_url", &self.advertise_url)] {
            if !url.is_empty() && !is_url(url) {
                bail!("`{name}` must start with `http://` or `https://`: `{url}`");
            }
        }
        let callback = text(&self.callback_url).map(|url| Callback { url, token });
        let (id, url) = (self.worker_id.clone(), text(&self.advertise_url));
        let registry = self.registry(|name| std::env::var(name).ok())?;
        if registry.is_some() && id.is_empty() {
            bail!("a worker in a registry needs an id\nhint: set `--worker-id NAME`");
        }
        Ok(Worker { id, url, callback, heartbeat, registry })
    }

    /// The registry of the pool, with secrets from files or from environment variables.
    pub(super) fn registry(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Option<PoolRegistry>> {
        if self.registry.is_empty() {
            return Ok(None);
        }
        if self.registry.iter().any(|server| server.contains('@')) {
            bail!(
                "`registry` must not contain a user or a password\n\
                 hint: set `--registry-token-file FILE`, or `{REGISTRY_TOKEN_VARIABLE}`"
            );
        }
        let secret = |file: &str, name: &str| {
            let value = variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
            anyhow::Ok(read_secret(file)?.or(value))
        };
        let token = secret(&self.registry_token_file, REGISTRY_TOKEN_VARIABLE)?;
        let seed = secret(&self.registry_nkey_file, REGISTRY_NKEY_VARIABLE)?;
        let mut options = NatsOptions::new(&self.registry);
        options.pool.clone_from(&self.pool);
        options.auth = match (token, seed) {
            (None, None) => NatsAuth::None,
            (Some(token), None) => NatsAuth::Token(token),
            (None, Some(seed)) => NatsAuth::NKey(seed),
            (Some(_), Some(_)) => bail!("set only one of the token and the NKey seed of the registry"),
        };
        let path = |text: &str| Some(PathBuf::from(text)).filter(|_| !text.is_empty());
        let authority = path(&self.registry_ca);
        let client = match (path(&self.registry_certificate), path(&self.registry_key)) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) | (None, Some(_)) => {
                bail!("`registry_certificate` and `registry_key` must be set together")
            }
        };
        if authority.is_some() || client.is_some() {
            options.tls = Some(NatsTls { authority, client });
        }
        Ok(Some(PoolRegistry::Nats(Box::new(options))))
    }
}

/// Reads a secret from a file, without surrounding whitespace. An empty path is `None`.
fn read_secret(path: &str) -> anyhow::Result<Option<String>> {
    if path.is_empty() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("could not read: `{path}`"))?;
    Ok(Some(text.trim().to_owned()))
}
