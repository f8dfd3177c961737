//! Masks of constraints, and what is refused.

use std::time::{Duration, Instant};

use super::*;

const END: u32 = 256;

/// A vocabulary of all bytes, an end token, and a few tokens of several bytes from 257 on.
fn compiler() -> ConstraintCompiler {
    compiler_with(TokenBytes::Special("<end>".to_owned()))
}

fn compiler_with(end: TokenBytes) -> ConstraintCompiler {
    let bytes = (0..=u8::MAX).map(|byte| TokenBytes::Text(vec![byte]));
    let words = ["{\"", "\":", "true", "ab", "é", "<end>"].map(|word| TokenBytes::Text(word.into()));
    let tokens: Vec<TokenBytes> = bytes.chain([end]).chain(words).collect();
    ConstraintCompiler::new(&tokens, &[END]).expect("a vocabulary")
}

fn allowed(constraint: &mut Constraint) -> Vec<u32> {
    let mask = constraint.mask(&[]).expect("a mask");
    (0..263).filter(|token| mask.allows(*token)).collect()
}

fn refusal(output: &StructuredOutput) -> String {
    compiler().compile(output).err().unwrap_or_else(|| panic!("{output:?} is used"))
}

#[test]
fn masks_are_the_tokens_that_can_follow() {
    let expression = StructuredOutput::Regex("ab?(é|c{2})".to_owned());
    let mut constraint = compiler().compile(&expression).expect("an expression");
    assert_eq!(allowed(&mut constraint), [u32::from(b'a'), 260]);
    assert_eq!(constraint.push(260), Ok(false));
    assert_eq!(allowed(&mut constraint), [u32::from(b'c'), 0xC3, 261]);
    let mut other = constraint.clone();
    assert_eq!(constraint.push(u32::from(b'c')), Ok(false));
    assert_eq!(allowed(&mut constraint), [u32::from(b'c')]);
    assert_eq!(constraint.push(u32::from(b'c')), Ok(true), "nothing can follow");
    assert_eq!(other.push(0xC3), Ok(false));
    assert_eq!(allowed(&mut other), [0xA9]);
    assert!(other.push(u32::from(b'c')).is_err(), "it is not allowed");
}

#[test]
fn end_tokens_are_allowed_where_the_text_is_complete() {
    let mut constraint =
        compiler().compile(&StructuredOutput::Regex("x+".to_owned())).expect("an expression");
    assert_eq!(allowed(&mut constraint), [u32::from(b'x')]);
    assert_eq!(constraint.push(u32::from(b'x')), Ok(false));
    assert_eq!(allowed(&mut constraint), [u32::from(b'x'), END]);
    let mask = |constraint: &mut Constraint| constraint.mask(&[258]).expect("a mask");
    assert!(mask(&mut constraint).allows(258), "a stop token of the request as well");
    let mut incomplete =
        compiler().compile(&StructuredOutput::Regex("xy".to_owned())).expect("an expression");
    assert_eq!(incomplete.push(u32::from(b'x')), Ok(false));
    assert!(!mask(&mut incomplete).allows(258));
    // The text of an end token is not the end token, also if the tokenizer does not mark it as special.
    for end in [TokenBytes::Special("<end>".to_owned()), TokenBytes::Text(b"<end>".to_vec())] {
        let expression = StructuredOutput::Regex("<end>x".to_owned());
        let mut constraint = compiler_with(end).compile(&expression).expect("an expression");
        assert_eq!(allowed(&mut constraint), [u32::from(b'<'), 262]);
    }
}

