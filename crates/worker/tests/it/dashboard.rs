//! Every query of the Grafana dashboard matches metrics that the server exports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sconce::EngineId;
use sconce_testkit::fake::{BatchFault, FakeEngine, Fault};
use sconce_worker::Settings;
use serde_json::{Value, json};

use crate::client::{Connection, get, metric, post, post_with, request};
use crate::generation;
use crate::harness::{METAL, fake, fake_builder, settings, start};

const DASHBOARD: &str = include_str!("../../../../packaging/grafana/sconce.json");

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
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
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

/// The metrics of servers on which every metric was recorded.
fn pages() -> Vec<String> {
    let home = tempfile::tempdir().expect("a folder");
    let engine = FakeEngine::new(EngineId::Candle).with(METAL, Fault::FromBatch(13, BatchFault::Nan));
    let engine = engine.with(sconce::Device::Cpu, Fault::Late(60));
    let builder = fake_builder(engine, Duration::from_secs(5), home.path());
    let quick = Settings { recovery_backoff: Duration::from_millis(100), ..settings() };
    let server = start(builder, quick, Some(home)).ready();
    post(*server, "/embed", &json!({"inputs": "a text"})).expect(200);
    post(*server, "/embed", &json!({"inputs": "word ".repeat(500), "truncate": true})).expect(200);
    assert_eq!(post(*server, "/embed", &json!({"inputs": []})).status, 400);
    // A client that disconnects while its request waits.
    let texts: Vec<String> = (0..200).map(|n| format!("{n} of many texts that nobody waits for")).collect();
    let body = json!({"inputs": texts}).to_string();
    while metric(*server, "sconce_cancelled_total") < 0.5 {
        let mut leaving = Connection::open(*server).expect("a connection");
        leaving.write(&request("POST", "/embed", &[], body.as_bytes())).expect("writes");
        std::thread::sleep(Duration::from_millis(50));
        drop(leaving);
        std::thread::sleep(Duration::from_millis(50));
    }
    // Batches until the placement fails: the number of warm-up batches depends on the speed of the machine.
    while metric(*server, "sconce_recoveries_total") < 0.5 {
        post(*server, "/embed", &json!({"inputs": "a text"})).expect(200);
        std::thread::sleep(Duration::from_millis(20));
    }
    let small = FakeEngine::new(EngineId::Candle).with(METAL, Fault::OutOfMemory { above: 2000 });
    let small = fake(small, Duration::from_secs(5));
    let texts: Vec<String> = (0..500).map(|n| format!("{n} is one of several hundred texts")).collect();
    post(*small, "/embed", &json!({"inputs": texts})).expect(200);
    // A model with shadow checks that is unloaded when idle.
    let home = tempfile::tempdir().expect("a folder");
    let builder = fake_builder(FakeEngine::new(EngineId::Candle), Duration::from_secs(5), home.path());
    let idle_unload = Some(Duration::from_millis(500));
    let watched = start(builder, Settings { shadow_every: 1, idle_unload, ..settings() }, Some(home)).ready();
    while metric(*watched, "sconce_shadow_checks_total") < 0.5 {
        let (patient, body) = ([("prefer", "wait=60")], json!({"inputs": "a text"}));
        post_with(*watched, "/embed", &patient, &body).expect(200);
        std::thread::sleep(Duration::from_millis(20));
    }
    while metric(*watched, "sconce_unloads_total") < 0.5 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let folder = generation::folder();
    let language = generation::serve(folder.path(), settings());
    post(*language, "/v1/completions", &json!({"prompt": "w4 w5", "max_tokens": 4})).expect(200);
    [*server, *small, *watched, *language].map(|address| get(address, "/metrics").text()).to_vec()
}

#[test]
fn every_query_of_the_dashboard_is_answered() {
    let samples = samples(&pages());
    let queries = queries();
    assert!(queries.len() > 15, "{queries:?}");
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
    // Metrics for operators are on the dashboard, too.
    let all: BTreeSet<String> = queries.iter().flat_map(|query| named(query).0).collect();
    for name in samples.keys().filter(|name| name.starts_with("sconce_") && !name.ends_with("_bucket")) {
        let of_a_histogram = ["_sum", "_count"].iter().any(|end| name.ends_with(end));
        assert!(of_a_histogram || all.contains(name), "`{name}` is on no panel");
    }
}

#[test]
fn names_and_labels_are_distinguished() {
    let query =
        "histogram_quantile(0.5, sum by (le) (rate(a_bucket{x=~\"$x\", y!=\"(\"}[$__rate_interval]))) / b";
    let (names, labels) = named(query);
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a_bucket", "b"]);
    assert_eq!(labels.into_iter().collect::<Vec<_>>(), ["le", "x", "y"]);
}
