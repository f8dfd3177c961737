//! `sconce generate`: continues a prompt.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use sconce::{FinishReason, GenerateOptions, GenerationSummary, StructuredOutput};
use serde_json::json;

use crate::arguments;
use crate::open_model::open;
use crate::terminal::{eprint_line, pluralize, print, print_json};

pub(crate) fn run(arguments: &arguments::Generate) -> anyhow::Result<ExitCode> {
    let mut prompt = arguments.prompt.clone().unwrap_or_default();
    if arguments.prompt.is_none() {
        io::stdin().read_to_string(&mut prompt).context("standard input can't be read")?;
    }
    let options = GenerateOptions {
        structured_output: structured_output(arguments)?,
        ..arguments.sampling.options(0.0, Some(arguments.max_tokens))
    };
    options.validate()?;
    // One sequence: the placement whose single steps are the fastest.
    let model = open(&arguments::ModelArguments { latency: true, ..arguments.model.clone() }, None)?;
    let started = Instant::now();
    let mut generation = model.generate(&prompt, &options)?;
    let (mut text, mut first) = (String::new(), None);
    for piece in generation.by_ref() {
        let piece = piece?;
        first.get_or_insert_with(|| started.elapsed());
        text += &piece.text;
        if !arguments.json {
            print(&piece.text)?;
        }
    }
    let (summary, seconds) = (generation.summary(), started.elapsed());
    if arguments.json {
        let reason = summary.finish_reasons.first().copied().flatten().map(FinishReason::name);
        print_json(&json!({
            "text": text,
            "finish_reason": reason,
            "prompt_tokens": summary.prompt_tokens,
            "generated_tokens": summary.generated_tokens,
            "seconds": seconds.as_secs_f64(),
            "placements": summary.placements.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "classes": summary.classes,
        }))?;
    } else {
        if !text.ends_with('\n') {
            print("\n")?;
        }
        eprint_line(&report(summary, first.unwrap_or_default(), seconds));
    }
    Ok(ExitCode::SUCCESS)
}

/// What the output must match.
fn structured_output(arguments: &arguments::Generate) -> anyhow::Result<Option<StructuredOutput>> {
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("`{}` can't be read", path.display()));
    Ok(if let Some(schema) = &arguments.json_schema {
        let is_inline = schema.trim_start().starts_with('{');
        let text = if is_inline { schema.clone() } else { read(Path::new(schema))? };
        let schema = serde_json::from_str(&text).context("the JSON schema is not JSON")?;
        Some(StructuredOutput::JsonSchema(schema))
    } else if let Some(expression) = &arguments.regex {
        Some(StructuredOutput::Regex(expression.clone()))
    } else if let Some(path) = &arguments.grammar {
        Some(StructuredOutput::Grammar(read(path)?))
    } else {
        arguments.json_object.then_some(StructuredOutput::JsonObject)
    })
}

/// A line with counts, time to first token, rate and placement.
fn report(summary: &GenerationSummary, first: Duration, all: Duration) -> String {
    let GenerationSummary { prompt_tokens, generated_tokens, placements, .. } = summary;
    let placements: Vec<String> = placements.iter().map(ToString::to_string).collect();
    let decoding = all.saturating_sub(first).as_secs_f64();
    let rate = generated_tokens.saturating_sub(1) as f64 / decoding.max(1e-9);
    let ended = match summary.finish_reasons.first().copied().flatten() {
        Some(FinishReason::Length) => " (stopped at `--max-tokens` or the end of the context)",
        Some(FinishReason::Stop) | None => "",
    };
    format!(
        "{} after a prompt of {}{ended}: time to first token {:.2} s, then {rate:.1} tokens/s on {}",
        pluralize(*generated_tokens, "token"),
        pluralize(*prompt_tokens, "token"),
        first.as_secs_f64(),
        placements.join(", then "),
    )
}
