//! Structured output: every text of a random model is valid.

use std::thread;
use std::time::Duration;

use jsonschema::Validator;
use sconce::{
    Device, Dtype, EngineId, Error, FinishReason, GenerateOptions, Model, ModelBuilder, StructuredOutput,
    Task,
};
use sconce_testkit::byte_model;
use sconce_testkit::draws::Draws;
use sconce_testkit::fake::{BatchFault, Fault};
use serde_json::{Map, Value, json};

use crate::fakes::{METAL, Stage, candle};
use crate::support::{Copy, Home};

/// A tiny Llama with random embeddings of a byte-complete vocabulary.
fn folder() -> Copy {
    let folder = Copy::of("tiny-llama");
    byte_model::write(folder.path(), None);
    folder
}

fn open(home: &Home, folder: &Copy, cache: Option<u64>) -> Model {
    let builder = home.model(folder.path()).task(Task::Generate).engine(EngineId::Native).dtype(Dtype::F32);
    let builder = cache.into_iter().fold(builder.device(Device::Cpu), ModelBuilder::kv_cache_bytes);
    builder.open().expect("it opens")
}

/// A random schema whose values are short.
fn schema(draws: &mut Draws, depth: usize) -> Value {
    let kinds = if depth == 0 { 8 } else { 11 };
    match draws.below(kinds) {
        0 => json!({ "type": "null" }),
        1 => json!({ "type": "boolean" }),
        2 => {
            let (low, span) = (draws.below(2000) as f64 - 1000.0, draws.below(5000) as f64);
            json!({ "type": "integer", "minimum": low, "maximum": low + span })
        }
        3 => json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 + draws.below(50) }),
        4 => {
            let min = draws.below(4);
            json!({ "type": "string", "minLength": min, "maxLength": min + draws.below(6) })
        }
        5 => json!({ "enum": ["", "é中\"\\", "a b", 1, -2.5, true, null, ["x"]] }),
        6 => {
            let texts = ["plain", "né", "tab\t"];
            json!({ "const": texts[draws.below(3)] })
        }
        7 => {
            let patterns = ["^[a-z]{1,4}$", "^(ab|cd){2}[0-9]?$", "^\\d{4}-\\d\\d$", "^[^x]{0,3}é$"];
            json!({ "type": "string", "pattern": patterns[draws.below(4)] })
        }
        8 => {
            let min = draws.below(3);
            json!({
                "type": "array", "items": schema(draws, depth - 1), "minItems": min, "maxItems": min + draws.below(3),
            })
        }
        9 => json!({ "anyOf": [schema(draws, depth - 1), schema(draws, depth - 1)] }),
        _ => {
            let names = ["a", "name", "é", "with space", "q\"uote"];
            let names: Vec<&str> = names.into_iter().filter(|_| draws.chance(50)).collect();
            let properties: Map<String, Value> =
                names.into_iter().map(|name| (name.to_owned(), schema(draws, depth - 1))).collect();
            let required: Vec<&String> = properties.keys().filter(|_| draws.chance(60)).collect();
            json!({
                "type": "object", "properties": properties, "required": required, "additionalProperties": false,
            })
        }
    }
}

fn options(schema: &Value, seed: usize, max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        temperature: if seed.is_multiple_of(4) { 0.0 } else { 1.0 },
        seed: Some(seed as u64),
        structured_output: Some(StructuredOutput::JsonSchema(schema.clone())),
        ..GenerateOptions::default()
    }
}

fn run(model: &Model, seed: usize, options: &GenerateOptions) -> (String, FinishReason) {
    let prompt = (0..=seed % 40).map(|at| ((seed * 31 + at * 17) % 256) as u32).collect();
    let mut generation = model.generate_from_ids(prompt, options).expect("a valid request");
    let text = generation.by_ref().map(|piece| piece.expect("it generates").text).collect();
    (text, generation.summary().finish_reasons[0].expect("it ended"))
}

fn assert_valid(schema: &Value, validator: &Validator, text: &str) {
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?} of {schema}"));
    assert!(validator.is_valid(&value), "{text:?} of {schema}");
}

