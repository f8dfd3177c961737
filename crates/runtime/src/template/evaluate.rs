//! Evaluates the statements of a template.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem;
use std::rc::Rc;
use std::time::SystemTime;

use minijinja::machinery::ast;

use super::arguments::Arguments;
use super::budget::{Budget, MAX_DEPTH};
use super::error::{TemplateError, fail};
use super::print::to_text;
use super::text::{Text, TextBuilder};
use super::value::{Loop, Value};

type Result<T> = std::result::Result<T, TemplateError>;
type Scope = BTreeMap<String, Value>;

/// The functions of the environment.
const FUNCTIONS: [&str; 5] = ["range", "dict", "namespace", "raise_exception", "strftime_now"];

/// Evaluates a template. Its variables are those of Jinja: `set` in a loop or a macro does not leave it.
pub(super) struct Evaluator<'a, 'b> {
    pub(super) budget: &'b Budget,
    pub(super) now: SystemTime,
    root: Scope,
    /// Scopes of loops, blocks and macro calls, the innermost last.
    locals: Vec<Scope>,
    /// The output, and the captures of blocks and macros.
    outputs: Vec<TextBuilder>,
    macros: Vec<Macro<'a>>,
    depth: usize,
    loops: usize,
    line: u32,
}

/// A macro, with the scopes around its definition except the outermost.
struct Macro<'a> {
    declaration: &'a ast::Macro<'a>,
    locals: Vec<Scope>,
}

/// What happens after a statement.
#[derive(PartialEq, Eq)]
enum Flow {
    Next,
    Continue,
    Break,
}

impl<'a, 'b> Evaluator<'a, 'b> {
    pub(super) fn new(
        budget: &'b Budget,
        variables: Vec<(String, Value)>,
        now: SystemTime,
    ) -> Evaluator<'a, 'b> {
        let functions = FUNCTIONS.map(|name| (name.to_owned(), Value::Function(name)));
        let root = functions.into_iter().chain(variables).collect();
        let (locals, outputs, macros) = (Vec::new(), vec![TextBuilder::default()], Vec::new());
        Evaluator { budget, now, root, locals, outputs, macros, depth: 0, loops: 0, line: 1 }
    }

