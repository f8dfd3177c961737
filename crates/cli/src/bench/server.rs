//! Benchmark client for another server: text-embeddings-inference, or an `OpenAI`-compatible server.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use sconce::http::client;
use serde_json::{Value, json};

use crate::server_spec::{Kind, ServerSpec};

/// Texts per request, which servers accept by default.
const MAX_TEXTS: usize = 32;
/// Maximum response size in bytes.
const MAX_RESPONSE: u64 = 256 << 20;
/// Maximum length of a server's error message.
const MAX_ERROR_CHARS: usize = 300;
/// The route of chat completions.
pub(super) const CHAT: &str = "/v1/chat/completions";
/// Environment variable with the API key of an `OpenAI`-compatible server.
const KEY: &str = "OPENAI_API_KEY";

/// A server to benchmark.
pub(super) struct Server {
    spec: ServerSpec,
    model: String,
    key: Option<String>,
    timeout: Duration,
    agent: ureq::Agent,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.url())
    }
}

impl Server {
    pub(super) fn new(spec: &ServerSpec, model: &str, seconds: u16) -> Server {
        let timeout = Duration::from_secs(seconds.into());
        let user_agent = concat!("sconce/", env!("CARGO_PKG_VERSION"));
        let agent = client(timeout).user_agent(user_agent).build().new_agent();
        let key = std::env::var(KEY).ok().filter(|key| spec.kind == Kind::OpenAi && !key.is_empty());
        Server { spec: spec.clone(), model: model.to_owned(), key, timeout, agent }
    }

    /// `tei` or `openai`.
    pub(super) fn kind(&self) -> &'static str {
        match self.spec.kind {
            Kind::Tei => "tei",
            Kind::OpenAi => "openai",
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.spec.url
    }

    /// Embeds the texts, [`MAX_TEXTS`] per request.
    pub(super) fn embed(&self, texts: &[&str]) -> anyhow::Result<Vec<Vec<f32>>> {
        let mut vectors = Vec::with_capacity(texts.len());
        for texts in texts.chunks(MAX_TEXTS) {
            let response = self.request(texts)?;
            let parsed = parse(self.spec.kind, &response, texts.len());
            vectors.extend(parsed.with_context(|| format!("invalid response of `{}`", self.url()))?);
        }
        Ok(vectors)
    }

    /// The model name of requests.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    fn request(&self, texts: &[&str]) -> anyhow::Result<Vec<u8>> {
        let (path, body) = match self.spec.kind {
            Kind::Tei => ("/embed", json!({ "inputs": texts, "truncate": true })),
            Kind::OpenAi => {
                ("/v1/embeddings", json!({ "model": self.model, "input": texts, "encoding_format": "float" }))
            }
        };
        let body = self.post(path, &body)?.into_with_config().limit(MAX_RESPONSE).read_to_vec();
        body.map_err(|error| self.transport_error(&error))
    }

    /// Sends a body, and returns that of a response with status 200.
    pub(super) fn post(&self, path: &str, body: &Value) -> anyhow::Result<ureq::Body> {
        let url = self.url();
        let mut request = self.agent.post(format!("{url}{path}"));
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let response = request.send_json(body).map_err(|error| self.transport_error(&error))?;
        let status = response.status().as_u16();
        let body = response.into_body();
        if status == 200 {
            return Ok(body);
        }
        let body = body.into_with_config().limit(MAX_RESPONSE).read_to_vec();
        let message = error_message(&body.unwrap_or_default());
        let is_chat = path == CHAT;
        let hint = match status {
            401 | 403 => format!("set {KEY} to a valid API key"),
            404 if is_chat => "check the URL, and the model name in `--against-model`".to_owned(),
            400 | 413 | 422 if is_chat => {
                "the server must accept `ignore_eos`, and prompts and outputs of this length".to_owned()
            }
            429 if is_chat => "raise the server's rate limit, or lower `--concurrency`".to_owned(),
            404 => "check the kind of server: `tei=` uses /embed, `openai=` uses /v1/embeddings".to_owned(),
            413 | 422 => {
                format!("the server must accept {MAX_TEXTS} texts per request, and texts of this length")
            }
            429 => "raise the server's rate limit: requests are sent one at a time".to_owned(),
            300..=399 => "redirects are not followed: pass the final URL".to_owned(),
            500..=599 => "see the server's log".to_owned(),
            _ => "only status 200 is supported".to_owned(),
        };
        bail!("`{url}{path}` returned {status}{message}\nhint: {hint}")
    }

    pub(super) fn transport_error(&self, error: &ureq::Error) -> anyhow::Error {
        let url = self.url();
        if matches!(error, ureq::Error::Timeout(_)) {
            let seconds = self.timeout.as_secs();
            return anyhow!("`{url}` timed out after {seconds} s\nhint: raise `--timeout`");
        }
        anyhow!("could not connect to `{url}`: {error}\nhint: check that the server runs, and its URL")
    }
}

