//! Parses templates, with the whitespace rules of transformers.

use std::borrow::Cow;

use minijinja::machinery::{Token, ast, parse, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::error::TemplateError;

/// Maximum size of a template.
const MAX_SOURCE: usize = 1 << 20;
/// Maximum number of tokens between two tag delimiters. The depth of an expression is at most its number of tokens.
const MAX_TOKENS: usize = 2000;
/// Maximum number of `elif`. Each one nests in the one before.
const MAX_BRANCHES: usize = 500;

/// Calls `then` with the statements of a template.
pub(super) fn with_statements<T>(
    source: &str,
    then: impl FnOnce(&[ast::Stmt<'_>]) -> Result<T, TemplateError>,
) -> Result<T, TemplateError> {
    if source.len() > MAX_SOURCE {
        return Err(TemplateError::Syntax(format!("it has {} bytes, more than {MAX_SOURCE}", source.len())));
    }
    let source = prepare(source);
    check_tokens(&source)?;
    let parsed = parse(&source, "chat_template", config()?).map_err(|error| syntax(&error))?;
    match &parsed {
        ast::Stmt::Template(template) => then(&template.children),
        _ => Err(TemplateError::Syntax("it has no statements".to_owned())),
    }
}

fn config() -> Result<SyntaxConfig, TemplateError> {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().map_err(|error| syntax(&error))
}

fn syntax(error: &minijinja::Error) -> TemplateError {
    let line = error.line().map(|line| format!(" in line {line}")).unwrap_or_default();
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    TemplateError::Syntax(format!("{detail}{line}"))
}

/// Rejects expressions whose depth could exhaust the stack.
fn check_tokens(source: &str) -> Result<(), TemplateError> {
    let (mut tokens, mut branches) = (0, 0);
    for token in tokenize(source, false, config()?) {
        match token.map_err(|error| syntax(&error))?.0 {
            Token::TemplateData(_) | Token::BlockStart | Token::VariableStart => tokens = 0,
            Token::Ident("elif") => branches += 1,
            _ => tokens += 1,
        }
        if tokens > MAX_TOKENS {
            return Err(TemplateError::Syntax(format!("a tag has more than {MAX_TOKENS} tokens")));
        }
        if branches > MAX_BRANCHES {
            return Err(TemplateError::Syntax(format!("it has more than {MAX_BRANCHES} `elif`")));
        }
    }
    Ok(())
}

/// Normalizes line ends, and replaces `generation` blocks, which mark the assistant's text for training.
fn prepare(source: &str) -> Cow<'_, str> {
    let lines = if source.contains('\r') {
        Cow::Owned(source.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(source)
    };
    if !lines.contains("generation") {
        return lines;
    }
    let (mut prepared, mut rest) = (String::with_capacity(lines.len()), &*lines);
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        prepared.push_str(before);
        let content = tag.trim_start_matches(['-', '+']).trim_start();
        let lead = tag.len() - content.len();
        let word = content.find(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        let (word, after) = content.split_at(word.unwrap_or(content.len()));
        let ends = after.trim_start().trim_start_matches(['-', '+']).starts_with("%}");
        prepared.push_str(&tag[..lead]);
        prepared.push_str(match word {
            "generation" if ends => "with",
            "endgeneration" if ends => "endwith",
            _ => word,
        });
        rest = after;
    }
    prepared.push_str(rest);
    Cow::Owned(prepared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_and_line_ends_are_replaced() {
        let prepared = "{%- with %}a{{ generation }}\n{% endwith -%}\n{% set generation = 1 %}";
        assert_eq!(
            prepare("{%- generation %}a{{ generation }}\r\n{% endgeneration -%}\r{% set generation = 1 %}"),
            prepared
        );
        assert_eq!(prepare("{% if a %}"), "{% if a %}");
    }
}
