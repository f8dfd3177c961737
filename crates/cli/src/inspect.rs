//! `sconce inspect`: a model's card, with the file that each fact comes from.

use std::process::ExitCode;

use sconce::core::card::{Dimensions, ModelCard};
use sconce::core::head::{LateInteraction, Step};
use sconce::core::obstacle::bytes;
use sconce::core::sourced::Sourced;
use sconce::{Inspection, ModelSource, inspect};

use crate::arguments;
use crate::terminal::{print, print_json, rendered, table};

/// Unread tensors listed by name; the rest are counted.
const MAX_NAMES: usize = 4;

pub(crate) fn run(arguments: &arguments::Inspect) -> anyhow::Result<ExitCode> {
    let source = ModelSource::parse(&arguments.model, arguments.revision.as_deref());
    let inspection = inspect(&source, &arguments.overrides.to_overrides(), arguments.offline)?;
    if arguments.json {
        print_json(&inspection)?;
    } else {
        print(&format!("{}{}", render(&inspection.card), unread(&inspection)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A warning for each weights file with unread tensors.
fn unread(inspection: &Inspection) -> String {
    let told = |(weights, names): (&String, &Vec<String>)| {
        let more = names.len().saturating_sub(MAX_NAMES);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let few: Vec<String> = names.iter().take(MAX_NAMES).map(|name| format!("`{name}`")).collect();
        format!("\nunread tensors in {weights}: {}{more}; the architecture may be wrong\n", few.join(", "))
    };
    inspection.unread.iter().map(told).collect()
}

/// Renders the card as a table of facts and their sources.
pub(crate) fn render(card: &ModelCard) -> String {
    let mut rows = table(&["", "", "source"]);
    let mut add = |name: &str, value: String, by: &str| {
        rows.add_row(vec![name.to_owned(), value, by.to_owned()]);
    };
    let Sourced { value: sizes, source: by } = &card.sizes;
    add("task", format!("{}: {}", card.task.value, card.task.value.does()), &card.task.source);
    add("architecture", card.architecture.value.clone(), &card.architecture.source);
    add("layers", format!("{}, hidden size {}, {} heads", sizes.layers, sizes.hidden, sizes.heads), by);
    add("vocabulary", sizes.vocabulary.to_string(), by);
    add("max length", format!("{} tokens", card.max_length.value), &card.max_length.source);
    if let Some(tokens) = &card.head.tokens {
        for step in &tokens.value {
            add("per token", describe_step(step), &tokens.source);
        }
    }
    let generates = card.task.value == sconce::Task::Generate;
    if card.task.value != sconce::Task::Tokens && !generates {
        let modes: Vec<&str> = card.pooling.value.modes.iter().map(|mode| mode.name()).collect();
        let prompt = if card.pooling.value.include_prompt { "" } else { ", without the prompt" };
        add("pooling", format!("{}{prompt}", modes.join(" + ")), &card.pooling.source);
        for step in &card.steps.value {
            add("after pooling", describe_step(step), &card.steps.source);
        }
    }
    if !generates {
        add("output size", card.width().to_string(), &card.steps.source);
    }
    if let Some(tokens) = card.generation.end_tokens.as_ref().filter(|_| generates) {
        let ids: Vec<String> = tokens.value.iter().map(ToString::to_string).collect();
        add("end tokens", ids.join(", "), &tokens.source);
    }
    if let Some(templates) = &card.generation.chat_templates {
        let names: Vec<&str> = templates.value.keys().map(String::as_str).collect();
        add("chat templates", names.join(", "), &templates.source);
    }
    facts(card, &mut add);
    for weights in &card.weights {
        add(
            "weights",
            format!("{} in {}, {}", weights.name, weights.stored, bytes(weights.bytes)),
            &weights.name,
        );
    }
    format!("{}\n\n{}\n", card.name, rendered(&rows))
}

/// Facts that only some models have.
fn facts(card: &ModelCard, add: &mut dyn FnMut(&str, String, &str)) {
    let head = &card.head;
    if let Some(labels) = &head.labels {
        add("labels", labels.value.join(", "), &labels.source);
    }
    if let Some(scoring) = &head.scoring {
        add("scores", scoring.value.to_string(), &scoring.source);
    }
    if let Some(sides) = &head.late_interaction {
        add("queries", queries(&sides.value), &sides.source);
        add("documents", documents(&sides.value), &sides.source);
    }
    if let Some(template) = &head.template {
        let pairs =
            format!("chat template, answered with `{}` or `{}`", template.value.yes, template.value.no);
        add("pairs", pairs, &template.source);
        add("instruction", template.value.instruction.clone(), &template.source);
    }
    for (name, prompt) in &card.prompts.value {
        let default = card.default_prompt.as_ref().is_some_and(|default| default.value == *name);
        let default = if default { " (default)" } else { "" };
        add("prompt", format!("{name}: {prompt:?}{default}"), &card.prompts.source);
    }
    if let Some(dimensions) = &card.dimensions {
        let lengths = match &dimensions.value {
            Dimensions::Any => "any".to_owned(),
            Dimensions::Only(lengths) => {
                lengths.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
        };
        add("dimensions", lengths, &dimensions.source);
    }
}

/// Describes a layer.
fn describe_step(step: &Step) -> String {
    match step {
        Step::Dense(dense) => {
            let name = dense.folder.as_ref().or(dense.weight.first()).map_or("", String::as_str);
            let bias = if dense.bias.is_empty() { ", no bias" } else { "" };
            format!("dense {} to {}, {}{bias} (`{name}`)", dense.input, dense.output, dense.activation)
        }
        Step::Norm(norm) => {
            format!("layer norm (`{}`)", norm.name.first().map_or("", String::as_str))
        }
        Step::LogRelu(1) => "log(1 + max(0, x))".to_owned(),
        Step::LogRelu(times) => format!("log(1 + max(0, x)), {times} times"),
        Step::Normalize => "L2-normalized".to_owned(),
    }
}

fn queries(sides: &LateInteraction) -> String {
    let length = sides.query_length.map(|length| format!(", up to {length} tokens")).unwrap_or_default();
    let filled = sides.expansion.map(|expansion| {
        let attended = if expansion.attended { "attended" } else { "not attended" };
        format!(", padded to {} with mask tokens ({attended})", expansion.to)
    });
    format!("marker {:?}{length}{}", sides.query, filled.unwrap_or_default())
}

fn documents(sides: &LateInteraction) -> String {
    let length = sides.document_length.map(|length| format!(", up to {length} tokens")).unwrap_or_default();
    let skipped =
        if sides.skip.is_empty() { String::new() } else { format!(", without {}", sides.skip.join(" ")) };
    format!("marker {:?}{length}{skipped}", sides.document)
}