    /// The text of a template.
    pub(super) fn render(mut self, statements: &'a [ast::Stmt<'a>]) -> Result<Text> {
        match self.run(statements) {
            Ok(_) => Ok(self.outputs.pop().unwrap_or_default().finish()),
            Err(TemplateError::Failed { line: 0, why }) => {
                Err(TemplateError::Failed { line: self.line, why })
            }
            Err(error) => Err(error),
        }
    }

    /// Calls `then` one level deeper.
    pub(super) fn deeper<T>(&mut self, then: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.budget.step(1)?;
        if self.depth >= MAX_DEPTH {
            return Err(TemplateError::Depth(MAX_DEPTH));
        }
        self.depth += 1;
        let result = then(self);
        self.depth -= 1;
        result
    }

    pub(super) fn variable(&self, name: &str) -> Value {
        let local = self.locals.iter().rev().find_map(|scope| scope.get(name));
        local.or_else(|| self.root.get(name)).cloned().unwrap_or(Value::Undefined)
    }

    fn set(&mut self, name: &str, value: Value) -> Result<()> {
        self.budget.allocate(name.len() + size_of::<(String, Value)>())?;
        self.locals.last_mut().unwrap_or(&mut self.root).insert(name.to_owned(), value);
        Ok(())
    }

    fn run(&mut self, statements: &'a [ast::Stmt<'a>]) -> Result<Flow> {
        for statement in statements {
            let flow = self.deeper(|this| this.statement(statement))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    /// Runs statements in a scope of their own.
    fn run_scoped(&mut self, scope: Scope, statements: &'a [ast::Stmt<'a>]) -> Result<Flow> {
        self.locals.push(scope);
        let flow = self.run(statements);
        self.locals.pop();
        flow
    }

    /// The output of statements.
    fn capture(&mut self, scope: Scope, statements: &'a [ast::Stmt<'a>]) -> Result<Text> {
        self.outputs.push(TextBuilder::default());
        let flow = self.run_scoped(scope, statements);
        let output = self.outputs.pop().unwrap_or_default();
        flow.map(|_| output.finish())
    }

    fn emit(&mut self, text: &Text) -> Result<()> {
        match self.outputs.last_mut() {
            Some(output) => output.push(self.budget, text),
            None => Ok(()),
        }
    }

    fn statement(&mut self, statement: &'a ast::Stmt<'a>) -> Result<Flow> {
        match statement {
            ast::Stmt::Template(template) => return self.run(&template.children),
            ast::Stmt::EmitRaw(raw) => {
                if let Some(output) = self.outputs.last_mut() {
                    output.push_str(self.budget, raw.raw, false)?;
                }
            }
            ast::Stmt::EmitExpr(emit) => {
                self.line = emit.span().start_line.into();
                let value = self.expression(&emit.expr)?;
                self.emit(&to_text(self.budget, &value)?)?;
            }
            ast::Stmt::IfCond(condition) => {
                self.line = condition.span().start_line.into();
                let branch = if self.expression(&condition.expr)?.is_true() {
                    &condition.true_body
                } else {
                    &condition.false_body
                };
                return self.run(branch);
            }
            ast::Stmt::ForLoop(for_loop) => {
                self.line = for_loop.span().start_line.into();
                self.for_loop(for_loop)?;
            }
            ast::Stmt::WithBlock(with) => {
                self.line = with.span().start_line.into();
                self.locals.push(Scope::new());
                let assigned = with.assignments.iter().try_for_each(|(target, value)| {
                    let value = self.expression(value)?;
                    self.assign(target, value)
                });
                let scope = self.locals.pop().unwrap_or_default();
                assigned?;
                return self.run_scoped(scope, &with.body);
            }
            ast::Stmt::Set(set) => {
                self.line = set.span().start_line.into();
                let value = self.expression(&set.expr)?;
                self.assign(&set.target, value)?;
            }
            ast::Stmt::SetBlock(set) => {
                self.line = set.span().start_line.into();
                let text = Value::Text(self.capture(Scope::new(), &set.body)?);
                let value = match &set.filter {
                    Some(filter) => self.filter_chain(filter, text)?,
                    None => text,
                };
                self.assign(&set.target, value)?;
            }
            ast::Stmt::FilterBlock(block) => {
                self.line = block.span().start_line.into();
                let text = Value::Text(self.capture(Scope::new(), &block.body)?);
                let value = self.filter_chain(&block.filter, text)?;
                self.emit(&to_text(self.budget, &value)?)?;
            }
            ast::Stmt::Macro(declaration) => {
                let defined = self.define(declaration)?;
                self.set(declaration.name, defined)?;
            }
            ast::Stmt::CallBlock(block) => {
                self.line = block.span().start_line.into();
                let caller = self.define(&block.macro_decl)?;
                let callee = self.expression(&block.call.expr)?;
                let mut arguments = self.arguments(&block.call.args)?;
                arguments.named.push(("caller".to_owned(), caller));
                let value = self.call(&callee, &arguments, "the macro")?;
                self.emit(&to_text(self.budget, &value)?)?;
            }
            ast::Stmt::Continue(_) => return Ok(Flow::Continue),
            ast::Stmt::Break(_) => return Ok(Flow::Break),
            ast::Stmt::AutoEscape(_) | ast::Stmt::Do(_) => {
                return fail("`autoescape` and `do` are no tags of chat templates");
            }
        }
        Ok(Flow::Next)
    }

    fn for_loop(&mut self, for_loop: &'a ast::ForLoop<'a>) -> Result<()> {
        if for_loop.recursive {
            return fail("recursive loops are not supported");
        }
        let mut items = self.expression(&for_loop.iter)?.items(self.budget)?;
        if let Some(filter) = &for_loop.filter_expr {
            let mut kept = Vec::new();
            for item in items {
                self.locals.push(Scope::new());
                let passes =
                    self.assign(&for_loop.target, item.clone()).and_then(|()| self.expression(filter));
                self.locals.pop();
                if passes?.is_true() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        let mut completed = false;
        self.loops += 1;
        let state = Rc::new(Loop { items, index: Cell::new(0), depth: self.loops });
        for at in 0..state.items.len() {
            self.budget.step(1)?;
            state.index.set(at);
            self.locals.push(Scope::from([("loop".to_owned(), Value::Loop(Rc::clone(&state)))]));
            let assigned = self.assign(&for_loop.target, state.items[at].clone());
            let flow = assigned.and_then(|()| self.run(&for_loop.body));
            self.locals.pop();
            match flow? {
                Flow::Next => completed = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        self.loops -= 1;
        // As in Jinja, an iteration that ends with `continue` or `break` does not count.
        if !completed {
            self.run_scoped(Scope::new(), &for_loop.else_body)?;
        }
        Ok(())
    }

    fn assign(&mut self, target: &ast::Expr<'_>, value: Value) -> Result<()> {
        match target {
            ast::Expr::Var(variable) => self.set(variable.id, value),
            ast::Expr::GetAttr(attribute) => match (&attribute.expr, &value) {
                (_, Value::Namespace(_) | Value::Loop(_)) => {
                    fail(format!("a {} can't be stored in a namespace", value.type_name()))
                }
                (ast::Expr::Var(variable), _) => match self.variable(variable.id) {
                    Value::Namespace(namespace) => {
                        self.budget.allocate(attribute.name.len() + size_of::<(String, Value)>())?;
                        namespace.borrow_mut().insert(attribute.name.to_owned(), value);
                        Ok(())
                    }
                    _ => fail("attributes can be set on namespaces only"),
                },
                _ => fail("attributes can be set on namespaces only"),
            },
            ast::Expr::List(targets) => {
                let values = value.items(self.budget)?;
                if values.len() != targets.items.len() {
                    return fail(format!("{} values for {} variables", values.len(), targets.items.len()));
                }
                targets.items.iter().zip(values).try_for_each(|(target, value)| self.assign(target, value))
            }
            _ => fail("this can't be assigned to"),
        }
    }

    fn define(&mut self, declaration: &'a ast::Macro<'a>) -> Result<Value> {
        let variables: usize = self.locals.iter().map(Scope::len).sum();
        self.budget.step(8 + variables)?;
        self.budget.allocate(size_of::<Macro<'_>>() + variables * 2 * size_of::<(String, Value)>())?;
        self.macros.push(Macro { declaration, locals: self.locals.clone() });
        Ok(Value::Macro(self.macros.len() - 1))
    }

    /// Calls a macro. Missing arguments are undefined, or the declared defaults.
    pub(super) fn call_macro(&mut self, index: usize, arguments: &Arguments) -> Result<Value> {
        let Some(Macro { declaration, locals }) = self.macros.get(index) else {
            return fail("no such macro");
        };
        let (declaration, locals) = (*declaration, locals.clone());
        let names: Vec<&str> = declaration
            .args
            .iter()
            .filter_map(
                |argument| if let ast::Expr::Var(variable) = argument { Some(variable.id) } else { None },
            )
            .collect();
        if arguments.positional.len() > names.len() {
            return fail(format!("macro `{}` takes at most {} arguments", declaration.name, names.len()));
        }
        let unknown =
            arguments.named.iter().find(|(name, _)| name != "caller" && !names.contains(&name.as_str()));
        if let Some((name, _)) = unknown {
            return fail(format!("macro `{}` has no argument `{name}`", declaration.name));
        }
        let outside = mem::replace(&mut self.locals, locals);
        let line = self.line;
        let result = self.deeper(|this| {
            let mut scope = Scope::new();
            let without_default = names.len() - declaration.defaults.len().min(names.len());
            for (at, name) in names.iter().enumerate() {
                let given = arguments.positional.get(at).or_else(|| arguments.named(name)).cloned();
                let value = match (given, at.checked_sub(without_default)) {
                    (Some(value), _) => value,
                    (None, Some(default)) => {
                        this.locals.push(mem::take(&mut scope));
                        let value = this.expression(&declaration.defaults[default]);
                        scope = this.locals.pop().unwrap_or_default();
                        value?
                    }
                    (None, None) => Value::Undefined,
                };
                scope.insert((*name).to_owned(), value);
            }
            if let Some(caller) = arguments.named("caller") {
                scope.insert("caller".to_owned(), caller.clone());
            }
            this.capture(scope, &declaration.body)
        });
        self.locals = outside;
        let text = result?;
        self.line = line;
        Ok(Value::Text(text))
    }

    /// A namespace with these attributes.
    pub(super) fn namespace(&self, arguments: &Arguments) -> Result<Value> {
        let mut attributes = BTreeMap::new();
        if let Some(Value::Map(map)) = arguments.positional.first() {
            for (key, value) in &map.entries {
                attributes.extend(key.as_text().map(|key| (key.as_str().to_owned(), value.clone())));
            }
        }
        for (name, value) in &arguments.named {
            if matches!(value, Value::Namespace(_) | Value::Loop(_)) {
                return fail(format!("a {} can't be stored in a namespace", value.type_name()));
            }
            attributes.insert(name.clone(), value.clone());
        }
        self.budget.allocate(attributes.len() * size_of::<(String, Value)>())?;
        Ok(Value::Namespace(Rc::new(RefCell::new(attributes))))
    }
}
