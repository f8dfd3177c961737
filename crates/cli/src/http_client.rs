//! HTTP client of a running worker or gateway.

use std::time::Duration;

use anyhow::{anyhow, bail};
use sconce::http::client;
use serde_json::Value;

/// Request timeout.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Environment variable with the API key.
const KEY: &str = "SCONCE_API_KEY";

/// HTTP client of one server.
pub(crate) struct Client {
    agent: ureq::Agent,
    pub(crate) url: String,
    key: Option<String>,
}

impl Client {
    pub(crate) fn new(url: &str) -> anyhow::Result<Client> {
        let url = match url.split_once("://") {
            None => format!("http://{url}"),
            Some(("http" | "https", _)) => url.to_owned(),
            Some(_) => bail!("the server URL must start with `http://` or `https://`: `{url}`"),
        };
        let key = std::env::var(KEY).ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        Ok(Client {
            agent: client(TIMEOUT).build().new_agent(),
            url: url.trim_end_matches('/').to_owned(),
            key,
        })
    }

    /// The body of a route.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut request = self.agent.get(self.address(path));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.body(path, request.call())
    }

    /// Posts an empty body.
    pub(crate) fn post(&self, path: &str) -> anyhow::Result<String> {
        let mut request = self.agent.post(self.address(path));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.body(path, request.send_empty())
    }

    /// Posts JSON.
    pub(crate) fn post_json(&self, path: &str, body: &Value) -> anyhow::Result<String> {
        let mut request = self.agent.post(self.address(path)).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.body(path, request.send(body.to_string()))
    }

    /// Deletes what a path names.
    pub(crate) fn delete(&self, path: &str) -> anyhow::Result<String> {
        let mut request = self.agent.delete(self.address(path));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.body(path, request.call())
    }

    fn address(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn body(
        &self,
        path: &str,
        response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> anyhow::Result<String> {
        let mut response = response.map_err(|error| {
            anyhow!(
                "could not connect to: `{}`: {error}\n\
                 hint: `sconce serve MODEL` starts a worker, `sconce pool up MODEL` a pool",
                self.url
            )
        })?;
        let body = response.body_mut().read_to_string()?;
        match response.status().as_u16() {
            200 | 202 => Ok(body),
            401 if self.key.is_some() => {
                bail!(
                    "`{}` rejected the API key in `{KEY}`\nhint: set it to a key of the server's `api_key_file`",
                    self.url
                )
            }
            401 => bail!("`{}` requires an API key\nhint: set `{KEY}`", self.url),
            status => {
                let address = self.address(path);
                match message(&body) {
                    Some(message) => bail!("`{address}`: {message}"),
                    None => bail!("unexpected status of `{address}`: {status}"),
                }
            }
        }
    }
}

/// The message of a refusal.
fn message(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    let error = &body["error"];
    error["message"].as_str().or_else(|| error.as_str()).map(str::to_owned)
}
