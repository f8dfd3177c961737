//! Rust source without comments and the contents of literals.

/// Blanks comments and literals; lines stay in place.
pub(crate) fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (keep, skip) = piece(rest, out.chars().next_back());
        out.push_str(&rest[..keep]);
        out.extend(rest[keep..keep + skip].chars().filter(|&letter| letter == '\n'));
        rest = &rest[keep + skip..];
    }
    out
}

/// The length of the next piece of code, and of the text after it to drop.
fn piece(rest: &str, before: Option<char>) -> (usize, usize) {
    if rest.starts_with("//") {
        return (0, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (0, block(rest));
    }
    let in_word = before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    if !in_word && let Some((open, close)) = raw(rest) {
        let inside = rest[open..].find(&close).unwrap_or(rest.len() - open);
        return (open, inside + close.len().min(rest.len() - open - inside));
    }
    if let Some(text) = rest.strip_prefix('"') {
        return (1, quoted(text, '"'));
    }
    if let Some(letter) = rest.strip_prefix('\'')
        && !is_lifetime(letter)
    {
        return (1, quoted(letter, '\''));
    }
    (rest.chars().next().map_or(0, char::len_utf8), 0)
}

/// The length of a block comment; they nest.
fn block(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of a raw string's opening, and its closing delimiter.
fn raw(rest: &str) -> Option<(usize, String)> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|rest| rest.trim_start_matches('#').starts_with('"'))
    })?;
    let hashes = rest[prefix.len()..].chars().take_while(|&letter| letter == '#').count();
    Some((prefix.len() + hashes + 1, format!("\"{}", "#".repeat(hashes))))
}

/// The length up to and including the closing quote.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, letter) in rest.char_indices() {
        if letter == quote && !escaped {
            return at + 1;
        }
        escaped = letter == '\\' && !escaped;
    }
    rest.len()
}

/// Whether what follows a `'` is a lifetime rather than a character.
fn is_lifetime(rest: &str) -> bool {
    let mut letters = rest.chars();
    let (first, second) = (letters.next(), letters.next());
    first != Some('\\') && second != Some('\'')
}

/// Whether `word` occurs in `line` as a whole word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let in_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(in_word) && !line[at + word.len()..].starts_with(in_word))
}

#[test]
fn comments_and_literals_are_blanked() {
    let check = |text: &str, expected: &str| assert_eq!(code(text), expected, "{text}");
    check("a // b\nc", "a \nc");
    check("a /* b /* c */ \n d */ e", "a \n e");
    check(r#"f("a \" // b", 'c')"#, "f(\", ')");
    check("r#\"a \" b\"# c", "r#\" c");
    check("b\"x\" + br\"y\\\" + 'z'", "b\" + br\" + '");
    check("fn f<'a>(x: &'a str) { '\\'' }", "fn f<'a>(x: &'a str) { ' }");
    check("for\"x\"", "for\"");
}

#[test]
fn words_stand_alone() {
    assert!(has_word("pub unsafe fn", "unsafe"));
    assert!(!has_word("forbid(unsafe_code)", "unsafe"));
}
