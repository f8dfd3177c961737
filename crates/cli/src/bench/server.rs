//! Another server, driven with the same texts: text-embeddings-inference, or anything that speaks as `OpenAI` does.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use sconce::http::client;
use serde_json::{Value, json};

/// Texts of one request: what servers take without a word in their settings.
const MOST: usize = 32;
/// Longer answers are not read.
const LONGEST_ANSWER: u64 = 256 << 20;
/// How much of a complaint is passed on.
const WORDS: usize = 300;
/// The variable that holds the key of a server that speaks as `OpenAI` does.
const KEY: &str = "OPENAI_API_KEY";

/// A server as it is typed: `tei=URL` or `openai=URL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    kind: Kind,
    url: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tei,
    OpenAi,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let (kind, url) = match text.split_once('=') {
            Some(("tei", url)) => (Kind::Tei, url),
            Some(("openai", url)) => (Kind::OpenAi, url),
            Some(_) | None => return Err("say what it is: tei=URL or openai=URL".to_owned()),
        };
        if !["http://", "https://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme)) {
            return Err(format!("an address begins with http:// or https://, not: {url}"));
        }
        let url = url.trim_end_matches('/');
        let url = if kind == Kind::OpenAi { url.trim_end_matches("/v1") } else { url };
        Ok(Address { kind, url: url.to_owned() })
    }
}

/// A server to ask.
pub(super) struct Server {
    address: Address,
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
    pub(super) fn at(address: &Address, model: &str, seconds: u16) -> Server {
        let timeout = Duration::from_secs(seconds.into());
        let user_agent = concat!("sconce/", env!("CARGO_PKG_VERSION"));
        let agent = client(timeout).user_agent(user_agent).build().new_agent();
        let key = std::env::var(KEY).ok().filter(|key| address.kind == Kind::OpenAi && !key.is_empty());
        Server { address: address.clone(), model: model.to_owned(), key, timeout, agent }
    }

    /// `tei` or `openai`.
    pub(super) fn kind(&self) -> &'static str {
        match self.address.kind {
            Kind::Tei => "tei",
            Kind::OpenAi => "openai",
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.address.url
    }

    /// One vector for each text, so many texts a request as servers take.
    pub(super) fn embed(&self, texts: &[&str]) -> anyhow::Result<Vec<Vec<f32>>> {
        let mut vectors = Vec::with_capacity(texts.len());
        for texts in texts.chunks(MOST) {
            let answer = self.ask(texts)?;
            let some = read(self.address.kind, &answer, texts.len());
            vectors.extend(some.with_context(|| format!("`{}` answered nonsense", self.url()))?);
        }
        Ok(vectors)
    }

    fn ask(&self, texts: &[&str]) -> anyhow::Result<Vec<u8>> {
        let url = self.url();
        let (path, body) = match self.address.kind {
            Kind::Tei => ("/embed", json!({ "inputs": texts, "truncate": true })),
            Kind::OpenAi => {
                ("/v1/embeddings", json!({ "model": self.model, "input": texts, "encoding_format": "float" }))
            }
        };
        let mut request = self.agent.post(format!("{url}{path}"));
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let response = request.send_json(body).map_err(|error| self.unanswered(&error))?;
        let status = response.status().as_u16();
        let body = response.into_body().into_with_config().limit(LONGEST_ANSWER).read_to_vec();
        if status == 200 {
            return body.map_err(|error| self.unanswered(&error));
        }
        let said = said(&body.unwrap_or_default());
        let hint = match status {
            401 | 403 => format!("set {KEY} to a key that it takes"),
            404 => "is it that kind of server? `tei=` asks at /embed, `openai=` at /v1/embeddings".to_owned(),
            413 | 422 => format!("it must take {MOST} texts a request, and texts as long as these"),
            429 => "it takes fewer requests than this, one at a time: raise its limit, or wait".to_owned(),
            300..=399 => "it sends to another address: name that one".to_owned(),
            500..=599 => "its log says more".to_owned(),
            _ => "only 200 with vectors is an answer".to_owned(),
        };
        bail!("`{url}{path}` answered {status}{said}\nhint: {hint}")
    }

