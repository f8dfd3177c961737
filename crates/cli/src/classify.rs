//! `sconce classify`: labels of texts, or of pairs of texts.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use sconce::{Account, Classifications, ClassifyOptions, Cut, Labelled, Model, Scoring, Task};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::arguments;
use crate::input::{Input, Record};
use crate::opening::open;
use crate::screen::{print, print_json, rendered, shortened, table};
use crate::summary::Summary;

#[derive(Serialize)]
struct Page<'a> {
    texts: Vec<Line<'a>>,
    account: &'a Account,
}

/// The fields that came with a text, and its labels.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    fields: Map<String, Value>,
    labels: &'a [Labelled],
}

pub(crate) fn run(arguments: &arguments::Classify) -> anyhow::Result<ExitCode> {
    let input = match &arguments.input {
        Some(path) => Input::open(path)?,
        None if arguments.texts.is_empty() => Input::open(Path::new("-"))?,
        None => Input::texts(arguments.texts.clone()),
    };
    let records = input.all()?;
    let model = open(&arguments.model, None)?;
    let options =
        ClassifyOptions { scoring: if arguments.raw { Some(Scoring::Raw) } else { None }, cut: Cut::Longest };
    let started = Instant::now();
    let classified = classified(&model, &records, arguments.pair.as_deref(), &options)?;
    let seconds = started.elapsed().as_secs_f64();
    let top = arguments.top.unwrap_or(usize::MAX);
    if arguments.json {
        let texts = records.iter().zip(&classified.texts).map(|(record, labels)| {
            let mut fields = record.fields.clone();
            fields.retain(|field, _| field != "labels");
            Line { fields, labels: &labels[..labels.len().min(top)] }
        });
        print_json(&Page { texts: texts.collect(), account: &classified.account })?;
    } else {
        let mut rows = table(&["label", "score", "text"]);
        for (record, labels) in records.iter().zip(&classified.texts) {
            for (place, labelled) in labels.iter().take(top).enumerate() {
                let text = if place == 0 { shortened(&record.text) } else { String::new() };
                rows.add_row(vec![labelled.label.clone(), format!("{:.4}", labelled.score), text]);
            }
        }
        print(&format!("{}\n", rendered(&rows)))?;
    }
    let mut summary = Summary::default();
    summary.add(records.len(), &classified.account);
    summary.tell(seconds, &model, false);
    Ok(ExitCode::SUCCESS)
}

/// Each text alone; with `pair`, after it; or with the field `pair` of its own line.
fn classified(
    model: &Model,
    records: &[Record],
    pair: Option<&str>,
    options: &ClassifyOptions,
) -> anyhow::Result<Classifications> {
    let own = |record: &Record| record.fields.get("pair").and_then(Value::as_str).map(str::to_owned);
    let is_pair = pair.is_some() || records.iter().any(|record| own(record).is_some());
    if !is_pair || model.card().task.value != Task::Classify {
        let texts: Vec<&str> = records.iter().map(|record| record.text.as_str()).collect();
        return Ok(model.classify(&texts, options)?);
    }
    let pairs = records.iter().map(|record| {
        let second = own(record).or(pair.map(str::to_owned));
        let second = second.context("some lines have a field `pair` and others do not")?;
        Ok((record.text.clone(), second))
    });
    let pairs = pairs.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(model.classify_pairs(&pairs, options)?)
}
