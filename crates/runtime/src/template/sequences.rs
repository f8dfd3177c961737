//! Filters of sequences: `map`, `selectattr`, `sort`, ….

use std::cmp::Ordering;

use super::arguments::{Arguments, flag, optional_text, text};
use super::error::{TemplateError, fail};
use super::evaluate::Evaluator;
use super::filters::{join_values, sum};
use super::operators::item_at;
use super::predicates::test;
use super::print::to_text;
use super::text::TextBuilder;
use super::value::{ListKind, Value};

type Result<T> = std::result::Result<T, TemplateError>;

/// Applies a filter of sequences.
pub(super) fn apply(
    evaluator: &Evaluator<'_, '_>,
    name: &str,
    value: &Value,
    arguments: &Arguments,
) -> Result<Value> {
    let budget = evaluator.budget;
    let iterator = |items| Value::list(budget, items, ListKind::Iterator);
    let list = |items| Value::list(budget, items, ListKind::List);
    let is_lazy = matches!(name, "map" | "select" | "reject" | "selectattr" | "rejectattr");
    if is_lazy && !value.is_true() {
        // Jinja does not iterate over what is false, such as `none`.
        return iterator(Vec::new());
    }
    match name {
        "list" => {
            let [] = arguments.bind([])?;
            list(value.items(budget)?)
        }
        "first" | "last" => {
            let [] = arguments.bind([])?;
            let mut items = value.items(budget)?;
            let item = if name == "first" { items.drain(..).next() } else { items.pop() };
            Ok(item.unwrap_or(Value::Undefined))
        }
        "join" => {
            let [separator, attribute] = arguments.bind(["d", "attribute"])?;
            let values = attributes(evaluator, value.items(budget)?, attribute.as_ref())?;
            let separator = separator.map(|separator| to_text(budget, &separator)).transpose()?;
            join_values(budget, &values, separator.as_ref())
        }
        "reverse" => match value {
            Value::Text(text) => {
                let mut builder = TextBuilder::default();
                for character in
                    Value::Text(text.clone()).items(budget)?.iter().rev().filter_map(Value::as_text)
                {
                    builder.push(budget, character)?;
                }
                Ok(Value::Text(builder.finish()))
            }
            _ => iterator(value.items(budget)?.into_iter().rev().collect()),
        },
        "sort" => {
            let [reverse, case, attribute] = arguments.bind(["reverse", "case_sensitive", "attribute"])?;
            let items = value.items(budget)?;
            list(sorted(evaluator, items, attribute.as_ref(), flag(case.as_ref()), flag(reverse.as_ref()))?)
        }
        "dictsort" => {
            let [case, by, reverse] = arguments.bind(["case_sensitive", "by", "reverse"])?;
            let Value::Map(map) = value else { return fail("the filter `dictsort` takes a mapping") };
            let by = optional_text(by, "by")?.map_or(0, |by| i128::from(by.as_str() == "value"));
            let items = super::methods::items(budget, map, ListKind::List)?.items(budget)?;
            let (case, reverse) = (flag(case.as_ref()), flag(reverse.as_ref()));
            list(sorted(evaluator, items, Some(&Value::Int(by)), case, reverse)?)
        }
        "unique" => iterator(unique(evaluator, value, arguments)?),
        "min" | "max" => {
            let [case, attribute] = arguments.bind(["case_sensitive", "attribute"])?;
            let items = value.items(budget)?;
            let sorted = sorted(evaluator, items, attribute.as_ref(), flag(case.as_ref()), name == "max")?;
            Ok(sorted.into_iter().next().unwrap_or(Value::Undefined))
        }
        "sum" => {
            let [attribute, start] = arguments.bind(["attribute", "start"])?;
            let values = attributes(evaluator, value.items(budget)?, attribute.as_ref())?;
            sum(budget, &values, start.unwrap_or(Value::Int(0)))
        }
        "map" => iterator(map(evaluator, &value.items(budget)?, arguments)?),
        "select" | "reject" => {
            let items = value.items(budget)?;
            let pass = |item: &Value| passes(evaluator, item, arguments);
            iterator(filtered(items, name == "select", pass)?)
        }
        "selectattr" | "rejectattr" => {
            let path = arguments.positional.first().cloned();
            let Some(path) = path else { return fail(format!("the filter `{name}` needs an attribute")) };
            let rest = arguments.rest();
            let items = value.items(budget)?;
            let pass = |item: &Value| passes(evaluator, &attribute(evaluator, item, &path)?, &rest);
            iterator(filtered(items, name == "selectattr", pass)?)
        }
        "attr" => {
            let [name] = arguments.bind(["name"])?;
            evaluator.attribute(value, text(name, "name")?.as_str())
        }
        "batch" => iterator(batches(evaluator, value, arguments)?),
        _ => fail(format!("no filter is called `{name}`")),
    }
}

/// The items without those that equal an earlier one.
fn unique(evaluator: &Evaluator<'_, '_>, value: &Value, arguments: &Arguments) -> Result<Vec<Value>> {
    let [case, attribute] = arguments.bind(["case_sensitive", "attribute"])?;
    let mut unique: Vec<(Value, Value)> = Vec::new();
    for item in value.items(evaluator.budget)? {
        let key = sort_key(evaluator, &item, attribute.as_ref(), flag(case.as_ref()))?;
        let mut known = false;
        for (_, other) in &unique {
            known = known || other.equals(evaluator.budget, &key)?;
        }
        if !known {
            unique.push((item, key));
        }
    }
    Ok(unique.into_iter().map(|(item, _)| item).collect())
}