/// The error message in a response, on one line.
pub(super) fn error_message(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let pointers = ["/error/message", "/error", "/message", "/detail"];
    let message = pointers.iter().find_map(|pointer| value.pointer(pointer)?.as_str()).unwrap_or(&text);
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let message: String = message.chars().take(MAX_ERROR_CHARS).collect();
    if message.is_empty() { message } else { format!(": {message}") }
}

/// Parses the vectors of a response. Checks their number, equal dimensions, and finite values.
fn parse(kind: Kind, response: &[u8], texts: usize) -> anyhow::Result<Vec<Vec<f32>>> {
    let response: Value = serde_json::from_slice(response).context("not JSON")?;
    let vectors: Vec<Vec<f32>> = match kind {
        Kind::Tei => serde_json::from_value(response).context("not a list of vectors")?,
        Kind::OpenAi => {
            let data = response["data"].as_array().context("missing list `data`")?;
            let mut vectors = vec![Vec::new(); data.len()];
            for (number, item) in data.iter().enumerate() {
                let index = item["index"].as_u64().map_or(number, |index| index as usize);
                let vector =
                    vectors.get_mut(index).with_context(|| format!("index out of range: {index}"))?;
                *vector = serde_json::from_value(item["embedding"].clone())
                    .context("`embedding` is not a list of numbers")?;
            }
            vectors
        }
    };
    ensure!(vectors.len() == texts, "{} vectors for {texts} texts", vectors.len());
    let width = vectors.first().map_or(0, Vec::len);
    ensure!(
        width > 0 && vectors.iter().all(|vector| vector.len() == width),
        "vectors of different dimensions"
    );
    ensure!(vectors.iter().flatten().all(|number| number.is_finite()), "a value is not finite");
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_parsed_in_the_order_of_the_texts() {
        let want = vec![vec![1.0, 2.0], vec![3.0, 4.0]];
        assert_eq!(parse(Kind::Tei, b"[[1, 2], [3, 4.0]]", 2).expect("vectors"), want);
        let reordered =
            br#"{"data": [{"index": 1, "embedding": [3, 4]}, {"index": 0, "embedding": [1, 2]}]}"#;
        assert_eq!(parse(Kind::OpenAi, reordered, 2).expect("vectors"), want);
    }

    #[test]
    fn invalid_responses_are_rejected() {
        for (answer, word) in [
            ("", "not JSON"),
            ("{}", "not a list of vectors"),
            ("[[1, null]]", "not a list of vectors"),
            ("[[1]]", "1 vectors for 2 texts"),
            ("[[], []]", "different dimensions"),
            ("[[1], [1, 2]]", "different dimensions"),
            ("[[1], [1e99]]", "not finite"),
        ] {
            let error = parse(Kind::Tei, answer.as_bytes(), 2).expect_err(answer);
            assert!(format!("{error:#}").contains(word), "{answer}: {error:#}");
        }
        let far = br#"{"data": [{"index": 9, "embedding": [3]}]}"#;
        assert!(parse(Kind::OpenAi, far, 1).is_err() && parse(Kind::OpenAi, b"[]", 0).is_err());
    }
}
