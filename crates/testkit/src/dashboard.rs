//! Checks Grafana dashboards against the metrics that servers export.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The labels of each metric in pages of Prometheus text.
fn samples(pages: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut samples: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in pages.iter().flat_map(|page| page.lines()).filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let labels =
            line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
        let names =
            labels.split("\",").filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned());
        samples.entry(name.to_owned()).or_default().extend(names);
    }
    samples
}

/// The metrics that a query names, and the labels that it filters or groups by.
fn named(query: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut names, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        if let Some(inside) = rest.strip_prefix('[') {
            rest = &inside[inside.find(']').expect("a range ends") + 1..];
        } else if let Some(inside) = rest.strip_prefix('{') {
            let (filters, after) = inside.split_once('}').expect("filters end");
            labels.extend(
                filters
                    .split(',')
                    .filter_map(|filter| filter.split(['=', '!']).next())
                    .map(|label| label.trim().to_owned()),
            );
            rest = after;
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end =
                rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_' && letter != ':');
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            rest = after.trim_start();
            if word == "by" {
                let (list, after) =
                    rest.strip_prefix('(').and_then(|list| list.split_once(')')).expect("a list");
                labels.extend(list.split(',').map(|label| label.trim().to_owned()));
                rest = after;
            } else if !rest.starts_with('(') && !rest.starts_with("by ") {
                names.insert(word.to_owned());
            }
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    (names, labels)
}

/// All queries of the dashboard.
fn queries(dashboard: &str) -> Vec<String> {
    let dashboard: Value = serde_json::from_str(dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let asked = targets.map(|target| target["expr"].as_str().expect("a query").to_owned());
    let variables = dashboard["templating"]["list"].as_array().expect("variables").iter();
    let listed = variables.filter(|variable| variable["type"] == "query").map(|variable| {
        let query = variable["query"].as_str().expect("a query");
        let inside =
            query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).expect("a list");
        let (name, label) = inside.split_once(", ").expect("a sample and a label");
        format!("{name}{{{label}=\"x\"}}")
    });
    asked.chain(listed).collect()
}

/// Checks that every query of a dashboard names metrics of `pages`, and that every metric of `pages` that starts with
/// `prefix` is on a panel.
///
/// # Panics
/// If not.
pub fn check(dashboard: &str, pages: &[String], prefix: &str) {
    let (samples, queries) = (samples(pages), queries(dashboard));
    for query in &queries {
        let (names, labels) = named(query);
        assert!(!names.is_empty(), "{query}");
        for name in &names {
            let known = samples.get(name).unwrap_or_else(|| panic!("`{name}` is not counted: {query}"));
            for label in &labels {
                assert!(known.contains(label), "`{name}` has no `{label}`: {query}");
            }
        }
    }
    let all: BTreeSet<String> = queries.iter().flat_map(|query| named(query).0).collect();
    for name in samples.keys().filter(|name| name.starts_with(prefix) && !name.ends_with("_bucket")) {
        let of_a_histogram = ["_sum", "_count"].iter().any(|end| name.ends_with(end));
        assert!(of_a_histogram || all.contains(name), "`{name}` is on no panel");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_distinguished() {
        let query = "histogram_quantile(0.5, sum by (le) (rate(a_bucket{x=~\"$x\", y!=\"(\"}[$__rate_interval]))) / b";
        let (names, labels) = named(query);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a_bucket", "b"]);
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), ["le", "x", "y"]);
    }
}
