//! Answers a question from sources, and cites one of them.
//!
//! [`answer`] lets a language model write freely. [`quote`] restricts it to the sentences of the sources: a small model
//! then chooses an answer and invents none.

use std::io::Write;

use sconce::{GenerateOptions, Message, Model, StructuredOutput, cosine};

use crate::store::Found;

/// Writes the answer while it is generated, then the number of the source that it comes from.
pub fn answer(
    generator: &Model,
    embedder: &Model,
    question: &str,
    sources: &[Found],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let passages: Vec<String> = sources.iter().map(|found| found.chunk.passage()).collect();
    let messages =
        messages("Answer from the sources in one or two sentences, and cite them as [1].", question, sources);
    let options = GenerateOptions { max_tokens: Some(150), temperature: 0.0, ..GenerateOptions::default() };
    let mut answer = String::new();
    for piece in generator.chat(&messages, &options)? {
        let text = piece?.text;
        write!(out, "{text}")?;
        out.flush()?;
        answer.push_str(&text);
    }
    if !cites(&answer, sources.len()) {
        // Small models forget to cite. The source that is most similar to the answer is the one it comes from.
        write!(out, " [{}]", nearest(embedder, &answer, &passages)? + 1)?;
    }
    writeln!(out)?;
    Ok(())
}

/// Writes the sentence of the sources that the model chooses, and the number of its source. Returns false if the sources
/// have no sentences.
pub fn quote(
    generator: &Model,
    question: &str,
    sources: &[Found],
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let choices: Vec<String> = (1..)
        .zip(sources)
        .flat_map(|(number, found)| {
            let sentences = sentences(&found.chunk.text).into_iter();
            sentences.map(move |sentence| format!("{} \\[{number}\\]", escape(sentence)))
        })
        .collect();
    if choices.is_empty() {
        return Ok(false);
    }
    let messages = messages("Answer with a sentence of the sources, and cite it as [1].", question, sources);
    let options = GenerateOptions {
        temperature: 0.0,
        structured_output: Some(StructuredOutput::Regex(choices.join("|"))),
        ..GenerateOptions::default()
    };
    writeln!(out, "{}", generator.chat(&messages, &options)?.text()?)?;
    Ok(true)
}

/// The conversation: the sources with their numbers, and the question.
fn messages(instruction: &str, question: &str, sources: &[Found]) -> [Message; 2] {
    let numbered: Vec<String> =
        (1..).zip(sources).map(|(number, found)| format!("[{number}] {}", found.chunk.passage())).collect();
    let question = format!("{}\n\nQuestion: {question}", numbered.join("\n\n"));
    [Message::system(instruction), Message::user(question)]
}

/// The sentences of a text, without code blocks and tables.
fn sentences(text: &str) -> Vec<&str> {
    let mut in_code = false;
    let prose = text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence && !line.starts_with('|')
    });
    let sentences = prose.flat_map(|line| line.split_inclusive(". "));
    let trimmed = sentences.map(|sentence| sentence.trim().trim_start_matches("- "));
    trimmed.filter(|sentence| sentence.split(' ').count() > 3).collect()
}

/// A regular expression that matches the text alone.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(letter) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// Whether the answer has the number of a source in brackets. An index of a list, `x[1]`, is none.
fn cites(answer: &str, sources: usize) -> bool {
    (1..=sources).any(|number| answer.contains(&format!(" [{number}]")))
}

/// The index of the passage that is most similar to a text.
fn nearest(embedder: &Model, text: &str, passages: &[String]) -> Result<usize, sconce::Error> {
    let texts: Vec<&str> = [text].into_iter().chain(passages.iter().map(String::as_str)).collect();
    let vectors = embedder.embed_documents(&texts)?.into_vectors();
    let similarity = |index: &usize| cosine(&vectors[0], &vectors[index + 1]);
    Ok((0..passages.len()).max_by(|a, b| similarity(a).total_cmp(&similarity(b))).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_citation_is_the_number_of_a_source() {
        assert!(cites("It is so [2].", 3));
        assert!(!cites("It is so [4]. See list[1].", 3) && !cites("It is so.", 3));
    }

    #[test]
    fn sentences_are_prose() {
        let text = "One sentence of prose. And another one, `a.b` too.\n```sh\nno sentence in code here.\n```\n| a table row. |\n- An item of a list.\nToo short.";
        assert_eq!(
            sentences(text),
            ["One sentence of prose.", "And another one, `a.b` too.", "An item of a list."]
        );
        assert_eq!(escape("<a.b> (c)"), r"<a\.b> \(c\)");
    }
}
