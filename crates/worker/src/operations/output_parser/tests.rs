//! Tests of the parser: whole outputs, and the same in pieces.

use proptest::prelude::*;

use super::*;

const QWEN: &str = "{{ '<think>' }} … {{ '</think>' }} <tool_call>";
const LLAMA: &str = "Environment: ipython … <|python_tag|>";
const MISTRAL: &str = "[AVAILABLE_TOOLS] … [TOOL_CALLS]";

/// An output as a whole.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    text: String,
    reasoning: String,
    calls: Vec<(String, String)>,
}

fn parsed<'a>(mut parser: OutputParser, pieces: impl Iterator<Item = &'a str>) -> Parsed {
    let mut deltas: Vec<Delta> = pieces.flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    let mut parsed = Parsed::default();
    for delta in deltas {
        match delta {
            Delta::Text(text) => parsed.text += &text,
            Delta::Reasoning(text) => parsed.reasoning += &text,
            Delta::Call { index, name } => {
                assert_eq!(index, parsed.calls.len(), "calls are numbered");
                parsed.calls.push((name, String::new()));
            }
            Delta::Arguments { index, text } => parsed.calls[index].1 += &text,
        }
    }
    parsed
}

fn whole(template: &str, output: &str) -> Parsed {
    parsed(OutputParser::of(template, "", true), [output].into_iter())
}

fn expected(text: &str, reasoning: &str, calls: &[(&str, &str)]) -> Parsed {
    let calls = calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned()));
    Parsed { text: text.to_owned(), reasoning: reasoning.to_owned(), calls: calls.collect() }
}

#[test]
fn text_without_marks_is_the_answer() {
    assert_eq!(whole("no tools", " a <b> \n"), expected(" a <b> \n", "", &[]));
    assert_eq!(whole(QWEN, "a <tool"), expected("a <tool", "", &[]));
    assert_eq!(whole(LLAMA, "a {"), expected("a {", "", &[]));
}

#[test]
fn reasoning_comes_before_the_answer() {
    assert_eq!(whole(QWEN, "<think>\nhm\n\nso\n</think>\n\nyes"), expected("yes", "hm\n\nso", &[]));
    assert_eq!(whole(QWEN, "<think>\nhm"), expected("", "hm", &[]), "it is cut");
    assert_eq!(whole(QWEN, "yes <think>"), expected("yes <think>", "", &[]), "only at the start");
    let begun = OutputParser::of(QWEN, "<|assistant|><think>\n", false);
    assert_eq!(parsed(begun, ["hm</think>yes"].into_iter()), expected("yes", "hm", &[]));
}

#[test]
fn calls_are_parsed_in_each_format() {
    let two = "<think>hm</think>I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\"}}\n</tool_call>\n\
               <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    let calls = [("f", "{\"a\": \"}\\\"{\"}"), ("g", "{}")];
    assert_eq!(whole(QWEN, two), expected("I look.", "hm", &calls));
    let llama = "{\"name\": \"f\", \"parameters\": {\"a\": [1, {\"b\": 2}]}}";
    let calls = [("f", "{\"a\": [1, {\"b\": 2}]}")];
    assert_eq!(whole(LLAMA, llama), expected("", "", &calls));
    assert_eq!(whole(LLAMA, &format!("<|python_tag|>{llama}")), expected("", "", &calls));
    let list = "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]";
    let calls = [("f", "{\"a\": 1}"), ("g", "{}")];
    for output in [list.to_owned(), format!("[TOOL_CALLS]{list}"), format!("[TOOL_CALLS] {list}")] {
        assert_eq!(whole(MISTRAL, &output), expected("", "", &calls), "{output}");
    }
}

#[test]
fn calls_in_other_shapes_are_parsed_when_they_are_complete() {
    let call = |body: &str| whole(QWEN, &format!("<tool_call>{body}</tool_call>"));
    assert_eq!(call("{\"arguments\": {\"a\": 1}, \"name\": \"f\"}"), expected("", "", &[("f", "{\"a\":1}")]));
    assert_eq!(call("{\"name\": \"f\"}"), expected("", "", &[("f", "{}")]));
    assert_eq!(call("{\"name\": \"f\", \"arguments\": \"{}\"}"), expected("", "", &[("f", "{}")]));
    let extra = "{\"name\": \"f\", \"arguments\": {\"a\": {}}, \"id\": {\"b\": 1}}";
    assert_eq!(call(extra), expected("", "", &[("f", "{\"a\": {}}")]));
}

