//! `sconce rerank`: ranks documents by relevance to a query.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use sconce::{OutputMetadata, RankedDocument, RerankOptions, Scoring, TruncationStrategy};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::arguments;
use crate::input::{Input, Record};
use crate::open_model::open;
use crate::summary::Summary;
use crate::terminal::{print, print_json, rendered, shorten, table};

#[derive(Serialize)]
struct Output<'a> {
    query: &'a str,
    ranked: Vec<OutputLine>,
    account: &'a OutputMetadata,
}

/// The input fields of a document, and its score.
#[derive(Serialize)]
struct OutputLine {
    #[serde(flatten)]
    fields: Map<String, Value>,
    #[serde(flatten)]
    ranked: RankedDocument,
}

pub(crate) fn run(arguments: &arguments::Rerank) -> anyhow::Result<ExitCode> {
    let input = match &arguments.input {
        Some(path) => Input::open(path)?,
        None if arguments.documents.is_empty() => Input::open(Path::new("-"))?,
        None => Input::texts(arguments.documents.clone()),
    };
    let documents: Vec<Record> = input.all()?;
    let texts: Vec<&str> = documents.iter().map(|record| record.text.as_str()).collect();
    let model = open(&arguments.model, None)?;
    let options = RerankOptions {
        scoring: if arguments.raw { Some(Scoring::Raw) } else { None },
        truncation: if arguments.keep_query {
            TruncationStrategy::OnlySecond
        } else {
            TruncationStrategy::LongestFirst
        },
        top: arguments.top,
        instruction: arguments.instruction.clone(),
        label: arguments.label.clone(),
    };
    let started = Instant::now();
    let ranking = model.rerank(&arguments.query, &texts, &options)?;
    let seconds = started.elapsed().as_secs_f64();
    if arguments.json {
        let ranked = ranking.ranked.iter().map(|ranked| {
            let mut fields = documents[ranked.index].fields.clone();
            fields.retain(|field, _| field != "index" && field != "score");
            OutputLine { fields, ranked: *ranked }
        });
        let (query, account) = (&arguments.query, &ranking.metadata);
        print_json(&Output { query, ranked: ranked.collect(), account })?;
    } else {
        let mut rows = table(&["score", "index", "document"]);
        for ranked in &ranking.ranked {
            let text = shorten(texts[ranked.index]);
            rows.add_row(vec![format!("{:.4}", ranked.score), ranked.index.to_string(), text]);
        }
        print(&format!("{}\n", rendered(&rows)))?;
    }
    let mut summary = Summary::default();
    summary.add(texts.len(), &ranking.metadata);
    summary.print(seconds, &model, false);
    Ok(ExitCode::SUCCESS)
}