#[test]
fn schemas_and_grammars_are_followed() {
    let follow = |output: &StructuredOutput, text: &str| {
        let mut constraint = compiler().compile(output).expect("it is valid");
        let mut complete = false;
        for byte in text.bytes() {
            assert!(!complete && constraint.mask(&[]).expect("a mask").allows(u32::from(byte)), "{byte}");
            complete = constraint.push(u32::from(byte)).expect("it is allowed");
        }
        complete
    };
    let schema = json!({
        "type": "object", "properties": { "a": { "enum": ["x", "é"] } }, "required": ["a"], "additionalProperties": false,
    });
    assert!(follow(&StructuredOutput::JsonSchema(schema), r#"{"a": "é"}"#));
    assert!(follow(&StructuredOutput::JsonObject, "{\"b\": [1.5, null],\n  \"c\": {}}"));
    let grammar = "start: \"(\" start \")\" | \"x\"".to_owned();
    assert!(follow(&StructuredOutput::Grammar(grammar), "((x))"));
    let mut constraint = compiler().compile(&StructuredOutput::JsonObject).expect("it is valid");
    for byte in "{\n\n".bytes() {
        assert_eq!(constraint.push(u32::from(byte)), Ok(false));
    }
    assert!(!allowed(&mut constraint).contains(&u32::from(b'\n')), "whitespace is bounded");
}

#[test]
fn invalid_ones_are_refused_with_a_reason() {
    let schema = |schema| refusal(&StructuredOutput::JsonSchema(schema));
    assert!(schema(json!({ "type": "whole" })).contains("whole"));
    assert!(schema(json!([1])).contains("it must be an object or `true`: [1]"));
    assert!(schema(json!({ "$ref": "https://example.com/schema.json" })).contains("example.com"));
    assert!(schema(json!({ "type": "integer", "minimum": 3, "maximum": 2 })).contains("nsatisfiable"));
    assert!(refusal(&StructuredOutput::Regex("(a".to_owned())).contains("regex"));
    assert!(refusal(&StructuredOutput::Grammar("start: unknown".to_owned())).contains("unknown"));
    assert!(refusal(&StructuredOutput::Grammar(String::new())).len() > 5);
}

#[test]
fn hostile_ones_take_bounded_time() {
    let wide = |count: usize, inner: &Value| Value::Array(vec![inner.clone(); count]);
    let choices = wide(40, &json!({ "type": "object", "properties": { "a": { "type": "string" } } }));
    let chain: serde_json::Map<String, Value> = (0..2000)
        .map(|n| (format!("d{n}"), json!({ "allOf": [{ "$ref": format!("#/$defs/d{}", (n + 1) % 2000) }] })))
        .collect();
    let rules: Vec<String> = (0..4000).map(|n| format!("r{n}: r{0} r{0}", n + 1)).collect();
    let cases = [
        StructuredOutput::JsonSchema(json!({ "allOf": wide(12, &json!({ "anyOf": choices })) })),
        StructuredOutput::JsonSchema(
            json!({ "type": "string", "minLength": 1_000_000, "maxLength": 2_000_000 }),
        ),
        StructuredOutput::JsonSchema(json!({ "type": "array", "minItems": 1_000_000 })),
        StructuredOutput::JsonSchema(json!({ "$ref": "#/$defs/d0", "$defs": chain })),
        StructuredOutput::JsonSchema(json!({ "type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}" })),
        StructuredOutput::Regex("(((a|b)*a(a|b){18}){1,200}){1,200}".to_owned()),
        StructuredOutput::Regex("(a?){5000}a{5000}".to_owned()),
        StructuredOutput::Regex(r"(\p{L}{1,500}\s?){1,500}".to_owned()),
        StructuredOutput::Grammar(format!("start: r0\n{}\nr4000: \"x\"", rules.join("\n"))),
        StructuredOutput::Grammar("start: start start | \"a\" | \"\"".to_owned()),
    ];
    let compiler = compiler();
    for output in cases {
        let started = Instant::now();
        let mut steps = 0;
        if let Ok(mut constraint) = compiler.compile(&output) {
            let mut follow = || {
                let mask = constraint.mask(&[]).ok()?;
                let token = (0..263).rev().find(|token| mask.allows(*token))?;
                constraint.push(token).ok()
            };
            while steps < 20 && follow() == Some(false) {
                steps += 1;
            }
        }
        let text = format!("{output:?}").chars().take(60).collect::<String>();
        println!("{:?} and {steps} tokens: {text}", started.elapsed());
        assert!(started.elapsed() < Duration::from_secs(10), "{text}");
    }
}