    fn unanswered(&self, error: &ureq::Error) -> anyhow::Error {
        let url = self.url();
        if matches!(error, ureq::Error::Timeout(_)) {
            let seconds = self.timeout.as_secs();
            return anyhow!("`{url}` gave no answer in {seconds} s\nhint: `--timeout` gives it longer");
        }
        anyhow!("nobody answers at `{url}`: {error}\nhint: is the server up, and is this its address?")
    }
}

/// What a server says of its refusal, on one line.
fn said(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let places = ["/error/message", "/error", "/message", "/detail"];
    let words = places.iter().find_map(|place| value.pointer(place)?.as_str()).unwrap_or(&text);
    let words: String = words.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WORDS).collect();
    if words.is_empty() { words } else { format!(": {words}") }
}

/// The vectors of an answer: as many as there were texts, alike in width, every number finite.
fn read(kind: Kind, answer: &[u8], texts: usize) -> anyhow::Result<Vec<Vec<f32>>> {
    let answer: Value = serde_json::from_slice(answer).context("not JSON")?;
    let vectors: Vec<Vec<f32>> = match kind {
        Kind::Tei => serde_json::from_value(answer).context("not a list of vectors")?,
        Kind::OpenAi => {
            let data = answer["data"].as_array().context("no list `data`")?;
            let mut vectors = vec![Vec::new(); data.len()];
            for (number, item) in data.iter().enumerate() {
                let index = item["index"].as_u64().map_or(number, |index| index as usize);
                let vector = vectors.get_mut(index).with_context(|| format!("no place for index {index}"))?;
                *vector = serde_json::from_value(item["embedding"].clone())
                    .context("an `embedding` that is no list of numbers")?;
            }
            vectors
        }
    };
    ensure!(vectors.len() == texts, "{} vectors for {texts} texts", vectors.len());
    let width = vectors.first().map_or(0, Vec::len);
    ensure!(width > 0 && vectors.iter().all(|vector| vector.len() == width), "vectors of unlike widths");
    ensure!(vectors.iter().flatten().all(|number| number.is_finite()), "a number that is not finite");
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_what_it_is_and_begins_as_one() {
        let typed = |text: &str| text.parse::<Address>().map(|address| (address.kind, address.url));
        assert_eq!(typed("tei=http://a:80/"), Ok((Kind::Tei, "http://a:80".to_owned())));
        assert_eq!(typed("openai=https://a/v1/"), Ok((Kind::OpenAi, "https://a".to_owned())));
        for text in ["", "http://a", "tgi=http://a", "tei=", "tei=a:80", "tei=http://", "openai=ftp://a"] {
            assert!(typed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn both_shapes_are_read_in_the_order_of_the_texts() {
        let want = vec![vec![1.0, 2.0], vec![3.0, 4.0]];
        assert_eq!(read(Kind::Tei, b"[[1, 2], [3, 4.0]]", 2).expect("vectors"), want);
        let turned = br#"{"data": [{"index": 1, "embedding": [3, 4]}, {"index": 0, "embedding": [1, 2]}]}"#;
        assert_eq!(read(Kind::OpenAi, turned, 2).expect("vectors"), want);
    }

    #[test]
    fn nonsense_is_said_to_be_nonsense() {
        for (answer, word) in [
            ("", "not JSON"),
            ("{}", "not a list of vectors"),
            ("[[1, null]]", "not a list of vectors"),
            ("[[1]]", "1 vectors for 2 texts"),
            ("[[], []]", "unlike widths"),
            ("[[1], [1, 2]]", "unlike widths"),
            ("[[1], [1e99]]", "not finite"),
        ] {
            let error = read(Kind::Tei, answer.as_bytes(), 2).expect_err(answer);
            assert!(format!("{error:#}").contains(word), "{answer}: {error:#}");
        }
        let far = br#"{"data": [{"index": 9, "embedding": [3]}]}"#;
        assert!(read(Kind::OpenAi, far, 1).is_err() && read(Kind::OpenAi, b"[]", 0).is_err());
    }
}
