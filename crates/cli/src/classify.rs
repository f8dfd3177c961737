//! `sconce classify`: labels texts or pairs of texts.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use sconce::{
    Classifications, ClassifyOptions, LabelScore, Model, OutputMetadata, Scoring, Task, TruncationStrategy,
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::arguments;
use crate::input::{Input, Record};
use crate::open_model::open;
use crate::summary::Summary;
use crate::terminal::{print, print_json, rendered, shorten, table};

#[derive(Serialize)]
struct Output<'a> {
    texts: Vec<OutputLine<'a>>,
    account: &'a OutputMetadata,
}

/// The input fields of a text, and its labels.
#[derive(Serialize)]
struct OutputLine<'a> {
    #[serde(flatten)]
    fields: Map<String, Value>,
    labels: &'a [LabelScore],
}

pub(crate) fn run(arguments: &arguments::Classify) -> anyhow::Result<ExitCode> {
    let input = match &arguments.input {
        Some(path) => Input::open(path)?,
        None if arguments.texts.is_empty() => Input::open(Path::new("-"))?,
        None => Input::texts(arguments.texts.clone()),
    };
    let records = input.all()?;
    let model = open(&arguments.model, None)?;
    let options = ClassifyOptions {
        scoring: if arguments.raw { Some(Scoring::Raw) } else { None },
        truncation: TruncationStrategy::LongestFirst,
    };
    let started = Instant::now();
    let classified = classify(&model, &records, arguments.pair.as_deref(), &options)?;
    let seconds = started.elapsed().as_secs_f64();
    let top = arguments.top.unwrap_or(usize::MAX);
    if arguments.json {
        let texts = records.iter().zip(&classified.texts).map(|(record, labels)| {
            let mut fields = record.fields.clone();
            fields.retain(|field, _| field != "labels");
            OutputLine { fields, labels: &labels[..labels.len().min(top)] }
        });
        print_json(&Output { texts: texts.collect(), account: &classified.metadata })?;
    } else {
        let mut rows = table(&["label", "score", "text"]);
        for (record, labels) in records.iter().zip(&classified.texts) {
            for (place, labelled) in labels.iter().take(top).enumerate() {
                let text = if place == 0 { shorten(&record.text) } else { String::new() };
                rows.add_row(vec![labelled.label.clone(), format!("{:.4}", labelled.score), text]);
            }
        }
        print(&format!("{}\n", rendered(&rows)))?;
    }
    let mut summary = Summary::default();
    summary.add(records.len(), &classified.metadata);
    summary.print(seconds, &model, false);
    Ok(ExitCode::SUCCESS)
}

/// Classifies single texts, or pairs with `pair` or each line's `pair` field as second text.
fn classify(
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
        let second = second.context("only some lines have a `pair` field")?;
        Ok((record.text.clone(), second))
    });
    let pairs = pairs.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(model.classify_pairs(&pairs, options)?)
}
