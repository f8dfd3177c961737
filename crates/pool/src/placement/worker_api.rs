//! The operator routes of workers: what a model would take, load, unload.

use std::time::Duration;

use axum::http::{HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use sconce_http::refusal::CODE_HEADER;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::fit::Fit;
use crate::model_path::model_path;
use crate::worker_client::WorkerClient;

/// Timeout of a request that should be answered at once.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Seconds that a worker may wait for the end of a load before it answers.
const WAIT: u64 = 30;
/// Time that a load may take.
const LOAD_TIMEOUT: Duration = Duration::from_hours(2);
/// Maximum bytes of an answer.
const MAX_ANSWER: usize = 1 << 20;

/// A client of the operator routes of workers.
pub(crate) struct WorkerApi {
    client: WorkerClient,
    /// The value of `authorization`.
    key: Option<HeaderValue>,
}

/// An answer of a worker.
struct Answer {
    status: StatusCode,
    code: Option<String>,
    body: Bytes,
}

impl Answer {
    /// Why the worker refused.
    fn reason(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let message =
            body["error"]["message"].as_str().map(|text| text.lines().next().unwrap_or_default().to_owned());
        message.unwrap_or_else(|| format!("it answered {}", self.status))
    }
}

impl WorkerApi {
    /// A client that sends this key.
    pub(crate) fn new(client: WorkerClient, key: Option<&str>) -> WorkerApi {
        let key =
            key.and_then(|key| HeaderValue::from_str(&format!("Bearer {key}")).ok()).map(|mut value| {
                value.set_sensitive(true);
                value
            });
        WorkerApi { client, key }
    }

    /// What a load of `source` would take at the worker with this URL.
    pub(super) async fn fit(&self, url: &str, source: &str) -> Result<Fit, String> {
        let body = json!({ "source": source });
        let answer = self.send(Method::POST, url, "/v1/fit", &body, None, TIMEOUT).await?;
        if answer.status != StatusCode::OK {
            return Err(answer.reason());
        }
        serde_json::from_slice(&answer.body).map_err(|error| format!("its answer is not valid: {error}"))
    }

    /// Loads a model, and waits until that has succeeded or failed.
    pub(super) async fn load(&self, url: &str, model: &str, source: &str) -> Result<(), String> {
        let body = json!({ "source": source, "name": model, "managed": true });
        let load = async {
            loop {
                let limit = Duration::from_secs(WAIT) + TIMEOUT;
                let answer = self.send(Method::POST, url, "/v1/models", &body, Some(WAIT), limit).await?;
                match answer.status {
                    StatusCode::OK => return Ok(()),
                    StatusCode::ACCEPTED => {}
                    _ if answer.code.as_deref() == Some("timed_out") => {}
                    _ => return Err(answer.reason()),
                }
            }
        };
        timeout(LOAD_TIMEOUT, load).await.unwrap_or_else(|_| Err("the load takes too long".to_owned()))
    }

    /// Unloads a model. One that is not there is unloaded.
    pub(super) async fn unload(&self, url: &str, model: &str) -> Result<(), String> {
        let answer = self.send(Method::DELETE, url, &model_path(model), &Value::Null, None, TIMEOUT).await?;
        match answer.status {
            StatusCode::OK | StatusCode::NOT_FOUND => Ok(()),
            _ => Err(answer.reason()),
        }
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        path: &str,
        body: &Value,
        wait: Option<u64>,
        limit: Duration,
    ) -> Result<Answer, String> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", url.trim_end_matches('/')))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, key);
        }
        if let Some(wait) = wait {
            request = request.header("prefer", format!("wait={wait}"));
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|_| "it can't be reached".to_owned())?;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body = body.map_err(|error| format!("its answer broke off: {error}"))?.to_bytes();
            let code = parts.headers.get(CODE_HEADER).and_then(|code| code.to_str().ok()).map(str::to_owned);
            Ok(Answer { status: parts.status, code, body })
        };
        timeout(limit, exchange).await.unwrap_or_else(|_| Err("it does not answer".to_owned()))
    }
}
