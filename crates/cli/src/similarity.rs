//! `sconce similarity`: scores the similarity of a text to others.

use std::process::ExitCode;
use std::time::Instant;

use sconce::{OutputMetadata, SimilarityOptions, Task, missing_prompt};
use serde::Serialize;

use crate::arguments;
use crate::open_model::open;
use crate::prompt;
use crate::summary::Summary;
use crate::terminal::{eprint_line, print, print_json, rendered, shorten, table};

#[derive(Serialize)]
struct Output<'a> {
    text: &'a str,
    others: Vec<ScoredText<'a>>,
    account: &'a OutputMetadata,
}

#[derive(Serialize)]
struct ScoredText<'a> {
    text: &'a str,
    score: f32,
}

pub(crate) fn run(arguments: &arguments::Similarity) -> anyhow::Result<ExitCode> {
    let model = open(&arguments.model, None)?;
    let started = Instant::now();
    let card = model.card();
    let (prompt, other_prompt) = if arguments.query && card.task.value != Task::Tokens {
        (prompt::for_queries(card)?, prompt::for_documents(card))
    } else {
        (arguments.prompts.prompt(), arguments.prompts.prompt())
    };
    let texts = std::iter::once(&arguments.text).chain(&arguments.others).map(String::as_str);
    if let Some(warning) = missing_prompt(card, &prompt, texts) {
        let hint = "hint: add `--query` to compare a query with documents; `--prefix \"\"` compares texts as they are";
        eprint_line(&format!("warning: {warning}\n{hint}"));
    }
    let options = SimilarityOptions { prompt, other_prompt };
    let similar = model.similarity_with(&arguments.text, &arguments.others, &options)?;
    let seconds = started.elapsed().as_secs_f64();
    if arguments.json {
        let others = arguments.others.iter().zip(&similar.scores);
        let others = others.map(|(text, &score)| ScoredText { text, score }).collect();
        print_json(&Output { text: &arguments.text, others, account: &similar.metadata })?;
    } else {
        let mut rows = table(&["score", "text"]);
        for (text, score) in arguments.others.iter().zip(&similar.scores) {
            rows.add_row(vec![format!("{score:.4}"), shorten(text)]);
        }
        print(&format!("{}\n", rendered(&rows)))?;
    }
    let mut summary = Summary::default();
    summary.add(arguments.others.len() + 1, &similar.metadata);
    summary.print(seconds, &model, false);
    Ok(ExitCode::SUCCESS)
}
