//! Samples the metrics and the report of a server.

use std::time::Instant;

use anyhow::Context;
use serde_json::Value;

use crate::http_client::Client;

/// Fetches metrics and report.
pub(crate) fn sample(client: &Client) -> anyhow::Result<Sample> {
    let metrics = client.get("/metrics")?;
    let taken = Instant::now();
    let report = serde_json::from_str(&client.get("/v1/report")?)
        .with_context(|| format!("not a report of sconce: `{}/v1/report`", client.url))?;
    Ok(Sample { taken, metrics: metrics.lines().filter_map(metric).collect(), report })
}

/// Metrics and report at one time.
pub(crate) struct Sample {
    pub(crate) taken: Instant,
    pub(crate) metrics: Vec<Metric>,
    pub(crate) report: Value,
}

/// One sample of the Prometheus text format.
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
    /// The sum of a metric over all samples with these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |metric: &&Metric| {
            metric.name == name && labels.iter().all(|(label, value)| metric.label(label) == *value)
        };
        // `sum` of nothing is -0.0.
        self.metrics.iter().filter(fits).fold(0.0, |all, metric| all + metric.value)
    }

    /// Tokens computed since the server started.
    pub(crate) fn tokens(&self) -> f64 {
        self.sum("sconce_tokens_computed_total", &[])
    }
}

/// Parses a line of the Prometheus text format. `None` for comments and invalid lines.
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

/// Splits at the closing quote and unescapes the quoted part.
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
