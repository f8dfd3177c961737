//! Evaluates expressions.

use std::cmp::Ordering;

use minijinja::machinery::ast::{self, BinOpKind, CompareOpKind, UnaryOpKind};
use minijinja::value::ValueKind;

use super::arguments::{Arguments, optional_int, text};
use super::clock::strftime;
use super::error::{TemplateError, fail};
use super::evaluate::Evaluator;
use super::operators::{self, item_at};
use super::predicates::test;
use super::print::to_text;
use super::value::{ListKind, Loop, Value};
use super::{filters, methods, sequences};

type Result<T> = std::result::Result<T, TemplateError>;

/// Maximum length of a `range`, as in Jinja's sandbox.
const MAX_RANGE: usize = 100_000;

impl<'a> Evaluator<'a, '_> {
    pub(super) fn expression(&mut self, expression: &'a ast::Expr<'a>) -> Result<Value> {
        self.deeper(|this| this.evaluate(expression))
    }

    fn evaluate(&mut self, expression: &'a ast::Expr<'a>) -> Result<Value> {
        match expression {
            ast::Expr::Var(variable) => Ok(self.variable(variable.id)),
            ast::Expr::Const(constant) => self.constant(&constant.value),
            ast::Expr::Slice(slice) => {
                let value = self.expression(&slice.expr)?;
                let mut bound = |bound: &'a Option<ast::Expr<'a>>| match bound {
                    Some(bound) => self.expression(bound).map(Some),
                    None => Ok(None),
                };
                let bounds = [bound(&slice.start)?, bound(&slice.stop)?, bound(&slice.step)?];
                operators::slice(self.budget, &value, bounds)
            }
            ast::Expr::UnaryOp(unary) => {
                let value = self.expression(&unary.expr)?;
                match unary.op {
                    UnaryOpKind::Not => Ok(Value::Bool(!value.is_true())),
                    UnaryOpKind::Neg => operators::negate(&value),
                }
            }
            ast::Expr::BinOp(binary) => self.binary(binary),
            ast::Expr::Compare(compare) => {
                let mut left = self.expression(&compare.expr)?;
                for operation in &compare.ops {
                    let right = self.expression(&operation.expr)?;
                    if !self.compare(operation.op, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            ast::Expr::IfExpr(condition) => {
                if self.expression(&condition.test_expr)?.is_true() {
                    self.expression(&condition.true_expr)
                } else {
                    condition.false_expr.as_ref().map_or(Ok(Value::Undefined), |value| self.expression(value))
                }
            }
            ast::Expr::Filter(filter) => {
                let Some(value) = &filter.expr else { return fail("a filter needs a value") };
                let value = self.expression(value)?;
                let arguments = self.arguments(&filter.args)?;
                self.filter(filter.name, &value, &arguments)
            }
            ast::Expr::Test(tested) => {
                let value = self.expression(&tested.expr)?;
                let arguments = self.arguments(&tested.args)?;
                test(self.budget, tested.name, &value, &arguments).map(Value::Bool)
            }
            ast::Expr::GetAttr(attribute) => {
                let value = self.expression(&attribute.expr)?;
                if matches!(value, Value::Undefined) {
                    return fail(format!("`{}` is undefined", path(&attribute.expr)));
                }
                self.attribute(&value, attribute.name)
            }
            ast::Expr::GetItem(item) => {
                let value = self.expression(&item.expr)?;
                if matches!(value, Value::Undefined) {
                    return fail(format!("`{}` is undefined", path(&item.expr)));
                }
                let key = self.expression(&item.subscript_expr)?;
                self.item(&value, &key)
            }
            ast::Expr::Call(call) => {
                let callee = self.expression(&call.expr)?;
                let arguments = self.arguments(&call.args)?;
                self.call(&callee, &arguments, &path(&call.expr))
            }
            ast::Expr::List(list) => {
                let items = list.items.iter().map(|item| self.expression(item)).collect::<Result<_>>()?;
                Value::list(self.budget, items, ListKind::List)
            }
            ast::Expr::Tuple(tuple) => {
                let items = tuple.items.iter().map(|item| self.expression(item)).collect::<Result<_>>()?;
                Value::list(self.budget, items, ListKind::Tuple)
            }
            ast::Expr::Map(map) => {
                let mut entries: Vec<(Value, Value)> = Vec::new();
                for (key, value) in map.keys.iter().zip(&map.values) {
                    let key = self.expression(key)?;
                    let value = self.expression(value)?;
                    self.insert(&mut entries, key, value)?;
                }
                Value::map(self.budget, entries)
            }
        }
    }

    fn constant(&self, value: &minijinja::Value) -> Result<Value> {
        match value.kind() {
            ValueKind::None => Ok(Value::None),
            ValueKind::Bool => Ok(Value::Bool(value.is_true())),
            ValueKind::Number => match (value.is_integer(), i128::try_from(value.clone())) {
                (true, Ok(integer)) => Ok(Value::Int(integer)),
                _ => match f64::try_from(value.clone()) {
                    Ok(number) => Ok(Value::Float(number)),
                    Err(_) => fail("a number is too large"),
                },
            },
            _ => match value.as_str() {
                Some(text) => Value::text(self.budget, text),
                None => fail("a constant is of an unknown type"),
            },
        }
    }

    fn binary(&mut self, binary: &'a ast::BinOp<'a>) -> Result<Value> {
        let left = self.expression(&binary.left)?;
        match binary.op {
            BinOpKind::ScAnd if !left.is_true() => return Ok(left),
            BinOpKind::ScOr if left.is_true() => return Ok(left),
            _ => {}
        }
        let right = self.expression(&binary.right)?;
        let budget = self.budget;
        let undefined = |value: &Value, name: &ast::Expr<'_>| match value {
            Value::Undefined => fail(format!("`{}` is undefined", path(name))),
            _ => Ok(()),
        };
        let is_arithmetic = matches!(
            binary.op,
            BinOpKind::Add
                | BinOpKind::Sub
                | BinOpKind::Mul
                | BinOpKind::Div
                | BinOpKind::FloorDiv
                | BinOpKind::Rem
                | BinOpKind::Pow
        );
        if is_arithmetic {
            undefined(&left, &binary.left)?;
            undefined(&right, &binary.right)?;
        }
        match binary.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => Ok(right),
            BinOpKind::Add => operators::add(budget, &left, &right),
            BinOpKind::Sub => operators::subtract(&left, &right),
            BinOpKind::Mul => operators::multiply(budget, &left, &right),
            BinOpKind::Div => operators::divide(&left, &right),
            BinOpKind::FloorDiv => operators::floor_divide(&left, &right),
            BinOpKind::Rem => operators::remainder(&left, &right),
            BinOpKind::Pow => operators::power(&left, &right),
            BinOpKind::Concat => operators::concatenate(budget, &left, &right),
            BinOpKind::Eq => self.compare(CompareOpKind::Eq, &left, &right).map(Value::Bool),
            BinOpKind::Ne => self.compare(CompareOpKind::Ne, &left, &right).map(Value::Bool),
            BinOpKind::Lt => self.compare(CompareOpKind::Lt, &left, &right).map(Value::Bool),
            BinOpKind::Lte => self.compare(CompareOpKind::Lte, &left, &right).map(Value::Bool),
            BinOpKind::Gt => self.compare(CompareOpKind::Gt, &left, &right).map(Value::Bool),
            BinOpKind::Gte => self.compare(CompareOpKind::Gte, &left, &right).map(Value::Bool),
            BinOpKind::In => self.compare(CompareOpKind::In, &left, &right).map(Value::Bool),
        }
    }

    fn compare(&self, operation: CompareOpKind, left: &Value, right: &Value) -> Result<bool> {
        let order = || left.compare(self.budget, right);
        match operation {
            CompareOpKind::Eq => left.equals(self.budget, right),
            CompareOpKind::Ne => Ok(!left.equals(self.budget, right)?),
            CompareOpKind::Lt => Ok(order()? == Ordering::Less),
            CompareOpKind::Lte => Ok(order()? != Ordering::Greater),
            CompareOpKind::Gt => Ok(order()? == Ordering::Greater),
            CompareOpKind::Gte => Ok(order()? != Ordering::Less),
            CompareOpKind::In => operators::contains(self.budget, right, left),
            CompareOpKind::NotIn => Ok(!operators::contains(self.budget, right, left)?),
        }
    }

    pub(super) fn arguments(&mut self, arguments: &'a [ast::CallArg<'a>]) -> Result<Arguments> {
        let mut evaluated = Arguments::default();
        for argument in arguments {
            match argument {
                ast::CallArg::Pos(value) => evaluated.positional.push(self.expression(value)?),
                ast::CallArg::Kwarg(name, value) => {
                    evaluated.named.push(((*name).to_owned(), self.expression(value)?));
                }
                ast::CallArg::PosSplat(values) => {
                    evaluated.positional.extend(self.expression(values)?.items(self.budget)?);
                }
                ast::CallArg::KwargSplat(values) => match self.expression(values)? {
                    Value::Map(map) => {
                        self.budget.step(map.entries.len())?;
                        for (key, value) in &map.entries {
                            let key = text(Some(key.clone()), "key")?;
                            evaluated.named.push((key.as_str().to_owned(), value.clone()));
                        }
                    }
                    _ => return fail("`**` takes a mapping"),
                },
            }
        }
        Ok(evaluated)
    }

    /// Applies the filters of a block to its text.
    pub(super) fn filter_chain(&mut self, filter: &'a ast::Expr<'a>, text: Value) -> Result<Value> {
        self.deeper(|this| match filter {
            ast::Expr::Filter(filter) => {
                let value = match &filter.expr {
                    Some(inner) => this.filter_chain(inner, text)?,
                    None => text,
                };
                let arguments = this.arguments(&filter.args)?;
                this.filter(filter.name, &value, &arguments)
            }
            _ => fail("a block needs a filter"),
        })
    }

    pub(super) fn filter(&self, name: &str, value: &Value, arguments: &Arguments) -> Result<Value> {
        self.budget.step(1)?;
        match filters::apply(self.budget, name, value, arguments)? {
            Some(value) => Ok(value),
            None => sequences::apply(self, name, value, arguments),
        }
    }

    /// `value.name`: a method first, then an item.
    pub(super) fn attribute(&self, value: &Value, name: &str) -> Result<Value> {
        match value {
            Value::Undefined => fail("an attribute of an undefined value"),
            Value::Namespace(attributes) => {
                Ok(attributes.borrow().get(name).cloned().unwrap_or(Value::Undefined))
            }
            _ if methods::has_method(value, name) => {
                Ok(Value::Method(std::rc::Rc::new((value.clone(), name.to_owned()))))
            }
            Value::Map(map) => Ok(map.get(self.budget, name)?.cloned().unwrap_or(Value::Undefined)),
            Value::Loop(state) => Ok(loop_attribute(state, name)),
            _ => Ok(Value::Undefined),
        }
    }

    /// `value[key]`: an item first, then a method.
    pub(super) fn item(&self, value: &Value, key: &Value) -> Result<Value> {
        let found = match (value, key) {
            (Value::Undefined, _) => return fail("an item of an undefined value"),
            (Value::Map(map), _) => map.value(self.budget, key)?.cloned(),
            (Value::List(list), _) if matches!(list.kind, ListKind::List | ListKind::Tuple) => {
                let at = key.as_int().and_then(|index| item_at(list.items.len(), index));
                at.map(|at| list.items[at].clone())
            }
            (Value::Text(_), Value::Int(_) | Value::Bool(_)) => {
                let length = filters::length(self.budget, value)?;
                let at = key.as_int().and_then(|index| item_at(length as usize, index)).map(|at| at as i128);
                let bounds = |at: i128| [Some(Value::Int(at)), Some(Value::Int(at + 1)), None];
                at.map(|at| operators::slice(self.budget, value, bounds(at))).transpose()?
            }
            _ => None,
        };
        match (found, key) {
            (Some(found), _) => Ok(found),
            (None, Value::Text(key)) => match value {
                Value::Map(_) if !methods::has_method(value, key.as_str()) => Ok(Value::Undefined),
                _ => self.attribute(value, key.as_str()),
            },
            (None, _) => Ok(Value::Undefined),
        }
    }

    /// Calls a function, method or macro, which the template calls `name`.
    pub(super) fn call(&mut self, callee: &Value, arguments: &Arguments, name: &str) -> Result<Value> {
        match callee {
            Value::Macro(index) => self.call_macro(*index, arguments),
            Value::Method(method) => methods::call(self.budget, &method.0, &method.1, arguments),
            Value::Function(function) => self.function(function, arguments),
            Value::Undefined => fail(format!("`{name}` is undefined")),
            _ => fail(format!("`{name}` is no function")),
        }
    }

    fn function(&self, name: &str, arguments: &Arguments) -> Result<Value> {
        match name {
            "raise_exception" => {
                let [message] = arguments.bind(["message"])?;
                let message = to_text(self.budget, &message.unwrap_or(Value::Undefined))?;
                Err(TemplateError::Raised(message.as_str().to_owned()))
            }
            "strftime_now" => {
                let [format] = arguments.bind(["format"])?;
                Value::text(self.budget, &strftime(text(format, "format")?.as_str(), self.now))
            }
            "namespace" => self.namespace(arguments),
            "dict" => {
                let mut entries = match arguments.positional.first() {
                    Some(Value::Map(map)) => map.entries.clone(),
                    Some(_) => return fail("`dict` takes a mapping"),
                    None => Vec::new(),
                };
                for (name, value) in &arguments.named {
                    self.insert(&mut entries, Value::text(self.budget, name)?, value.clone())?;
                }
                Value::map(self.budget, entries)
            }
            _ => self.range(arguments),
        }
    }

    /// Inserts an entry, or replaces the value of its key.
    fn insert(&self, entries: &mut Vec<(Value, Value)>, key: Value, value: Value) -> Result<()> {
        match key {
            Value::Text(_) | Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
            _ => return fail(format!("a value of type {} can't be a key", key.type_name())),
        }
        for (known, old) in entries.iter_mut() {
            if known.equals(self.budget, &key)? {
                *old = value;
                return Ok(());
            }
        }
        entries.push((key, value));
        Ok(())
    }

    fn range(&self, arguments: &Arguments) -> Result<Value> {
        let [start, stop, step] = arguments.bind(["start", "stop", "step"])?;
        let (start, stop) = (optional_int(start, "start")?, optional_int(stop, "stop")?);
        let step = optional_int(step, "step")?.unwrap_or(1);
        let (start, stop) = match (start, stop) {
            (Some(stop), None) => (0, stop),
            (Some(start), Some(stop)) => (start, stop),
            (None, _) => return fail("`range` needs a length"),
        };
        if step == 0 {
            return fail("the step of a range can't be 0");
        }
        let (mut items, mut at) = (Vec::new(), start);
        while (step > 0 && at < stop) || (step < 0 && at > stop) {
            if items.len() == MAX_RANGE {
                return fail(format!("a range has more than {MAX_RANGE} items"));
            }
            items.push(Value::Int(at));
            at = at.saturating_add(step);
        }
        Value::list(self.budget, items, ListKind::List)
    }
}