#[test]
fn what_is_no_call_is_text() {
    assert_eq!(whole(LLAMA, "{\"answer\": 1} and more"), expected("{\"answer\": 1} and more", "", &[]));
    assert_eq!(whole(LLAMA, "{\"answer\": "), expected("{\"answer\": ", "", &[]));
    assert_eq!(whole(MISTRAL, "[1, 2]"), expected("[1, 2]", "", &[]));
    for (template, json) in [
        (MISTRAL, "[{\"a\": 1}, {\"b\": 2}]"),
        (MISTRAL, " [ {\"a\": "),
        (LLAMA, "{\"name\": \"Al\", \"age\": 3}"),
    ] {
        assert_eq!(whole(template, json), expected(json, "", &[]));
    }
    assert_eq!(whole(MISTRAL, "[, "), expected("[, ", "", &[]));
    assert_eq!(whole(QWEN, "<tool_call>no json"), expected("no json", "", &[]));
    let cut = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ";
    assert_eq!(whole(QWEN, cut), expected("", "", &[("f", "{\"a\": ")]), "a call that began stays one");
    let plain = OutputParser::of(QWEN, "", false);
    let call = "<tool_call>{}</tool_call>";
    assert_eq!(parsed(plain, [call].into_iter()), expected(call, "", &[]), "the request has no tools");
}

#[test]
fn what_follows_calls_that_are_the_answer_is_dropped() {
    let call = "{\"name\": \"f\", \"arguments\": {}}";
    let calls = [("f", "{}")];
    for (template, output) in [
        (LLAMA, format!("{call}<tool_call>{call}{call}")),
        (LLAMA, format!("{call} and more")),
        (MISTRAL, format!("[{call}] and {call}")),
    ] {
        assert_eq!(whole(template, &output), expected("", "", &calls), "{output}");
        let characters = (0..output.len()).map(|at| &output[at..=at]);
        let pieces = parsed(OutputParser::of(template, "", true), characters);
        assert_eq!(pieces, expected("", "", &calls), "{output}, one character after the other");
    }
    let hermes = whole(QWEN, &format!("<tool_call>{call}</tool_call> and more"));
    assert_eq!(hermes, expected("and more", "", &calls), "calls stand between text");
}

#[test]
fn a_call_without_its_last_brace_ends_at_its_mark() {
    let (f, g) = (
        "{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}",
        "{\"name\": \"g\", \"arguments\": {}}",
    );
    let output = format!("<tool_call>\n{f}\n</tool_call>\n<tool_call>\n{g}\n</tool_call> and more");
    let calls = [("f", "{\"a\": \"</tool_call>\"}"), ("g", "{}")];
    assert_eq!(whole(QWEN, &output), expected("and more", "", &calls));
    // The output may end there as well.
    for (output, is_call) in [(f, true), (&f[..f.len() - 1], false)] {
        let mut parser = OutputParser::of(QWEN, "", true);
        parser.push(&format!("<tool_call>{output}"));
        parser.finish();
        assert_eq!(parser.has_calls(), is_call, "{output}");
    }
}

#[test]
fn what_follows_the_only_call_is_dropped() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let output = format!("I look. {call} and {call}");
    let single = parsed(OutputParser::of(QWEN, "", true).single(), [output.as_str()].into_iter());
    assert_eq!(single, expected("I look.", "", &[("f", "{}")]));
}

#[test]
fn arguments_are_streamed() {
    let mut parser = OutputParser::of(QWEN, "", true);
    assert_eq!(parser.push("<tool_call>{\"name\": \"f\", \"arguments\": "), []);
    let begun = [
        Delta::Call { index: 0, name: "f".to_owned() },
        Delta::Arguments { index: 0, text: "{\"a\"".to_owned() },
    ];
    assert_eq!(parser.push("{\"a\""), begun);
    assert_eq!(parser.push(": 1"), [Delta::Arguments { index: 0, text: ": 1".to_owned() }]);
    assert_eq!(parser.push("}}"), [Delta::Arguments { index: 0, text: "}".to_owned() }]);
    assert!(parser.has_calls());
    assert_eq!(parser.push("</tool_call>"), []);
    assert_eq!(parser.finish(), []);
}

proptest! {
    #[test]
    fn pieces_do_not_matter(
        parts in proptest::collection::vec(prop_oneof![
            Just("<think>"), Just("</think>"), Just("<tool_call>"), Just("</tool_call>"), Just("\n"), Just(" a"),
            Just("{\"name\": \"f\", \"arguments\": {\"é\": \"}\"}}"), Just("{\"name\": "),
            Just("{\"name\": \"g\", \"arguments\": {}"), Just("["), Just("]"),
            Just("[TOOL_CALLS]"), Just("<|python_tag|>"), Just("<"), Just("é"),
        ], 0..12),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        template in prop_oneof![Just(QWEN), Just(LLAMA), Just(MISTRAL), Just("none")],
    ) {
        let output = parts.concat();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| output.floor_char_boundary(cut.index(output.len() + 1))).collect();
        ends.extend([0, output.len()]);
        ends.sort_unstable();
        let pieces = ends.windows(2).map(|ends| &output[ends[0]..ends[1]]);
        prop_assert_eq!(parsed(OutputParser::of(template, "", true), pieces), whole(template, &output));
    }
}