#[test]
fn texts_of_random_schemas_are_valid() {
    const SCHEMAS: usize = 500;
    const MOST: usize = 160;
    let (home, folder) = (Home::new(), folder());
    let model = open(&home, &folder, None);
    let (mut stopped, mut lengths) = (0, 0);
    for seeds in (0..SCHEMAS).collect::<Vec<_>>().chunks(20) {
        // Several at a time: constraints do not affect each other.
        let outcomes: Vec<(Value, String, FinishReason)> = thread::scope(|scope| {
            let spawn = |&seed: &usize| {
                let model = &model;
                scope.spawn(move || {
                    let schema = schema(&mut Draws(seed as u64 + 7), 1 + seed % 3);
                    let (text, reason) = run(model, seed, &options(&schema, seed, MOST));
                    (schema, text, reason)
                })
            };
            let threads: Vec<_> = seeds.iter().map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for (seed, (schema, text, reason)) in seeds.iter().zip(outcomes) {
            let validator = jsonschema::validator_for(&schema).expect("a schema");
            if reason == FinishReason::Stop {
                stopped += 1;
                assert_valid(&schema, &validator, &text);
                continue;
            }
            // A longer run continues the same text to a valid end.
            lengths += 1;
            let (longer, reason) = run(&model, *seed, &options(&schema, *seed, 8 * MOST));
            assert!(longer.starts_with(&text), "{text:?} and {longer:?} of {schema}");
            if reason == FinishReason::Stop {
                assert_valid(&schema, &validator, &longer);
            }
        }
    }
    println!("{stopped} ended by `stop`, {lengths} by `length`");
    assert!(stopped * 10 >= SCHEMAS * 9, "{stopped} of {SCHEMAS} ended by `stop`");
}

#[test]
fn preempted_outputs_and_choices_keep_their_state() {
    let (home, folder) = (Home::new(), folder());
    let model = open(&home, &folder, None);
    let block = 16 * 2 * 2 * 2 * 8 * 4;
    let small = open(&home, &folder, Some(14 * block));
    let schema = json!({ "type": "array", "items": { "type": "string", "minLength": 2, "maxLength": 9 }, "minItems": 9, "maxItems": 9 });
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let alone: Vec<(String, FinishReason)> =
        (0..8).map(|seed| run(&model, seed, &options(&schema, seed, 200))).collect();
    let together: Vec<(String, FinishReason)> = thread::scope(|scope| {
        let spawn = |seed| {
            let (small, schema) = (&small, &schema);
            scope.spawn(move || run(small, seed, &options(schema, seed, 200)))
        };
        let threads: Vec<_> = (0..8).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(together, alone);
    let options = GenerateOptions { n: 4, ..options(&schema, 1, 400) };
    let mut texts = vec![String::new(); 4];
    for piece in model.generate("some prompt", &options).expect("a valid request") {
        let piece = piece.expect("it generates");
        texts[piece.choice] += &piece.text;
    }
    for text in &texts {
        assert_valid(&schema, &validator, text);
    }
    assert_ne!(texts[0], texts[1]);
}

#[test]
fn outputs_that_are_computed_again_after_a_failure_keep_their_state() {
    let folder = folder();
    let open = |faults: &[Fault]| {
        let engine = faults.iter().fold(candle(), |engine, fault| engine.with(METAL, *fault));
        let stage = Stage { timeout: Duration::from_millis(400), ..Stage::new(engine) };
        let builder = Model::builder(folder.path().to_str().expect("a path that is text"));
        let builder = builder.runtime(&stage.in_process().build()).task(Task::Generate);
        (builder.open().expect("something serves"), stage)
    };
    let schema = json!({
        "type": "object", "properties": { "a": { "type": "string", "maxLength": 30 }, "b": { "type": "integer" } },
        "required": ["a", "b"], "additionalProperties": false,
    });
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let runs = |model: &Model| -> Vec<(String, FinishReason)> {
        thread::scope(|scope| {
            let spawn = |seed| {
                let schema = &schema;
                scope.spawn(move || run(model, seed, &options(schema, seed, 300)))
            };
            let threads: Vec<_> = (1..4).map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    };
    let (healthy, _stage) = open(&[]);
    let wanted = runs(&healthy);
    for (text, reason) in &wanted {
        assert_eq!(*reason, FinishReason::Stop, "{text}");
        assert_valid(&schema, &validator, text);
    }
    for (nth, fault) in [(2, BatchFault::Error), (9, BatchFault::Nan), (14, BatchFault::Panic)] {
        let (model, _stage) = open(&[Fault::FromBatch(nth, fault)]);
        assert_eq!(runs(&model), wanted, "{fault:?} from step {nth}");
        assert_eq!(model.quarantined().len(), 1, "{fault:?}: {}", model.plan().explain());
    }
}

#[test]
fn expressions_grammars_and_objects_are_followed_and_invalid_ones_refused() {
    let (home, folder) = (Home::new(), folder());
    let model = open(&home, &folder, None);
    let text = |output: StructuredOutput, seed| {
        let output = Some(output);
        run(&model, seed, &GenerateOptions { structured_output: output, ..options(&json!({}), seed, 400) })
    };
    for seed in 0..10 {
        let (date, reason) = text(StructuredOutput::Regex("[0-9]{4}-(0[1-9]|1[0-2]) é?".to_owned()), seed);
        assert_eq!((date.as_bytes()[4], reason), (b'-', FinishReason::Stop), "{date}");
        let grammar = "start: item (\", \" item)~2\nitem: \"yes\" | \"no\"".to_owned();
        let (list, reason) = text(StructuredOutput::Grammar(grammar), seed);
        assert!(list.split(", ").all(|item| ["yes", "no"].contains(&item)), "{list}");
        assert_eq!((list.split(", ").count(), reason), (3, FinishReason::Stop));
    }
    let (object, _) = text(StructuredOutput::JsonObject, 3);
    assert!(object.starts_with('{'), "{object}");
    let refused = |output: StructuredOutput| {
        let options = GenerateOptions { structured_output: Some(output), ..options(&json!({}), 1, 4) };
        match model.generate_from_ids(vec![1], &options) {
            Err(Error::Request(message)) => message,
            other => panic!("{:?}", other.map(sconce::Generation::text)),
        }
    };
    let message = refused(StructuredOutput::JsonSchema(json!({ "type": "whole" })));
    assert!(message.starts_with("the JSON schema can't be used: "), "{message}");
    let message = refused(StructuredOutput::Regex("(".to_owned()));
    assert!(message.starts_with("the regular expression can't be used: "), "{message}");
}
