//! Operators of expressions, with the semantics of Python.

use super::budget::Budget;
use super::error::{TemplateError, fail, failed};
use super::print::to_text;
use super::text::TextBuilder;
use super::value::{ListKind, Value};

type Result<T> = std::result::Result<T, TemplateError>;

/// Concatenates the texts of two values.
pub(super) fn concatenate(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    let mut builder = TextBuilder::default();
    builder.push(budget, &to_text(budget, left)?)?;
    builder.push(budget, &to_text(budget, right)?)?;
    Ok(Value::Text(builder.finish()))
}

pub(super) fn add(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    match (left, right) {
        (Value::Text(_), Value::Text(_)) => concatenate(budget, left, right),
        (Value::List(one), Value::List(other))
            if one.kind == other.kind && matches!(one.kind, ListKind::List | ListKind::Tuple) =>
        {
            budget.allocate(size_of::<Value>() * (one.items.len() + other.items.len()))?;
            Value::list(budget, [&one.items[..], &other.items[..]].concat(), one.kind)
        }
        _ => arithmetic("+", left, right, i128::checked_add, |left, right| left + right),
    }
}

pub(super) fn subtract(left: &Value, right: &Value) -> Result<Value> {
    arithmetic("-", left, right, i128::checked_sub, |left, right| left - right)
}

pub(super) fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value> {
    match (left, right) {
        (Value::Text(_) | Value::List(_), Value::Int(times)) => repeat(budget, left, *times),
        (Value::Int(times), Value::Text(_) | Value::List(_)) => repeat(budget, right, *times),
        _ => arithmetic("*", left, right, i128::checked_mul, |left, right| left * right),
    }
}

fn repeat(budget: &Budget, value: &Value, times: i128) -> Result<Value> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    match value {
        Value::Text(text) => {
            budget.allocate(text.as_str().len().saturating_mul(times))?;
            budget.step(times)?;
            let mut builder = TextBuilder::default();
            for _ in 0..times {
                builder.push(budget, text)?;
            }
            Ok(Value::Text(builder.finish()))
        }
        Value::List(list) if matches!(list.kind, ListKind::List | ListKind::Tuple) => {
            let length = list.items.len().saturating_mul(times);
            budget.step(length)?;
            budget.allocate(length.saturating_mul(size_of::<Value>()))?;
            let items = list.items.iter().cycle().take(length).cloned().collect();
            Value::list(budget, items, list.kind)
        }
        _ => fail(format!("a value of type {} can't be repeated", value.type_name())),
    }
}

pub(super) fn divide(left: &Value, right: &Value) -> Result<Value> {
    let (left, right) = floats("/", left, right)?;
    if right == 0.0 { fail("division by zero") } else { Ok(Value::Float(left / right)) }
}

pub(super) fn floor_divide(left: &Value, right: &Value) -> Result<Value> {
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int()) {
        let quotient = left.checked_div_euclid(right).ok_or_else(|| failed("division by zero"))?;
        // Rounded down, also for a negative divisor.
        let floored = if right < 0 && left.rem_euclid(right) != 0 { quotient - 1 } else { quotient };
        return Ok(Value::Int(floored));
    }
    let (left, right) = floats("//", left, right)?;
    if right == 0.0 { fail("division by zero") } else { Ok(Value::Float((left / right).floor())) }
}

pub(super) fn remainder(left: &Value, right: &Value) -> Result<Value> {
    if matches!(left, Value::Text(_)) {
        return fail("`%` does not format texts here");
    }
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int()) {
        let remainder = left.checked_rem(right).ok_or_else(|| failed("division by zero"))?;
        let opposite = remainder != 0 && (remainder < 0) != (right < 0);
        return Ok(Value::Int(if opposite { remainder + right } else { remainder }));
    }
    let (left, right) = floats("%", left, right)?;
    if right == 0.0 {
        fail("division by zero")
    } else {
        Ok(Value::Float(left - right * (left / right).floor()))
    }
}

pub(super) fn power(left: &Value, right: &Value) -> Result<Value> {
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int())
        && right >= 0
    {
        let power = u32::try_from(right).ok().and_then(|right| left.checked_pow(right));
        return power.map(Value::Int).ok_or_else(|| failed("an integer is too large"));
    }
    let (left, right) = floats("**", left, right)?;
    Ok(Value::Float(left.powf(right)))
}

