//! What a server says at one moment: its metrics and its report.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sconce::http::client;
use serde_json::Value;

/// How long a server may take to say it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Holds a key.
const KEY: &str = "SCONCE_API_KEY";

/// Asks one server.
pub(crate) struct Asker {
    agent: ureq::Agent,
    pub(crate) url: String,
    key: Option<String>,
}

impl Asker {
    pub(crate) fn new(url: &str) -> anyhow::Result<Asker> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            bail!("a server's address begins with `http://` or `https://`, not: `{url}`");
        }
        let key = std::env::var(KEY).ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        Ok(Asker {
            agent: client(TIMEOUT).build().new_agent(),
            url: url.trim_end_matches('/').to_owned(),
            key,
        })
    }

    /// What it says now.
    pub(crate) fn ask(&self) -> anyhow::Result<Sample> {
        let metrics = self.get("/metrics")?;
        let taken = Instant::now();
        let report = serde_json::from_str(&self.get("/v1/report")?)
            .with_context(|| format!("`{}/v1/report` is not what sconce says", self.url))?;
        Ok(Sample { taken, metrics: metrics.lines().filter_map(metric).collect(), report })
    }

    fn get(&self, path: &str) -> anyhow::Result<String> {
        let address = format!("{}{path}", self.url);
        let mut request = self.agent.get(&address);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let asked = request.call();
        let mut answer = asked.with_context(|| format!("`{}` can't be reached", self.url))?;
        match answer.status().as_u16() {
            200 => Ok(answer.body_mut().read_to_string()?),
            401 if self.key.is_some() => {
                bail!(
                    "`{}` does not know the key in `{KEY}`\nhint: set it to a key of its `api_key_file`",
                    self.url
                )
            }
            401 => bail!("`{}` wants a key\nhint: set `{KEY}`", self.url),
            status => bail!("`{address}` is not what sconce says, its status: {status}"),
        }
    }
}

/// What a server says at one moment.
pub(crate) struct Sample {
    pub(crate) taken: Instant,
    pub(crate) metrics: Vec<Metric>,
    pub(crate) report: Value,
}

/// One number of Prometheus' text.
#[derive(Debug, PartialEq)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

impl Metric {
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

impl Sample {
    /// The sum of a metric over those of its numbers that have these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |metric: &&Metric| {
            metric.name == name && labels.iter().all(|(label, value)| metric.label(label) == *value)
        };
        // An empty sum would be a zero with a minus.
        self.metrics.iter().filter(fits).fold(0.0, |all, metric| all + metric.value)
    }

    /// Tokens that were computed so far.
    pub(crate) fn tokens(&self) -> f64 {
        self.sum("sconce_tokens_computed_total", &[])
    }
}

/// A line of Prometheus' text, unless it says something else.
fn metric(line: &str) -> Option<Metric> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = after;
        }
        rest = &rest[1..];
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Metric { name: name.to_owned(), labels, value })
}

/// What stands before the closing quote, and what comes after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_metrics_are_read() {
        let read = metric(r#"a_total{model="m \"x\" {1}, y",place="p"} 3.5"#).expect("a metric");
        assert_eq!((read.name.as_str(), read.value), ("a_total", 3.5));
        assert_eq!((read.label("model"), read.label("place")), ("m \"x\" {1}, y", "p"));
        assert_eq!(metric("b 2"), Some(Metric { name: "b".to_owned(), labels: Vec::new(), value: 2.0 }));
        assert_eq!(metric("# HELP a_total x"), None);
        assert_eq!(metric(r#"a{b="c} 1"#), None);
        assert_eq!(metric(""), None);
    }
}
