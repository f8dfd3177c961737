//! Renders Jinja templates as transformers does, within limits, and keeps track of the text that comes from the caller.
//!
//! `minijinja` parses. The evaluation is ours, for three reasons: a template of a model is not trusted, so steps and memory
//! are limited, also for `x + x`; the prompt must say which of its bytes come from the caller; and values behave as in
//! Python.

#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::similar_names,
    reason = "operations name the types that they take and fail for all others; slices have a stop and a step"
)]

mod arguments;
mod budget;
mod clock;
mod error;
mod evaluate;
mod expression;
mod filters;
mod methods;
mod operators;
mod predicates;
mod print;
mod sequences;
mod syntax;
mod text;
mod value;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::thread;
use std::time::SystemTime;

use serde_json::Value as Json;

pub use error::TemplateError;

use budget::Budget;
use evaluate::Evaluator;
use value::Value;

/// Stack of a rendering. Pages take memory when they are first used.
const STACK: usize = 32 << 20;

/// A variable of a template.
pub(crate) struct Variable<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: &'a Json,
    /// Whether the texts in it come from the caller.
    pub(crate) of_caller: bool,
}

/// A rendered template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// Byte ranges of the text that come from the caller: ascending, apart from each other, none empty.
    pub(crate) caller: Vec<Range<usize>>,
}

/// Renders a template. `now` is the time of `strftime_now`.
///
/// It runs on a thread of its own: parsing and evaluation are recursive, and the stack of the calling thread may be small.
pub(crate) fn render(
    source: &str,
    variables: &[Variable<'_>],
    now: SystemTime,
) -> Result<Rendered, TemplateError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("sconce-template".to_owned()).stack_size(STACK);
        let spawned = builder.spawn_scoped(scope, || render_here(source, variables, now));
        let thread = spawned.map_err(|error| TemplateError::Thread(error.to_string()))?;
        thread.join().unwrap_or_else(|_| Err(TemplateError::Thread("it panicked".to_owned())))
    })
}

fn render_here(source: &str, variables: &[Variable<'_>], now: SystemTime) -> Result<Rendered, TemplateError> {
    let (mut values, mut bytes) = (0, 0);
    for variable in variables {
        measure(variable.value, &mut values, &mut bytes);
    }
    let budget = Budget::new(values, bytes);
    let value = |variable: &Variable<'_>| {
        let value = Value::from_json(&budget, variable.value, variable.of_caller)?;
        Ok((variable.name.to_owned(), value))
    };
    let variables = variables.iter().map(value).collect::<Result<_, TemplateError>>()?;
    let evaluator = Evaluator::new(&budget, variables, now);
    let text = syntax::with_statements(source, |statements| evaluator.render(statements))?;
    Ok(Rendered { text: text.as_str().to_owned(), caller: text.caller_ranges().to_vec() })
}

/// Counts the values and bytes of a variable.
fn measure(json: &Json, values: &mut u64, bytes: &mut u64) {
    *values += 1;
    match json {
        Json::String(text) => *bytes += text.len() as u64,
        Json::Array(items) => items.iter().for_each(|item| measure(item, values, bytes)),
        Json::Object(entries) => {
            for (key, value) in entries {
                *bytes += key.len() as u64;
                measure(value, values, bytes);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