pub(super) fn negate(value: &Value) -> Result<Value> {
    match value {
        Value::Float(value) => Ok(Value::Float(-value)),
        _ => match value.as_int() {
            Some(value) => {
                value.checked_neg().map(Value::Int).ok_or_else(|| failed("an integer is too large"))
            }
            None => fail(format!("a value of type {} has no negative", value.type_name())),
        },
    }
}

fn arithmetic(
    name: &str,
    left: &Value,
    right: &Value,
    integers: fn(i128, i128) -> Option<i128>,
    numbers: fn(f64, f64) -> f64,
) -> Result<Value> {
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int()) {
        return integers(left, right).map(Value::Int).ok_or_else(|| failed("an integer is too large"));
    }
    let (left, right) = floats(name, left, right)?;
    Ok(Value::Float(numbers(left, right)))
}

fn floats(name: &str, left: &Value, right: &Value) -> Result<(f64, f64)> {
    left.as_float().zip(right.as_float()).ok_or_else(|| {
        failed(format!("`{name}` takes no values of type {} and {}", left.type_name(), right.type_name()))
    })
}

/// Whether `container` contains `value`.
pub(super) fn contains(budget: &Budget, container: &Value, value: &Value) -> Result<bool> {
    match (container, value) {
        (Value::Text(text), Value::Text(part)) => {
            budget.scan(text.as_str().len())?;
            Ok(text.as_str().contains(part.as_str()))
        }
        (Value::Text(_), _) => fail(format!("a text can't contain a value of type {}", value.type_name())),
        (Value::Map(map), _) => Ok(map.value(budget, value)?.is_some()),
        (Value::Undefined, _) => Ok(false),
        (Value::List(list), _) => {
            for item in &list.items {
                if item.equals(budget, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => fail(format!("a value of type {} contains nothing", container.type_name())),
    }
}

/// `value[start:stop:step]`.
pub(super) fn slice(budget: &Budget, value: &Value, bounds: [Option<Value>; 3]) -> Result<Value> {
    let [start, stop, step] = bounds;
    let bound = |bound: Option<Value>| match bound {
        None | Some(Value::None) => Ok(None),
        Some(value) => match value.as_int() {
            Some(value) => Ok(Some(value)),
            None => fail("bounds of a slice are integers"),
        },
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return fail("the step of a slice can't be 0");
    }
    let length = |length: usize| length as i128;
    match value {
        Value::Text(text) => {
            budget.scan(text.as_str().len())?;
            budget.allocate(text.as_str().len().saturating_mul(size_of::<usize>()))?;
            let mut bytes: Vec<usize> = text.as_str().char_indices().map(|(at, _)| at).collect();
            let characters = bytes.len();
            bytes.push(text.as_str().len());
            let indices = indices(start, stop, step, length(characters));
            if step == 1 {
                let first = indices.first().map_or(0, |at| bytes[*at]);
                let last = indices.last().map_or(0, |at| bytes[*at + 1]);
                return Ok(Value::Text(text.slice(budget, first..last)?));
            }
            let mut builder = TextBuilder::default();
            for at in indices {
                builder.push(budget, &text.slice(budget, bytes[at]..bytes[at + 1])?)?;
            }
            Ok(Value::Text(builder.finish()))
        }
        Value::List(list) if matches!(list.kind, ListKind::List | ListKind::Tuple) => {
            budget.step(list.items.len())?;
            let indices = indices(start, stop, step, length(list.items.len()));
            Value::list(budget, indices.into_iter().map(|at| list.items[at].clone()).collect(), list.kind)
        }
        _ => fail(format!("a value of type {} can't be sliced", value.type_name())),
    }
}

/// The indices of a slice of a sequence.
fn indices(start: Option<i128>, stop: Option<i128>, step: i128, length: i128) -> Vec<usize> {
    let (least, most) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |bound: i128| if bound < 0 { (bound + length).max(least) } else { bound.min(most) };
    let start = start.map_or(if step > 0 { least } else { most }, clamp);
    let stop = stop.map_or(if step > 0 { most } else { least }, clamp);
    let mut indices = Vec::new();
    let mut at = start;
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        indices.extend(usize::try_from(at));
        at = at.saturating_add(step);
    }
    indices
}

/// The item of a sequence at an index, which counts from the end if it is negative.
pub(super) fn item_at(items: usize, index: i128) -> Option<usize> {
    let index = if index < 0 { index + items as i128 } else { index };
    usize::try_from(index).ok().filter(|index| *index < items)
}