fn loop_attribute(state: &Loop, name: &str) -> Value {
    let (at, length) = (state.index.get(), state.items.len());
    let count = |count: usize| Value::Int(count as i128);
    match name {
        "index" => count(at + 1),
        "index0" => count(at),
        "revindex" => count(length - at),
        "revindex0" => count(length - at - 1),
        "first" => Value::Bool(at == 0),
        "last" => Value::Bool(at + 1 == length),
        "length" => count(length),
        "depth" => count(state.depth),
        "depth0" => count(state.depth - 1),
        "previtem" => at.checked_sub(1).map_or(Value::Undefined, |at| state.items[at].clone()),
        "nextitem" => state.items.get(at + 1).cloned().unwrap_or(Value::Undefined),
        _ => Value::Undefined,
    }
}

/// The name of a value in messages: `message.content`.
fn path(expression: &ast::Expr<'_>) -> String {
    match expression {
        ast::Expr::Var(variable) => variable.id.to_owned(),
        ast::Expr::GetAttr(attribute) => format!("{}.{}", path(&attribute.expr), attribute.name),
        ast::Expr::GetItem(item) => match &item.subscript_expr {
            ast::Expr::Const(key) if key.value.as_str().is_some() => {
                format!("{}.{}", path(&item.expr), key.value.as_str().unwrap_or_default())
            }
            _ => format!("{}[…]", path(&item.expr)),
        },
        _ => "the value".to_owned(),
    }
}
