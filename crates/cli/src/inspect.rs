//! `sconce inspect`: what a model is made of, and which file says so.

use std::process::ExitCode;

use sconce::core::card::{Dimensions, ModelCard};
use sconce::core::head::{Sides, Step};
use sconce::core::obstacle::bytes;
use sconce::core::sourced::Sourced;
use sconce::{Inspection, ModelSource, inspect};

use crate::arguments;
use crate::screen::{print, print_json, rendered, table};

/// Names that are told before it is said how many more there are.
const FEW: usize = 4;

pub(crate) fn run(arguments: &arguments::Inspect) -> anyhow::Result<ExitCode> {
    let source = ModelSource::parse(&arguments.model, arguments.revision.as_deref());
    let inspection = inspect(&source, &arguments.says.overrides(), arguments.offline)?;
    if arguments.json {
        print_json(&inspection)?;
    } else {
        print(&format!("{}{}", described(&inspection.card), unread(&inspection)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A sentence for each set of weights with tensors that nothing reads.
fn unread(inspection: &Inspection) -> String {
    let told = |(weights, names): (&String, &Vec<String>)| {
        let more = names.len().saturating_sub(FEW);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let few: Vec<String> = names.iter().take(FEW).map(|name| format!("`{name}`")).collect();
        format!(
            "\nnothing reads {}{more} of {weights}: the model may be another than it is taken for\n",
            few.join(", ")
        )
    };
    inspection.unread.iter().map(told).collect()
}

/// The card as a table of facts and who said them.
pub(crate) fn described(card: &ModelCard) -> String {
    let mut rows = table(&["", "", "says"]);
    let mut add = |name: &str, value: String, by: &str| {
        rows.add_row(vec![name.to_owned(), value, by.to_owned()]);
    };
    let Sourced { value: sizes, source: by } = &card.sizes;
    add("task", format!("{}: {}", card.task.value, card.task.value.does()), &card.task.source);
    add("architecture", card.architecture.value.clone(), &card.architecture.source);
    add("layers", format!("{} of {}, {} heads", sizes.layers, sizes.hidden, sizes.heads), by);
    add("vocabulary", sizes.vocabulary.to_string(), by);
    add("longest text", format!("{} tokens", card.max_length.value), &card.max_length.source);
    if let Some(tokens) = &card.head.tokens {
        for step in &tokens.value {
            add("each token", told(step), &tokens.source);
        }
    }
    if card.task.value != sconce::Task::Tokens {
        let modes: Vec<&str> = card.pooling.value.modes.iter().map(|mode| mode.name()).collect();
        let prompt = if card.pooling.value.include_prompt { "" } else { ", without the prompt" };
        add("pooling", format!("{}{prompt}", modes.join(" + ")), &card.pooling.source);
        for step in &card.steps.value {
            add("then", told(step), &card.steps.source);
        }
    }
    add("numbers out", card.width().to_string(), &card.steps.source);
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

/// What only some models say.
fn facts(card: &ModelCard, add: &mut dyn FnMut(&str, String, &str)) {
    let head = &card.head;
    if let Some(labels) = &head.labels {
        add("labels", labels.value.join(", "), &labels.source);
    }
    if let Some(scoring) = &head.scoring {
        add("scores", scoring.value.to_string(), &scoring.source);
    }
    if let Some(sides) = &head.sides {
        add("queries", queries(&sides.value), &sides.source);
        add("documents", documents(&sides.value), &sides.source);
    }
    if let Some(template) = &head.template {
        let said = format!("a chat that asks for `{}` or `{}`", template.value.yes, template.value.no);
        add("pairs", said, &template.source);
        add("instruction", template.value.instruction.clone(), &template.source);
    }
    for (name, prompt) in &card.prompts.value {
        let default = card.default_prompt.as_ref().is_some_and(|default| default.value == *name);
        let default = if default { ", used where none is named" } else { "" };
        add("prompt", format!("{name}: {prompt:?}{default}"), &card.prompts.source);
    }
    if let Some(dimensions) = &card.dimensions {
        let lengths = match &dimensions.value {
            Dimensions::Any => "any".to_owned(),
            Dimensions::Only(lengths) => {
                lengths.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
        };
        add("may be cut to", lengths, &dimensions.source);
    }
}

/// A layer in words.
fn told(step: &Step) -> String {
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
        Step::Normalize => "made one long".to_owned(),
    }
}

fn queries(sides: &Sides) -> String {
    let length = sides.query_length.map(|length| format!(", up to {length} tokens")).unwrap_or_default();
    let filled = sides.expansion.map(|expansion| {
        let seen = if expansion.attended { "seen" } else { "not seen" };
        format!(", filled up to {} with mask tokens {seen} by the others", expansion.to)
    });
    format!("after {:?}{length}{}", sides.query, filled.unwrap_or_default())
}

fn documents(sides: &Sides) -> String {
    let length = sides.document_length.map(|length| format!(", up to {length} tokens")).unwrap_or_default();
    let skipped =
        if sides.skip.is_empty() { String::new() } else { format!(", without {}", sides.skip.join(" ")) };
    format!("after {:?}{length}{skipped}", sides.document)
}