/// Lists of a number of items each; the last one is shorter, or filled.
fn batches(evaluator: &Evaluator<'_, '_>, value: &Value, arguments: &Arguments) -> Result<Vec<Value>> {
    let budget = evaluator.budget;
    let [size, fill] = arguments.bind(["linecount", "fill_with"])?;
    let size = size.and_then(|size| usize::try_from(size.as_int()?).ok()).filter(|size| *size > 0);
    let Some(size) = size else { return fail("the filter `batch` needs a size") };
    let mut batches = Vec::new();
    for batch in value.items(budget)?.chunks(size) {
        let mut batch = batch.to_vec();
        if let Some(fill) = &fill {
            budget.allocate((size - batch.len()).saturating_mul(size_of::<Value>()))?;
            batch.resize(size, fill.clone());
        }
        batches.push(Value::list(budget, batch, ListKind::List)?);
    }
    Ok(batches)
}

/// The items that a test selects or rejects.
fn filtered(items: Vec<Value>, selects: bool, passes: impl Fn(&Value) -> Result<bool>) -> Result<Vec<Value>> {
    let mut kept = Vec::new();
    for item in items {
        if passes(&item)? == selects {
            kept.push(item);
        }
    }
    Ok(kept)
}

/// Whether a value passes the test that the first argument names; without one, whether it is true.
fn passes(evaluator: &Evaluator<'_, '_>, value: &Value, arguments: &Arguments) -> Result<bool> {
    match arguments.positional.first() {
        None => Ok(value.is_true()),
        Some(name) => {
            test(evaluator.budget, text(Some(name.clone()), "test")?.as_str(), value, &arguments.rest())
        }
    }
}

/// `map(attribute=…)`, or `map` with the name of a filter.
fn map(evaluator: &Evaluator<'_, '_>, items: &[Value], arguments: &Arguments) -> Result<Vec<Value>> {
    if let Some(path) = arguments.named("attribute") {
        let default = arguments.named("default");
        let value = |item: &Value| match attribute(evaluator, item, path)? {
            Value::Undefined => Ok(default.cloned().unwrap_or(Value::Undefined)),
            value => Ok(value),
        };
        return items.iter().map(value).collect();
    }
    let Some(name) = arguments.positional.first() else { return fail("the filter `map` needs a filter") };
    let (name, rest) = (text(Some(name.clone()), "filter")?, arguments.rest());
    items.iter().map(|item| evaluator.filter(name.as_str(), item, &rest)).collect()
}

fn attributes(evaluator: &Evaluator<'_, '_>, items: Vec<Value>, path: Option<&Value>) -> Result<Vec<Value>> {
    match path {
        None | Some(Value::None) => Ok(items),
        Some(path) => items.iter().map(|item| attribute(evaluator, item, path)).collect(),
    }
}

/// The attribute of an item: an index, or a path with dots.
fn attribute(evaluator: &Evaluator<'_, '_>, item: &Value, path: &Value) -> Result<Value> {
    if let (Some(index), Value::List(list)) = (path.as_int(), item) {
        return Ok(item_at(list.items.len(), index).map_or(Value::Undefined, |at| list.items[at].clone()));
    }
    let path = text(Some(path.clone()), "attribute")?;
    let mut value = item.clone();
    for name in path.as_str().split('.') {
        let name = match name.parse::<i128>() {
            Ok(index) => Value::Int(index),
            Err(_) => Value::text(evaluator.budget, name)?,
        };
        value = evaluator.item(&value, &name)?;
    }
    Ok(value)
}

/// Keys ignore case unless `case` is set.
fn sort_key(evaluator: &Evaluator<'_, '_>, item: &Value, path: Option<&Value>, case: bool) -> Result<Value> {
    let value = match path {
        None | Some(Value::None) => item.clone(),
        Some(path) => attribute(evaluator, item, path)?,
    };
    match &value {
        Value::Text(text) if !case => Value::text(evaluator.budget, &text.as_str().to_lowercase()),
        _ => Ok(value),
    }
}

/// Sorts stably; a reversed order is stable too.
fn sorted(
    evaluator: &Evaluator<'_, '_>,
    items: Vec<Value>,
    path: Option<&Value>,
    case: bool,
    reverse: bool,
) -> Result<Vec<Value>> {
    let key = |item: Value| Ok((sort_key(evaluator, &item, path, case)?, item));
    let mut keyed = items.into_iter().map(key).collect::<Result<Vec<(Value, Value)>>>()?;
    let mut error = None;
    keyed.sort_by(|(one, _), (other, _)| {
        let order = if error.is_some() { Ok(Ordering::Equal) } else { one.compare(evaluator.budget, other) };
        let order = order.unwrap_or_else(|found| {
            error = Some(found);
            Ordering::Equal
        });
        if reverse { order.reverse() } else { order }
    });
    match error {
        Some(error) => Err(error),
        None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
    }
}
